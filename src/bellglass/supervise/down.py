"""`bellglass down` as a function.

Sandboxes are deleted through the node, which journals each end; the server's records follow when it reads that
journal. If the daemons are not running, the node is started alone for it: sandboxes outlive their daemons, so they
can be there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from bellglass import settings as settings_module
from bellglass.datadir import DataDir
from bellglass.errors import NodeUnavailable, SandboxFailed
from bellglass.supervise import control, wall
from bellglass.supervise.install import prepare, read_installation_id
from bellglass.supervise.supervisor import STOP_GRACE_S, Supervisor, block_signals

COUNT_S = 5.0


class Outcome(NamedTuple):
    deleted: int
    left_running: int
    """Sandboxes."""
    left_waiting: int
    """Machines of warm pools."""


def stop(data: DataDir, *, sandboxes: bool, say: Callable[[str], None]) -> Outcome:
    """Raises InvalidRequest where there is no installation, Forbidden where it is another user's."""
    read_installation_id(data)
    lock = control.Lock(data)
    record = control.read_record(data)
    running = record is not None and record.alive("supervisor")
    deleted = 0
    if sandboxes and running:
        deleted = control.delete_all_sandboxes(data, lambda sandbox_id: say(f"deleted {sandbox_id}"))
    waiting = 0
    if running:
        assert record is not None
        with suppress(NodeUnavailable):  # a node that is down or busy is no reason to stay up
            waiting = control.ask_node(data, "node.info", timeout_s=COUNT_S)["pool_members"]
        supervisor = record.processes["supervisor"]
        supervisor.send(15)
        if not supervisor.wait(time.monotonic() + 3 * STOP_GRACE_S):
            raise SandboxFailed(
                f"the supervisor (pid {supervisor.pid}) does not stop", hint=f"see {data.logs_dir / 'supervisor.log'}"
            )
        say("server, node and helper stopped")
    lock.take()
    try:
        wall.lower(read_installation_id(data))
        # Without daemons before, or made by a client between the last delete and the server's end.
        if sandboxes and any(data.sandboxes_dir.iterdir()):
            deleted += _delete_without_daemons(data, lock, say)
    finally:
        lock.release()
    left = len(data.machines())
    return Outcome(deleted, max(left - waiting, 0), min(waiting, left))


def _delete_without_daemons(data: DataDir, lock: control.Lock, say: Callable[[str], None]) -> int:
    settings = settings_module.load(data.settings_file)
    block_signals()
    supervisor = Supervisor(prepare(data), settings, None, None, lambda step, seconds: None, lock)
    supervisor.start_node_alone()
    try:
        return control.delete_all_sandboxes(data, lambda sandbox_id: say(f"deleted {sandbox_id}"))
    finally:
        supervisor.stop()
