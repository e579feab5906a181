"""The executions of one sandbox, by id: started once, attached to as often as wanted, kept when finished.

A finished one leaves memory at once; its record is a row and its log lies on the disk, so an attach or a look at it
works the same way as for one that runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bellglass import faultpoints
from bellglass.errors import AgentLost, BellglassError, Conflict, LimitExceeded, NotFound
from bellglass.node.executions import budget
from bellglass.node.executions.host import Host
from bellglass.node.executions.log import ExecutionLog
from bellglass.node.executions.records import Records, StoredExecution, Wanted
from bellglass.node.executions.run import Run
from bellglass.node.executions.spec import ExecutionSpec, read_terminal
from bellglass.node.executions.timeline import Timeline
from bellglass.wire.guest import STDERR, STDOUT

log = logging.getLogger("bellglass.executions")
STATES = ("running", "exited", "lost")
REAP_S = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """From the settings: bytes of one log, executions at once, finished ones kept."""

    log_bytes: int
    at_once: int
    kept: int


@dataclass(frozen=True, slots=True)
class View:
    """An execution to read from: it runs (`run`), or it is over."""

    id: str
    log: ExecutionLog
    stored: Mapping[str, Any]
    run: Run | None
    error: BellglassError | None = None

    def record(self) -> dict[str, Any]:
        return self.run.record() if self.run is not None else dict(self.stored)

    def failure(self) -> BellglassError | None:
        """Why it has no outcome, once it is over."""
        return self.run.error if self.run is not None else self.error


class Executions:
    """`host` is the sandbox. `begin` gets what an earlier life of the node left running, before the session starts."""

    def __init__(self, host: Host, records: Records, folder: Path, limits: Limits) -> None:
        self.running: dict[str, Run] = {}
        self._host = host
        self._records = records
        self._folder = folder
        self._limits = limits
        self._timeline = Timeline(folder)
        self._finished: int | None = None
        """None until the first one ends: a restarted node has no time to look through all records."""
        self._log_bytes = 0
        self._groups_left: set[str] = set()
        self._background: set[str] = set()
        """Those of them that had processes when they were last looked at."""

    # --- starting ---------------------------------------------------------------------------------------

    def create(self, spec: ExecutionSpec, *, before_new: Callable[[], None] | None = None) -> tuple[Run | None, View]:
        """Start it, or find the one of the same id: then the first value is None. Raises Conflict for another spec
        under that id, LimitExceeded when too many run, and what `before_new` raises before a new one is made."""
        if (view := self.known(spec)) is not None:
            return None, view
        if before_new is not None:
            before_new()
        if len(self.running) >= self._limits.at_once:
            raise LimitExceeded(
                f"{len(self.running)} executions run in this sandbox, the most at once is {self._limits.at_once}",
                hint="wait for one to end, or end one",
            )
        run = Run(self._host, spec, self._new_log(spec.id))
        run.overlapped = bool(self._background)
        for other in self.running.values():
            run.overlapped = other.overlapped = True
        if self._host.groups is not None:
            run.oom_base = self._host.groups.oom_kills()
        self.running[spec.id] = run
        self._forget_group(spec.id)  # of an attempt that failed: not to be removed under this one's feet
        try:
            run.begin()
        except BaseException:
            self.running.pop(spec.id, None)
            raise
        return run, _view_of(run)

    def known(self, spec: ExecutionSpec) -> View | None:
        """The one of that id, None where there is none yet. Raises Conflict for another spec under that id."""
        if (run := self.running.get(spec.id)) is not None:
            self._check_same(run.spec.digest, spec)
            return _view_of(run)
        if (stored := self._records.get(self._host.sandbox_id, spec.id)) is not None:
            self._check_same(stored.digest, spec)
            return self._finished_view(stored)
        return None

    def adopt(self) -> None:
        """Executions that ran when the node stopped: their streams wait for the agent's next HELLO. Groups of ended
        ones that it had no time to remove wait for `remove_groups`."""
        for stored in self._records.running(self._host.sandbox_id):
            output = ExecutionLog.reopen(self._folder, stored.id, self._ring_bytes())
            output.on_append = partial(self._timeline.wrote, stored.id)
            run = Run(self._host, _spec_of(stored, self._input_file(stored.id)), output, begun=True)
            run.overlapped = True  # nobody looked meanwhile
            if run.stdin is not None and "stdin_end" in stored.resume:
                run.stdin.end_known()
            self.running[stored.id] = run
            run.resume(
                stream_id=stored.stream_id,
                oom_base=int(stored.resume.get("oom_base", 0)),
                deadline_at=stored.resume.get("deadline_at"),
                started_at=float(stored.resume.get("started_at", 0.0)),
            )
        if self._host.groups is not None:
            self._groups_left = set(self._host.groups.executions()) - set(self.running)

    def suspend(self) -> None:
        """The node stops: what runs goes on, and is adopted by the next node."""
        for run in list(self.running.values()):
            run.suspend()
        self.running.clear()
        self._timeline.close()

    # --- looking ----------------------------------------------------------------------------------------

    def view(self, execution_id: str) -> View:
        """Raises NotFound."""
        if (run := self.running.get(execution_id)) is not None:
            return _view_of(run)
        return finished(self._records, self._host.sandbox_id, self._folder, execution_id)

    def live(self, execution_id: str) -> Run:
        """Raises NotFound, or Conflict when it has ended."""
        if (run := self.running.get(execution_id)) is not None:
            return run
        view = self.view(execution_id)
        raise Conflict(f"execution {execution_id} has ended", details={"state": view.record()["state"]})

    def page(self, wanted: Wanted) -> list[dict[str, Any]]:
        """Records, the newest first; of those that run as they stand now."""
        rows = self._records.page(self._host.sandbox_id, wanted)
        found = [self.running[row.id].record() if row.id in self.running else row.record for row in rows]
        if wanted.pid is not None:  # among those that run it is nobody's row's to know
            found += [record for run in self.running.values() if _fits(record := run.record(), wanted)]
            found.sort(key=lambda record: record["id"], reverse=True)
        return found[: wanted.limit]

    def find(self, *, tag: str | None = None, pid: int | None = None) -> dict[str, Any]:
        """The record of the execution with this tag or pid: the newest that runs, else the newest that has ended, for
        both may be used again. Raises NotFound."""
        wanted = Wanted(limit=1, tag=tag, pid=pid)
        running = [record for run in self.running.values() if _fits(record := run.record(), wanted)]
        found = max(running, key=lambda record: str(record["id"]), default=None) or next(iter(self.page(wanted)), None)
        if found is None:
            what = f"with the tag {tag!r}" if tag is not None else f"with the pid {pid}"
            raise NotFound(f"no execution {what} in this sandbox", details={"field": "tag" if tag else "pid"})
        return found

    # --- called by the host -----------------------------------------------------------------------------

    def stored(self, run: Run) -> None:
        """The run has its stream id: from here on a restarted node would find it. Raises OSError when the host's disk
        does not take its input."""
        if run.spec.stdin:
            path = self._input_file(run.spec.id)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(run.spec.stdin)
        resume = {
            "oom_base": run.oom_base,
            "deadline_at": run.deadline_at,
            "started_at": run.started_at,
            "stdin": "open" if run.spec.stdin_open else "given" if run.stdin is not None else None,
        }
        row = StoredExecution(run.spec.id, run.id, run.spec.digest, "running", run.record(), resume)
        self._records.insert(self._host.sandbox_id, row)
        self._timeline.started(run.spec.id)
        faultpoints.reach("node.exec.stored")

    def input_ended(self, run: Run, offset: int) -> None:
        self._records.input_ended(self._host.sandbox_id, run.spec.id, offset)

    def resized(self, run: Run) -> None:
        self._records.resized(self._host.sandbox_id, run.spec.id, run.record()["terminal"])

    def ended(self, run: Run, record: dict[str, Any] | None) -> None:
        self.running.pop(run.spec.id, None)
        if self._host.groups is not None:
            self._groups_left.add(run.spec.id)
        if run.spec.stdin:
            self._input_file(run.spec.id).unlink(missing_ok=True)
        if record is None:
            self._records.forget(self._host.sandbox_id, run.spec.id)
            if run.log.total_bytes:
                run.log.delete()
        else:
            self._records.finish(self._host.sandbox_id, run.spec.id, record)
            self._timeline.ended(run.spec.id)
            faultpoints.reach("node.exec.record_stored")
            if self._finished is None:
                sizes = self._records.finished_sizes(self._host.sandbox_id, self._limits.log_bytes)
                self._finished, self._log_bytes = sizes
            else:
                self._finished += 1
                self._log_bytes += min(run.log.total_bytes, self._limits.log_bytes)
            self._prune(self._finished)
        if not self.running:
            self._timeline.close()

    def remove_groups(self) -> bool:
        """Remove the groups of ended executions that are empty; True while background processes keep some."""
        groups = self._host.groups
        if groups is None:
            return False
        for execution_id in list(self._groups_left):
            try:
                groups.remove(execution_id)
            except OSError:  # EBUSY: background processes live on in it, as they may
                self._background.add(execution_id)
                for run in self.running.values():
                    run.overlapped = True  # one of them may be killed for memory in its stead
                continue
            self._forget_group(execution_id)
            faultpoints.reach("node.exec.group_removed")
        return bool(self._groups_left)

    # --- inside -----------------------------------------------------------------------------------------

    def _forget_group(self, execution_id: str) -> None:
        self._groups_left.discard(execution_id)
        self._background.discard(execution_id)

    def _new_log(self, execution_id: str) -> ExecutionLog:
        log = ExecutionLog(self._folder, execution_id, self._ring_bytes())
        log.on_append = partial(self._timeline.wrote, execution_id)
        return log

    def _ring_bytes(self) -> int:
        return budget.ring_bytes(self._limits.log_bytes, (run.log.limit_bytes for run in self.running.values()))

    def _input_file(self, execution_id: str) -> Path:
        """Input that came with the request, until the execution ends."""
        return self._folder / f"{execution_id}.stdin"

    def _check_same(self, digest: str, spec: ExecutionSpec) -> None:
        if digest != spec.digest:
            raise Conflict(
                f"execution {spec.id} exists and is another command",
                hint="make a new id for each command; the same id attaches to the same one",
                details={"field": "id"},
            )

    def _finished_view(self, stored: StoredExecution) -> View:
        return _finished_view(stored, self._folder)

    def _prune(self, finished: int) -> None:
        """The oldest finished ones go when there are too many, or their logs are too long together."""
        while finished > self._limits.kept or self._log_bytes > budget.KEPT_LOGS * self._limits.log_bytes:
            oldest = self._records.oldest_finished(self._host.sandbox_id)
            if oldest is None:
                return
            execution_id, output_bytes = oldest
            self._records.forget(self._host.sandbox_id, execution_id)
            finished = self._finished = finished - 1
            if output_bytes:
                self._log_bytes -= min(output_bytes, self._limits.log_bytes)
                ExecutionLog(self._folder, execution_id, 0).delete()


def finished(records: Records, sandbox_id: str, folder: Path, execution_id: str) -> View:
    """A finished execution from its row and its log, whether its sandbox still exists or not. Raises NotFound."""
    stored = records.get(sandbox_id, execution_id)
    if stored is None:
        raise NotFound(f"no execution {execution_id!r} in this sandbox", details={"field": "id"})
    return _finished_view(stored, folder)


def _fits(record: Mapping[str, Any], wanted: Wanted) -> bool:
    return (
        (wanted.before is None or record["id"] < wanted.before)
        and wanted.state in (None, record["state"])
        and wanted.tag in (None, record["tag"])
        and wanted.pid in (None, record["pid"])
    )


def _view_of(run: Run) -> View:
    return View(run.spec.id, run.log, {}, run)


def _finished_view(stored: StoredExecution, folder: Path) -> View:
    record = stored.record
    output = ExecutionLog(folder, stored.id, 0)
    if record.get("output_bytes"):
        totals = {STDOUT: int(record.get("stdout_bytes", 0)), STDERR: int(record.get("stderr_bytes", 0))}
        output = ExecutionLog.reopen(folder, stored.id, 0, totals=totals)
    output.finish()
    error = None
    if stored.state != "exited":
        error = AgentLost("this execution's sandbox ended before it did; its outcome is unknown")
    return View(stored.id, output, stored.record, None, error)


def _spec_of(stored: StoredExecution, input_file: Path) -> ExecutionSpec:
    """As much of the spec as a running execution still needs."""
    given = stored.resume.get("stdin")
    record = stored.record
    return ExecutionSpec(
        id=stored.id,
        command=record["command"],
        argv=("",),
        env={},
        cwd=record["cwd"],
        user=record["user"],
        timeout_s=record["timeout_s"],
        # Without its file: the node died at its very end, and all of the input had arrived.
        stdin=(input_file.read_bytes() if input_file.exists() else b"") if given == "given" else None,
        stdin_open=given in ("open", True),  # True: of an earlier version
        detach=record["detached"],
        digest=stored.digest,
        tag=record.get("tag"),
        terminal=read_terminal(record.get("terminal")),
    )
