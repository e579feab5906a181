"""The agent and the trees of its programs: signals, releases, its own end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from bellglass.wire import guest

from .conftest import Peer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_signal_reaches_the_tree(peer: Peer, tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/child; setsid sleep 1001 & echo $! >> {tmp_path}/child; echo up; wait"
    stream = peer.start("sh", "-c", script)
    peer.until(lambda: stream.stdout == b"up\n")
    children = [int(line) for line in (tmp_path / "child").read_text().split()]
    assert all(Path(f"/proc/{pid}").exists() for pid in children)
    peer.send(guest.encode_signal(stream.id, signal.SIGTERM))
    peer.wait(stream)
    assert stream.exit is not None and stream.exit.signal == signal.SIGTERM
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline, "a child outlived the signal to its tree"
        time.sleep(0.01)


def test_signal_to_the_first_process_only(peer: Peer) -> None:
    stream = peer.start("sh", "-c", "trap 'echo got; exit 7' USR1; sleep 1 & echo up; wait")
    peer.until(lambda: stream.stdout == b"up\n")
    peer.send(guest.encode_signal(stream.id, signal.SIGUSR1, whole_tree=False))
    peer.wait(stream)
    assert stream.stdout == b"up\ngot\n" and stream.exit is not None and stream.exit.exit_code == 7


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_release_of_a_running_program_ends_it(peer: Peer) -> None:
    stream = peer.start("sh", "-c", "sleep 1000 & echo $!; wait")
    peer.until(lambda: stream.stdout.endswith(b"\n"))
    child = int(stream.stdout)
    assert alive(child)
    peer.release(stream)
    deadline = time.monotonic() + 5
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sigterm_ends_programs(peer: Peer) -> None:
    stream = peer.start("sleep", "1000")
    peer.until(lambda: stream.pid is not None)
    assert stream.pid is not None and alive(stream.pid)
    peer.agent.terminate()
    assert peer.agent.wait(5) == 0
    deadline = time.monotonic() + 5
    while alive(stream.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


UNIFIED = next(
    (path for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(path, "cgroup.procs").exists()), ""
)


@needs_root
@pytest.mark.skipif(not UNIFIED, reason="needs cgroup v2 or hybrid")
def test_signal_finds_the_tree_by_its_cgroup(peer: Peer, tmp_path: Path) -> None:
    """A double-forked daemon in a session of its own is still in the group; a program of another group is not hit."""
    group = Path(UNIFIED) / f"bellglass-test-{os.getpid()}"
    group.mkdir()
    try:
        procs = os.open(group / "cgroup.procs", os.O_WRONLY)
        bystander = peer.start("sleep", "1000")
        peer.until(lambda: bystander.pid is not None)
        daemon = f"setsid sh -c 'sleep 1002 & echo $! > {tmp_path}/pid' ; echo up; sleep 1003"
        stream = peer.start("sh", "-c", daemon, descriptor=procs)
        os.close(procs)
        peer.until(lambda: stream.stdout == b"up\n")
        pid = int((tmp_path / "pid").read_text())
        assert alive(pid) and str(pid) in (group / "cgroup.procs").read_text().split()
        peer.send(guest.encode_signal(stream.id, signal.SIGTERM))
        peer.wait(stream)
        deadline = time.monotonic() + 5
        while (group / "cgroup.procs").read_text():
            assert time.monotonic() < deadline, "something is left in the group"
            time.sleep(0.01)
        assert not alive(pid) and bystander.pid is not None and alive(bystander.pid)
    finally:
        group.rmdir()
