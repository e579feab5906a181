"""One execution that runs: its stream to the agent, its deadline, its end.

What the agent says about the outcome is a claim. Timeouts and kills for memory are the node's own verdicts, a killed
tree is looked at through its cgroup, and where the agent doesn't tell the end of a tree that is gone, the node does.
The one thing only the agent knows is an exit code, and that is the sandbox's own affair.
"""

from __future__ import annotations

import asyncio
import logging
import signal as signals
import sqlite3
import time
from typing import Any

from bellglass import faultpoints
from bellglass.errors import (
    AgentLost,
    BellglassError,
    Conflict,
    InternalError,
    NoCapacity,
    NodeUnavailable,
    NotSupported,
)
from bellglass.node.executions import record, starting, verdict
from bellglass.node.executions.host import Host
from bellglass.node.executions.kill import TreeKill
from bellglass.node.executions.log import Cursor, ExecutionLog
from bellglass.node.executions.output import Output
from bellglass.node.executions.spec import ExecutionSpec
from bellglass.node.executions.stdin import StdinFeed
from bellglass.node.executions.terminal import Terminal
from bellglass.node.executions.turns import StartKnown
from bellglass.node.guestlink.session import LINK_WAIT_S
from bellglass.node.guestlink.stream import GuestStream
from bellglass.wire import guest
from bellglass.wire.frames import Frame, FrameError
from bellglass.wire.guest import STDERR, STDIN, GuestType

HANGUP_GRACE_S = 30.0
NEW_ONE = "create a new sandbox: it gets this release's agent"
log = logging.getLogger("bellglass.executions")


