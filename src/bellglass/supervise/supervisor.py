"""The supervisor: starts lxcfs, resolver and proxy, helper, node and server in that order, restarts what dies, stops
them on SIGTERM.

Sandboxes are not its children and go on without it. It waits on pidfds and a signal descriptor; only the size of logs
is looked at now and then.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bellglass import __version__
from bellglass.datadir import DataDir
from bellglass.errors import BellglassError, NodeUnavailable, SandboxFailed
from bellglass.settings import Settings
from bellglass.supervise import control, egress, launch, logs, orphans, profile, wall
from bellglass.supervise.answers import TURN_S, Answers
from bellglass.supervise.control import Lock, Record, read_record, write_record
from bellglass.supervise.install import Installation
from bellglass.supervise.processes import ProcessId
from bellglass.times import now

STOP_GRACE_S = 10.0
RESTART_PAUSE_S = (0.0, 0.2, 1.0, 5.0)  # after the first, second ... early death in a row
EARLY_DEATH_S = 0.25
"""A daemon that lived no longer than this after it was ready, or never was, would die in a circle; what dies later is
missed at once."""
RENEW_S = 20.0
RENEW_AGAIN_MS = 500
Say = Callable[[str, float], None]


@dataclass(slots=True)
class Supervisor:
    """One run of an installation's daemons."""

    installation: Installation
    settings: Settings
    listen: str | None
    port: int | None
    say: Say
    """Told of each finished step and the seconds it took."""
    lock: Lock
    api_url: str = ""
    processes: dict[str, ProcessId] = field(default_factory=dict)
    _renew_due: bool = False
    _ready_at: dict[str, float] = field(default_factory=dict)
    _early_deaths: dict[str, int] = field(default_factory=dict)

    @property
    def uses_helper(self) -> bool:
        return self.settings["node.driver"] != "fake"

    def start(self) -> profile.Profile:
        """Bring everything up. On failure what was started is stopped again."""
        self._stop_orphans()
        self.processes["supervisor"] = ProcessId.of(os.getpid())
        try:
            self._timed("lxcfs", self._start_lxcfs)
            self._timed("proxy and resolver", self._start_egress)
            self._timed("helper and node" if self.uses_helper else "node", self._start_node)
            self._timed("server", self._start_server)
            found = profile.ensure(self.installation.data, self.api_url)
        except BaseException:
            self.stop()
            raise
        self._write_record()
        return found

    def start_node_alone(self) -> None:
        """Only what deleting sandboxes needs. On failure what was started is stopped again."""
        self._stop_orphans()
        try:
            self._start_lxcfs()
            self._start_node()
        except BaseException:
            self.stop()
            raise

    def run(self) -> None:
        """Until SIGTERM or SIGINT: restart what dies. The signals must be blocked already (see `block_signals`)."""
        signals = _SignalDescriptor()
        data = self.installation.data
        answers = Answers({"proxy": data.proxy_socket, "resolver": data.resolver_socket} if self.uses_helper else {})
        try:
            while True:
                self._renew_lxcfs()
                self._cut_logs()
                self._copy_host_files()
                watched = {
                    name: self.processes[name]
                    for name in ("node", "helper", "server", *egress.NAMES, "lxcfs")
                    if name in self.processes
                }
                poll = select.poll()
                poll.register(signals.fileno(), select.POLLIN)
                descriptors = {}
                for name, process in watched.items():
                    try:
                        descriptor = os.pidfd_open(process.pid)
                    except ProcessLookupError:
                        continue
                    descriptors[descriptor] = name
                    poll.register(descriptor, select.POLLIN)
                self._kill_what_hangs(answers)
                for descriptor in answers.descriptors:
                    poll.register(descriptor, select.POLLIN)
                if len(descriptors) == len(watched):
                    poll.poll(self._pause_ms(answers))
                for descriptor in descriptors:
                    os.close(descriptor)
                if signals.pending():
                    break
                if (lxcfs := self.processes.get("lxcfs")) is not None and not lxcfs.alive():
                    self._restart("lxcfs", signals)  # first: machines that start read from it
                for name in (*egress.NAMES, "node", "server"):
                    if name in self.processes and not self.processes[name].alive():
                        self._restart(name, signals)
                if (helper := self.processes.get("helper")) is not None and not helper.alive():
                    # Its socketpair has no other end to come back to: the node, which ends by itself at that, starts
                    # anew with another one. There is nothing that it could still finish.
                    self.processes["node"].kill()
                    self._restart("node", signals)
        finally:
            signals.close()
            answers.close()
            self.stop()

    def _kill_what_hangs(self, answers: Answers) -> None:
        """It is restarted as any that died."""
        for name in answers.look(self.processes):
            self._log("no answer: killed", name=name)
            self.processes[name].send(signal.SIGKILL)

    def _pause_ms(self, answers: Answers) -> float:
        if self._renew_due:
            return RENEW_AGAIN_MS
        return TURN_S * 1000 if answers.descriptors else logs.LOOK_AGAIN_MS

    def stop(self) -> None:
        """Server, then node (the helper goes with it), proxy and resolver, then lxcfs where no sandbox needs it.
        Sandboxes go on, without a way out."""
        for name in ("server", "node", "helper", *reversed(egress.NAMES)):
            if process := self.processes.pop(name, None):
                process.stop(STOP_GRACE_S)
                launch.reap(process)
        wall.lower(self.installation.id)
        if "lxcfs" in self.processes and not self.installation.data.machines():
            # Nobody reads from it any more, and its load thread takes seconds to notice SIGTERM.
            self.processes.pop("lxcfs").stop(0.0)
            _unmount_lxcfs(self.installation.data)
        self.processes.pop("supervisor", None)
        self._write_record()

    def _stop_orphans(self) -> None:
        """Daemons of a supervisor that was killed: they hold the sockets, so they make room first."""
        if last := read_record(self.installation.data):
            for name in ("server", "node", "helper", *reversed(egress.NAMES)):
                if process := last.processes.get(name):
                    process.stop(STOP_GRACE_S)
        for process in orphans.find(self.installation):
            process.stop(STOP_GRACE_S)

    # --- the daemons ------------------------------------------------------------------------------------

    def _start_lxcfs(self) -> None:
        if not self.uses_helper:
            return
        data = self.installation.data
        last = read_record(data)
        if last is not None and last.alive("lxcfs"):
            self.processes["lxcfs"] = last.processes["lxcfs"]
            return
        program = shutil.which("lxcfs", path="/usr/bin:/usr/sbin:/usr/local/bin")
        if program is None:
            raise SandboxFailed(
                "lxcfs is not installed: sandboxes would see the host's memory and CPUs", hint="apt-get install lxcfs"
            )
        _unmount_lxcfs(data)
        self.processes["lxcfs"] = launch.start_lxcfs(self.installation, program)
        self._ready_at["lxcfs"] = time.monotonic()
        # Machines that an earlier one served read from nothing now.
        self._renew_due = data.sandboxes_dir.is_dir() and any(data.sandboxes_dir.iterdir())

    def _renew_lxcfs(self) -> None:
        """Running machines are to read from the lxcfs that was started last. Without a node, later."""
        if not self._renew_due:
            return
        try:
            answer = control.ask_node(self.installation.data, "node.renew_lxcfs", timeout_s=RENEW_S)
        except NodeUnavailable:
            return
        except BellglassError as error:
            self._log("machines can't read from lxcfs", message=str(error))
        else:
            self._log("machines read from lxcfs again", renewed=answer["renewed"])
        self._renew_due = False

    def _start_egress(self) -> None:
        if not self.uses_helper:
            return
        egress.copy_host_files(self.installation.data, self.settings)
        for name in egress.NAMES:
            self._start_egress_daemon(name)

    def _start_egress_daemon(self, name: str) -> None:
        config = egress.configuration(self.installation, self.settings, name)
        self.processes[name] = launch.start_egress(self.installation, name, config).process
        self._ready_at[name] = time.monotonic()

    def _copy_host_files(self) -> None:
        if not self.uses_helper:
            return
        try:
            changed = egress.copy_host_files(self.installation.data, self.settings)
        except OSError as error:
            self._log("the host's files can't be copied for the proxy", error=str(error))
            return
        if changed:
            self._log("the host's files were copied for the proxy", names=changed)

    def _start_node(self) -> None:
        started = launch.start_node(self.installation, with_helper=self.uses_helper)
        self.processes["node"] = started.process
        self._ready_at["node"] = time.monotonic()
        if started.helper is not None:
            self.processes["helper"] = started.helper

    def _start_server(self) -> None:
        started = launch.start_server(self.installation, listen=self.listen, port=self.port)
        self.processes["server"] = started.process
        self._ready_at["server"] = time.monotonic()
        self.api_url = str(started.ready["api_url"])
        # A restarted server must come back at the same address, also where the port was chosen by the kernel.
        self.port = int(self.api_url.rpartition(":")[2])

    def _restart(self, name: str, signals: _SignalDescriptor) -> None:
        launch.reap(self.processes[name])
        ready_at = self._ready_at.pop(name, None)
        early = ready_at is None or time.monotonic() - ready_at < EARLY_DEATH_S
        deaths = self._early_deaths[name] = self._early_deaths.get(name, 0) + 1 if early else 0
        pause_s = RESTART_PAUSE_S[min(max(deaths - 1, 0), len(RESTART_PAUSE_S) - 1)]
        self._log("restart", name=name, early_deaths=deaths, pause_s=pause_s)
        if signals.wait(pause_s):
            return
        if name == "node" and (helper := self.processes.pop("helper", None)):
            helper.kill()  # its node is dead, so it only ends
        try:
            if name in egress.NAMES:
                self._start_egress_daemon(name)
            else:
                {"node": self._start_node, "server": self._start_server, "lxcfs": self._start_lxcfs}[name]()
        except (BellglassError, OSError) as error:
            self._log("restart failed", name=name, message=str(error))
        self._write_record()

    def _cut_logs(self) -> None:
        try:
            cut = logs.rotate(self.installation.data.logs_dir, self.settings["supervisor.log_limit"])
        except OSError as error:
            self._log("logs can't be cut", error=str(error))
            return
        if cut:
            self._log("logs were cut", names=cut)

    # --- small things -----------------------------------------------------------------------------------

    def _timed(self, what: str, act: Callable[[], Any]) -> None:
        start = time.monotonic()
        act()
        self.say(what, time.monotonic() - start)

    def _write_record(self) -> None:
        write_record(self.installation.data, Record(__version__, self.api_url, now(), dict(self.processes)))

    def _log(self, event: str, **more: Any) -> None:
        line = json.dumps({"at": now(), "event": event, **more}) + "\n"
        # A full disk must not end what is told of; standard error is a file on the same disk.
        with suppress(OSError), open(self.installation.data.logs_dir / "supervisor.log", "a") as log:
            log.write(line)


def block_signals() -> None:
    """SIGTERM and SIGINT are only ever taken by `Supervisor.run`, never in the middle of a start."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


class _SignalDescriptor:
    """SIGTERM and SIGINT as something that poll(2) can wait for: a wake-up pipe that Python's handlers write to."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._previous = {
            number: signal.signal(number, lambda *_: os.write(self._write, b"!"))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})

    def fileno(self) -> int:
        return self._read

    def pending(self) -> bool:
        return self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)


def _unmount_lxcfs(data: DataDir) -> None:
    """Take away the mount that a dead lxcfs left. Raises SandboxFailed if it stays."""
    with open("/proc/self/mounts") as mounts:
        if not any(line.split()[1] == str(data.lxcfs_dir) for line in mounts):
            return
    done = subprocess.run(["umount", "--lazy", str(data.lxcfs_dir)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxFailed(f"umount {data.lxcfs_dir}: {done.stderr.strip()}")
