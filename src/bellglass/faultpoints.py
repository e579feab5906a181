"""Named points at which a test has a daemon killed, as kill -9 would at that line.

A point is armed by a file of its name in `<data folder>/faults/`, a folder that only a test makes: a daemon that finds
none when it starts never looks again, so `reach` then costs one comparison. The file holds `<n> <victim>`: whoever
reaches the point for the n-th time removes the file and ends by SIGKILL, so that the restarted daemon lives. The victim
is `self`, or `parent` for the parent and then itself: the helper works in a child of its own per operation.

    arm(folder, "node.create.journaled")        the node dies right after it has journalled a create's intent
    armed(folder)                               what is armed and was not reached yet
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

POINTS = {
    # --- server: creating
    "server.create.row_written": "the row, its event and the idempotency claim are stored",
    "server.create.node_answered": "the node has made the sandbox, the row does not say so",
    "server.create.settling": "in the transaction that makes the row `running` and stores the answer, not committed",
    "server.create.answer_stored": "row and idempotency answer are stored, the client has no answer",
    # --- server: deleting and changing
    "server.delete.intent_stored": "the row is `stopping`, the node does not know",
    "server.delete.node_answered": "every process is dead, the row is `stopping`",
    "server.delete.settling": "in the transaction that makes the row disappear, not committed",
    "server.delete.row_hidden": "the row has disappeared, the client has no answer",
    "server.update.node_answered": "the node has the new clocks, the row the old ones",
    "server.update.row_changed": "the row has the new clocks, the client has no answer",
    "server.network.row_written": "the row has another network, the node the old one",
    "server.network.node_answered": "another network is in force, the client has no answer",
    # --- server: the node's journal
    "server.journal.ingesting": "in the transaction that applies events and moves the cursor, not committed",
    "server.journal.ingested": "events are applied, the node was not told",
    "server.journal.acknowledged": "the node has dropped the events that were applied",
    # --- server: executions and files
    "server.exec.opened": "the command is on its way to the node, nothing of its answer has come",
    "server.exec.recorded": "a detached execution's record has come, the client has no answer",
    "server.file.opened": "the write is on its way to the node, without its bytes",
    "server.body.sent": "all bytes of a body and their end are on their way to the node",
    "server.file.answered": "the node has confirmed the write, the client has no answer",
    # --- server: contexts, and ports that are published at their first visit
    "server.context.made": "the node has made a context, the client has no answer",
    "server.context.run_opened": "a run is on its way to the node, nothing of its answer has come",
    "server.context.answered": "a context was interrupted, restarted or deleted, the client has no answer",
    "server.visit.listening": "what a visit has named answers, its port is not published",
    "server.visit.storing": "in the transaction that publishes a port at its first visit, not committed",
    "server.visit.stored": "the port is published, its first visitor has no answer",
    # --- node: creating
    "node.create.journaled": "the intent is in the journal",
    "node.create.inputs_written": "the files for /inputs lie on the host",
    "node.create.uids_leased": "the helper has leased a uid range and made the folders",
    "node.create.listening": "the socket for the agent is there, no machine yet",
    "node.create.machine_made": "the machine runs, the journal says `creating`",
    "node.create.hello": "the agent has spoken, the journal says `creating`",
    "node.create.confirmed": "the journal says `running`, nobody was told",
    "node.create.watched": "clocks and watch are set, the server has no answer",
    "node.undo.reclaimed": "a failed create's machine is given back, the journal says `creating`",
    "node.undo.forgotten": "the journal has forgotten a failed create, the server has no answer",
    # --- node: ending
    "node.lifetime.due": "a lifetime is over, nothing is decided",
    "node.end.journaled": "the end is in the journal, every process lives",
    "node.end.closed": "whoever waits was told, every process lives",
    "node.end.dead": "every process is dead, the journal says `ending`",
    "node.delete.answering": "every process is dead, the server has no answer",
    "node.end.confirmed": "the journal says `ended`, nothing is given back",
    "node.end.reclaimed": "the helper has given all back, inputs and logs are there",
    "node.end.inputs_removed": "inputs are gone, logs are there",
    "node.end.logs_forgotten": "all is given back, the journal does not say so",
    "node.end.recorded": "the journal says `reclaimed`",
    # --- node: members of pools
    "node.pool.journaled": "a member's intent is in the journal",
    "node.pool.machine_made": "a member's machine runs, the journal says `filling`",
    "node.pool.confirmed": "the journal says `pooled`, nobody may claim it yet",
    "node.pool.draining": "the journal says that a member goes, its machine runs",
    "node.pool.given_back": "a member's machine is given back, the journal says `draining`",
    # --- node: small ones
    "node.update.journaled": "new clocks are in the journal, the old ones run",
    "node.network.journaled": "another network is in the journal, the old one is in force",
    "node.network.applied": "another network is in force, the server has no answer",
    "node.journal.acknowledged": "events that the server has taken in are dropped",
    "node.recover.read": "a restarted node has read its journal",
    "node.recover.taken_over": "a restarted node has taken over one of its sandboxes",
    "node.recover.undone": "a restarted node has given back a half-made machine, the journal says `creating`",
    # --- node: executions
    "node.exec.stored": "an execution's record is stored, nothing was sent",
    "node.exec.grouped": "its cgroup is made, nothing was sent",
    "node.exec.sent": "START is on its way to the agent",
    "node.exec.started": "the agent has said STARTED",
    "node.exec.output_logged": "output lies in the log and is not acknowledged",
    "node.exec.exit_told": "the agent has said EXIT, the record says `running`",
    "node.exec.record_stored": "the record has the outcome, nobody was told",
    "node.exec.released": "the agent was told to forget it",
    "node.exec.group_removed": "its cgroup is gone",
    "node.exec.deadline": "its timeout has passed, nothing is decided",
    "node.exec.killed": "its tree was killed, the record says `running`",
    "node.exec.tree_dead": "its tree is seen dead, the record says `running`",
    # --- node: contexts
    "node.context.row_stored": "a context's row is stored, it has no host",
    "node.context.host_stored": "the row names a host that was not started",
    "node.context.host_started": "the host runs, its kernel is not ready",
    "node.context.host_ready": "the kernel is ready, the row does not say that the context is made",
    "node.context.confirmed": "the row says so, the server has no answer",
    "node.context.run_stored": "a run is stored, its code was not sent",
    "node.context.run_sent": "the code is on its way to the host",
    "node.context.run_started": "the host has said that it runs",
    "node.context.run_ended": "the host has said that it is over, nobody was told",
    "node.context.interrupted": "an interrupt is on its way to the host",
    "node.context.host_killed": "the host is killed, for a restart or a delete",
    "node.context.host_dead": "the host is seen dead, nothing was done about it",
    "node.context.restarted": "another kernel is ready, the server has no answer",
    "node.context.deleting": "the row says that the context goes, its host runs",
    "node.context.removed": "host and row are gone, the server has no answer",
    # --- node: files
    "node.file.requested": "the agent was asked for a file operation",
    "node.file.data_sent": "bytes of a write are on their way to the agent",
    "node.file.commit_sent": "the end of the bytes is on its way: the agent may fsync and rename",
    "node.file.result": "the agent has said that the file is in place and on disk",
    # --- helper: each in the child that does the operation
    "helper.lease.leased": "a uid range is leased, the sandbox has no folder for its agent",
    "helper.lease.folders_made": "range and folders are there, the node has no answer",
    "helper.start.template": "after the step `template` of a start",
    "helper.start.gateway": "after the step `gateway` of a start",
    "helper.start.namespace": "after the step `namespace` of a start",
    "helper.start.disk": "after the step `disk` of a start",
    "helper.start.loop": "after the step `loop` of a start",
    "helper.start.idmap": "after the step `idmap` of a start",
    "helper.start.network": "after the step `network` of a start",
    "helper.start.overlay": "after the step `overlay` of a start",
    "helper.start.binds": "after the step `binds` of a start",
    "helper.start.cgroup": "after the step `cgroup` of a start",
    "helper.start.bundle": "after the step `bundle` of a start",
    "helper.start.runtime": "after the step `runtime` of a start: the machine runs, the node has no answer",
    "helper.reclaim.killed": "every process of the machine is dead",
    "helper.reclaim.gateway_removed": "its gateway is unmounted",
    "helper.reclaim.cgroups_removed": "its cgroups are gone",
    "helper.reclaim.runtime_removed": "the runtime's state is gone",
    "helper.reclaim.devices_gone": "its loop device is gone",
    "helper.reclaim.folder_removed": "disk and folder are gone, the uid range is leased",
    "helper.reclaim.uids_released": "all is given back, the node has no answer",
}

_folder: str | None = None


def watch(folder: Path) -> None:
    """Once, when a daemon starts."""
    global _folder
    _folder = str(folder) if folder.is_dir() else None


def reach(point: str) -> None:
    """The daemon is at this point. Does not return where that is armed."""
    if _folder is not None:
        _look(_folder, point)


def arm(folder: Path, point: str, *, nth: int = 1, victim: str = "self") -> None:
    """Whoever reaches the point for the `nth` time from now on dies. Raises KeyError for an unknown point."""
    POINTS[point]
    draft = folder / f".{point}"
    draft.write_text(f"{nth} {victim}")
    draft.chmod(0o666)
    draft.rename(folder / point)


def armed(folder: Path) -> list[str]:
    """Points that were armed and not reached as often as was asked for."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def make_folder(data_dir: Path) -> Path:
    """The folder that daemons of this data folder look into, from their next start on. For all uids: it is a test's."""
    folder = data_dir / "faults"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    return folder


def _look(folder: str, point: str) -> None:
    path = f"{folder}/{point}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink == 0:
            return  # another process was the n-th
        left, _, victim = os.read(fd, 64).decode().partition(" ")
        if int(left) > 1:
            os.pwrite(fd, f"{int(left) - 1} {victim}".encode().ljust(len(left) + 1 + len(victim)), 0)
            return
        Path(path).unlink()
        if victim.strip() == "parent":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os.close(fd)