class Run(GuestStream):
    """Made by the registry, then `begin`. `ended` is set at the end, after the record was stored."""

    def __init__(self, host: Host, spec: ExecutionSpec, output: ExecutionLog, *, begun: bool = False) -> None:
        self.spec = spec
        self.log = output
        self.ended = asyncio.Event()
        self.overlapped = False
        """Another execution, or background processes of one that has ended, ran at some time while this one did."""
        self.oom_base = 0
        self.deadline_at: float | None = None
        """Wall clock."""
        self.started_at = time.time()
        self.timed_out = False
        self.error: BellglassError | None = None
        """Why there is no outcome: it never started, or was lost."""
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._pid: int | None = None
        self.start_known = StartKnown()
        self._sent_once = False
        self._readopted = begun
        self._output = Output(output, lambda channel, offset: self._send(guest.encode_ack(self.id, channel, offset)))
        self._readers = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._final: dict[str, Any] | None = None
        self._kill = TreeKill(host, spec.id)
        self.stdin: StdinFeed | None = None
        if spec.stdin is not None or spec.stdin_open:
            self.stdin = StdinFeed(self._send, spec.stdin, stays_open=spec.stdin_open, begun=begun)

        self.terminal = None if spec.terminal is None else Terminal(self, host, spec.terminal)

    # --- life -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Register with the session; START goes out now, or as soon as there is a link."""
        self._host.session.attach(self)
        if not self.running:
            return  # it could not be started
        self._arm_deadline()
        wait_s = starting.START_S if self._host.session.link_is_up else LINK_WAIT_S
        self._timers.append(self._loop.call_later(wait_s, self._never_started))

    def resume(self, *, stream_id: int, oom_base: int, deadline_at: float | None, started_at: float) -> None:
        """Go on with an execution of an earlier life of the node, before the session has a link."""
        self.id, self.oom_base, self.deadline_at, self.started_at = stream_id, oom_base, deadline_at, started_at
        self._sent_once = True
        # Whether it was started at all the agent knows, if it answers.
        self._timers.append(self._loop.call_later(LINK_WAIT_S, self.start_known.set))
        self._output.resume(keep_place=not self.spec.detach)
        self._host.session.adopt(self)
        self._arm_deadline()

    async def started(self) -> None:
        """Until the program runs or never will. Raises why it doesn't."""
        await self.start_known.wait()
        if self.error is not None:
            raise self.error

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    def record(self) -> dict[str, Any]:
        """The Execution as JSON, as it stands."""
        return self._final or self._record("running")

    def suspend(self) -> None:
        """The node stops, the execution goes on: nothing more is stored."""
        self._cancel_timers()
        self._output.close()
        self._final = self._record("running")
        self.error = AgentLost("the node is stopping", hint="attach again with the execution's id")
        self.log.close()
        self.start_known.set()
        self.ended.set()

    # --- for callers ------------------------------------------------------------------------------------

    def signal(self, number: int, *, whole_tree: bool) -> None:
        """Raises Conflict when it has ended, AgentLost without a link."""
        if not self.running:
            raise Conflict(f"execution {self.spec.id} has ended", details={"state": self.record()["state"]})
        if number == signals.SIGKILL and whole_tree:
            self.kill()
        elif not self._send(guest.encode_signal(self.id, number, whole_tree=whole_tree)):
            raise AgentLost("the sandbox's agent does not answer", hint="try again")

    def kill(self) -> None:
        """SIGKILL to the whole tree, and see to it that it is gone. Safe to repeat."""
        if not self.running or self._kill.begun:
            return
        self._output.let_go()  # a slow reader must not hold up the end
        self._kill.begin(self.id)
        self._output.acknowledge()
        self._host.spawn(self._see_it_dead(), f"kill:{self.spec.id}")

    def reader_attached(self, cursor: Cursor, *, starter: bool = False, holds: bool = False) -> None:
        """`starter`: it started this waiting execution, or goes on for the one that did. `holds`: the program is to
        wait for this reader too, whoever started it."""
        self._readers += 1
        if ((starter and not self.spec.detach) or holds) and self.running and not self._kill.begun:
            self._output.starter_attached(cursor)

    def reader_progressed(self) -> None:
        self._output.acknowledge()

    def reader_detached(self, cursor: Cursor, *, hung_up: bool, keep_place: bool = True) -> None:
        """`hung_up`: the client went away, rather than read to the end or lose its server. `keep_place`: of a reader
        that held the program back, which may come back."""
        self._readers -= 1
        if self.running:
            self._output.reader_detached(cursor, keep_place=keep_place)
        if hung_up and not self.spec.detach and self._readers == 0 and self.running:
            self._timers.append(self._loop.call_later(HANGUP_GRACE_S, self._nobody_waits))

    def input(self) -> StdinFeed:
        """Raises Conflict when standard input is not open."""
        if self.stdin is None:
            raise Conflict(
                f"standard input of execution {self.spec.id} is not open", hint="start it with stdin_open=true"
            )
        return self.stdin

    async def end_input(self, offset: int | None = None) -> None:
        """Its end comes behind what was written, also after a restart of the node. Raises Conflict."""
        if self.terminal is not None:
            raise Conflict("a terminal's input has no end", hint="write \\x04 (Ctrl-D): programs take that for one")
        await self.input().end(lambda at: self._host.input_ended(self, at), offset)

    # --- GuestStream ------------------------------------------------------------------------------------

    def link_restored(self, *, known: bool) -> None:
        self._output.link_restored()
        if known:
            if self.stdin is not None and (hello := self._host.session.hello) is not None:
                self.stdin.link_up(self.id, hello.inputs.get(self.id))
            if self.terminal is not None:
                self.terminal.link_up()
            if self._kill.begun:
                self._send(guest.encode_abort(self.id))
        elif self._pid is None and self._readopted:
            # Killed before the agent had it: an agent forgets only what it is told to, once the outcome is stored.
            self._fail(NodeUnavailable("the node was restarted before the command was started", hint="send it again"))
        elif self._pid is None:
            self._send_start()
        else:
            self._lost(AgentLost("the sandbox's agent lost this execution; its outcome is unknown"))

    def link_lost(self) -> None:
        """`link_restored` goes on, or the deadline of the start passes."""
        if self.stdin is not None:
            self.stdin.link_down()

    def session_closed(self, error: BellglassError) -> None:
        if self.running:
            self._lost(error)

    def frame_received(self, frame: Frame) -> None:
        if frame.type == GuestType.DATA:
            self._on_data(frame)
        elif frame.type == GuestType.EXIT:
            self._on_exit(guest.decode_exit(frame.payload))
        elif frame.type == GuestType.EOF:
            self._check_begun(frame)
            self._output.end_of_stream(frame)
        elif frame.type == GuestType.STARTED:
            self._pid = guest.decode_pid(frame.payload)
            faultpoints.reach("node.exec.started")
            self.start_known.set(answered=True)
        elif frame.type == GuestType.ACK:
            if self.stdin is None or frame.channel != STDIN:
                raise FrameError(f"ACK on channel {frame.channel}")
            self.stdin.acknowledged(guest.decode_offset(frame.payload)[0])
        elif frame.type == GuestType.FAILED:
            self._on_failed(guest.decode_failure(frame.payload))

    # --- frames -----------------------------------------------------------------------------------------

    def _send_start(self) -> None:
        spec, groups = self.spec, self._host.groups
        if self.terminal is not None and not self.terminal.agent_can():
            self._fail(NotSupported("the sandbox's agent is of an earlier release and has no terminals", hint=NEW_ONE))
            return
        if not self._sent_once:
            try:
                self._host.run_started(self)
            except NoCapacity as error:  # not known of after a restart, it must not begin
                self._fail(error)
                return
            except (OSError, sqlite3.Error) as error:  # the same
                message = f"execution {spec.id} can't be recorded on the host: {error}"
                self._fail(NoCapacity(message, hint="free some disk of the node", details={"resource": "disk"}))
                return
        try:
            descriptor = groups.make(spec.id) if groups is not None else None
        except OSError as error:
            self._fail(InternalError(f"no cgroup for execution {spec.id}: {error}"))
            return
        frames = starting.frames(
            self.id,
            spec,
            default_cwd=self._host.default_cwd,
            stdin=self.stdin is not None,
            descriptor=descriptor is not None,
        )
        self._sent_once = True
        self._host.session.send(*frames, descriptor=descriptor)
        faultpoints.reach("node.exec.sent")
        if self.stdin is not None and self._host.session.link_is_up:
            self.stdin.link_up(self.id, None)

    def _check_begun(self, frame: Frame) -> None:
        if self._pid is None:
            raise FrameError(f"output on channel {frame.channel} before STARTED")

    def _on_data(self, frame: Frame) -> None:
        self._check_begun(frame)
        self._host.session.budget.earn_bytes(self._output.data(frame))

    def _on_exit(self, told: guest.GuestExit) -> None:
        if self._pid is None or not self._output.ended:
            raise FrameError("EXIT before the end of the output")
        faultpoints.reach("node.exec.exit_told")
        if self._kill.begun:
            self._kill.tell(told)  # `_see_it_dead` goes on
        else:
            self._finish(told)

    def _on_failed(self, failure: guest.GuestFailure) -> None:
        if self._pid is not None:
            self._lost(AgentLost(f"the agent could not go on with it: {failure.message}"))
        elif (code := verdict.shell_code(failure)) is not None:
            self.log.append(STDERR, verdict.shell_message(self.spec.argv[0], failure))
            self.start_known.set()
            self._finish(guest.GuestExit(code, None, 0, 0, 0))
        else:
            self._fail(verdict.start_error(failure, self.spec))

    # --- ends -------------------------------------------------------------------------------------------

    def _finish(self, told: guest.GuestExit | None) -> None:
        """The outcome is known: `told` by the agent, or None for a tree that the node killed and saw gone."""
        succeeded = told is not None and told.exit_code == 0
        oom_kills = 0 if succeeded else self._oom_kills() - self.oom_base
        outcome = verdict.decide(told, timed_out=self.timed_out, oom_kills=oom_kills, overlapped=self.overlapped)
        self.start_known.set()
        self._end(self._record("exited") | outcome)

    def _lost(self, error: BellglassError) -> None:
        self.error = error
        self.start_known.set()
        self._end(self._record("lost"))

    def _fail(self, error: BellglassError) -> None:
        """It never ran: nothing is kept, and the id can be used again."""
        self.error = error
        self.start_known.set()
        self._end(None)

    def _end(self, final: dict[str, Any] | None) -> None:
        if not self.running:
            return
        self._cancel_timers()
        if final is not None:
            ended_at = time.time()
            final["ended_at"] = record.rfc3339(ended_at)
            final["duration_s"] = round(max(ended_at - self.started_at, 0.0), 6)
            final["truncated"] = self.log.truncated
        self._final = final or self._record("running")
        try:
            self._host.run_finished(self, final)
        except Exception:  # a record that can't be stored must not keep the outcome from those who wait for it
            log.exception("the end of execution %s is not stored", self.spec.id)
        self._host.session.release(self)
        if self.stdin is not None:
            self.stdin.close(Conflict(f"execution {self.spec.id} has ended"))
        if self.terminal is not None:
            self.terminal.close()
        self._output.close()
        self.ended.set()
        self.log.finish()

    async def _see_it_dead(self) -> None:
        if await self._kill.seen_dead():
            self._finish(self._kill.told)

    def _deadline_passed(self) -> None:
        if self.running:
            faultpoints.reach("node.exec.deadline")
            self.timed_out = not self._kill.begun
            self.kill()

    def _nobody_waits(self) -> None:
        if self._readers == 0:
            self.kill()

    def _never_started(self) -> None:
        if self.start_known.is_set():
            return
        if self._sent_once and (extra_s := starting.extra_s(self._host)) > 0:
            self._timers.append(self._loop.call_later(extra_s, self._never_started))
            return
        if not self._sent_once:
            self._fail(AgentLost("the sandbox's agent does not answer; the command was not started", hint="try again"))
            return
        if self._host.groups is not None:
            self._host.groups.kill(self.spec.id)
        self._lost(AgentLost("the sandbox's agent does not say whether the command was started"))

    # --- small things -----------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> bool:
        return self._host.session.send(frame)

    def _arm_deadline(self) -> None:
        if self.deadline_at is None and self.spec.timeout_s is not None:
            self.deadline_at = self.started_at + self.spec.timeout_s
        if self.deadline_at is not None:
            delay_s = max(self.deadline_at - time.time(), 0.0)
            self._timers.append(self._loop.call_later(delay_s, self._deadline_passed))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _oom_kills(self) -> int:
        try:
            return self._host.groups.oom_kills() if self._host.groups is not None else self.oom_base
        except FileNotFoundError:
            return self.oom_base  # the whole machine is gone; why, its own end tells

    def _record(self, state: str) -> dict[str, Any]:
        return record.render(
            self._host.sandbox_id,
            self.spec,
            self.log,
            state=state,
            pid=self._pid,
            started_at=self.started_at,
            terminal=None if self.terminal is None else self.terminal.size,
        )
