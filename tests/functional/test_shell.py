"""`bellglass shell` on a terminal of this side, as somebody sits at it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from typing import Any

from bellglass.testing.stack import Stack, bellglass_command


class Sitting:
    """The command line with a terminal of its own: what it shows, and keys."""

    def __init__(self, stack: Any, *words: str) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.resize(100, 30)
        environment = {**os.environ, **stack.environment, "TERM": "xterm"}
        self.process = subprocess.Popen(
            [*bellglass_command(), "shell", *words],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.slave = slave
        self.seen = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, wanted: bytes, seconds: float = 60.0) -> bytes:
        deadline = time.monotonic() + seconds
        while wanted not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{wanted!r} did not come: {self.seen[-2000:]!r}"
            self.seen += os.read(self.master, 65536)
        end = self.seen.index(wanted) + len(wanted)
        found, self.seen = self.seen[:end], self.seen[end:]
        return found

    def ask(self, line: str, wanted: bytes) -> bytes:
        self.type(line + "\r")
        return self.until(wanted)

    def end(self) -> int:
        """Its exit code; the terminal must be as it was."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:  # what it still shows must not hold it up
            assert time.monotonic() < deadline, self.seen[-2000:]
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before, "raw was undone"
        self.close()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.master, self.slave):
            try:
                os.close(fd)
            except OSError:
                pass  # closed already


def test_somebody_works_in_it(stack: Any, shared_box: Any) -> None:
    sitting = Sitting(stack, shared_box.id)
    try:
        sitting.until(b"$ ")
        assert b"30 100" in sitting.ask("stty size; echo $TERM", b"xterm\r\n")
        sitting.resize(61, 17)
        os.kill(sitting.process.pid, signal.SIGWINCH)
        for _ in range(100):
            if b"17 61" in sitting.ask("stty size; echo D''ONE", b"DONE\r\n"):
                break
        else:
            raise AssertionError("the new size never came")
        sitting.ask("sh -c \"echo go''ing; exec sleep 1000\"", b"going\r\n")
        sitting.type("\x03")
        sitting.until(b"^C")
        sitting.ask("echo st''ill", b"still\r\n")
        assert b"~x" in sitting.ask("~~x", b"not found"), "two of them type one"
        sitting.type("exit 7\r")
        assert sitting.end() == 7
    finally:
        sitting.close()


def test_leaving_and_coming_back(stack: Any, shared_box: Any) -> None:
    sitting = Sitting(stack, shared_box.id)
    try:
        sitting.until(b"$ ")
        sitting.ask("MARK=kept; sleep 0.1; echo he''re", b"here\r\n")
        sitting.type("\r~.")
        sitting.until(b"it goes on: bellglass shell ")
        execution = re.search(rb"--attach (\w+)", sitting.until(b"\n"))
        assert execution is not None and sitting.end() == 0
        back = Sitting(stack, shared_box.id, "--attach", execution[1].decode())
        try:
            back.until(b"here\r\n")  # what was shown before
            back.ask("echo still-$MARK", b"still-kept\r\n")
            back.type("exit\r")
            assert back.end() == 0
        finally:
            back.close()
    finally:
        sitting.close()


def test_hanging_up_ends_what_was_begun(stack: Any, shared_box: Any) -> None:
    sitting = Sitting(stack, shared_box.id, "-c", "echo be''gun; sleep 1000")
    try:
        sitting.until(b"begun\r\n")
        (running,) = shared_box.executions(state="running")
        sitting.process.send_signal(signal.SIGTERM)
        assert sitting.end() == 143
        assert shared_box.execution(running.id).wait().signal == "SIGKILL"
    finally:
        sitting.close()


def test_one_of_its_own(stack: Any) -> None:
    done = stack.command("shell", "-c", "tty; hostname; exit 5", stdin=b"")
    assert done.returncode == 5, done.stderr
    tty, name = done.stdout.decode().split()
    assert tty.startswith("/dev/pts/")
    assert name not in stack.command("ls").stdout.decode(), "it is deleted"
    refused = stack.command("shell", stdin=b"")
    assert refused.returncode == 1 and b"no terminal" in refused.stderr
    wrong = stack.command("shell", "--attach", "01ARZ3NDEKTSV4RRFFQ69G5FAV", stdin=b"")
    assert wrong.returncode == 1 and b"which sandbox" in wrong.stderr


def test_server_and_node_die_beneath_it(own_stack: Stack) -> None:
    """Killed while the user types and the program talks: nothing is lost or doubled, and the shell goes on."""
    box = own_stack.sandbox()
    sitting = Sitting(own_stack, box.id)
    try:
        sitting.until(b"$ ")
        sitting.ask("PS1=; stty -echo; echo qui''et", b"quiet\r\n")
        sitting.type("for i in $(seq 1 400); do echo line-$i-; sleep 0.01; done; echo EN''D\r")
        sitting.until(b"line-20-")
        for daemon in ("server", "node"):
            own_stack.kill(daemon)
            for word in range(20):
                sitting.type(f"echo {daemon}-{word}-\r")
        rest = sitting.until(b"node-19-\r\n", 120).decode()
        assert [int(n) for n in re.findall(r"line-(\d+)-", rest)] == list(range(21, 401))
        typed = re.findall(r"(?:server|node)-\d+-", rest)
        assert typed == [f"{daemon}-{word}-" for daemon in ("server", "node") for word in range(20)]
        sitting.type("exit 9\r")
        assert sitting.end() == 9
    finally:
        sitting.close()
        box.delete()
