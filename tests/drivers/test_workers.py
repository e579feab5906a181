"""The helper's workers between operations: as they were forked, used again in a burst, gone after it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bellglass import ids
from bellglass.errors import NotFound
from bellglass.node.drivers.base import Template


def workers(rig: Any) -> set[int]:
    pid = rig.helper.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()} - machines(rig)


def machines(rig: Any) -> set[int]:
    """As a subreaper the helper has machines' first processes as children."""
    return {int(file.read_text()) for file in rig.data.sandboxes_dir.glob("*/pid")}


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def look(pid: int) -> Any:
    """What a start changes of its process; None when it is gone."""
    try:
        spaces = tuple(os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("mnt", "net", "user", "pid"))
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return spaces, [line for line in status if line[:3] in ("Uid", "Gid", "Cap")], os.getpriority(0, pid)
    except (FileNotFoundError, ProcessLookupError):
        return None


@pytest.mark.parametrize("background", [False, True])
def test_a_worker_comes_back_from_a_start(rig: Any, clean: None, background: bool) -> None:
    """And then does what comes next, unless this host was so busy that it had gone by then."""
    for _ in range(20):
        wait_until(lambda: not workers(rig), "workers don't go")
        handle = rig.run(rig.driver.create(rig.spec(background=background)))
        after = workers(rig)
        for worker in after:
            wait_until(lambda pid=worker: look(pid) in (None, look(rig.helper.pid)), "it is left as the start had it")
        rig.run(handle.destroy())
        rig.run(handle.reclaim())
        if after and workers(rig) == after:
            return
    pytest.fail("each operation had a process of its own")


def test_a_killed_idle_worker_is_nobodys_error(rig: Any, clean: None) -> None:
    wait_until(lambda: not workers(rig), "workers don't go")
    for _ in range(3):
        rig.run(rig.driver.reclaim_leftovers(ids.new_sandbox_id()))
        for worker in workers(rig):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            wait_until(lambda pid=worker: pid not in workers(rig), "it isn't reaped")


def test_a_failed_start_is_its_workers_last(rig: Any, clean: None) -> None:
    wait_until(lambda: not workers(rig), "workers don't go")
    missing = Template("base", "0" * 64, Path("/nowhere"))
    with pytest.raises(NotFound, match="not built"):
        rig.run(rig.driver.create(rig.spec(template=missing)))
    wait_until(lambda: not workers(rig), "the worker of a failed start stays")
