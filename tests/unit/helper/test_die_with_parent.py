"""No process of the helper's outlives the one that wanted it: it would go on making what a reclaim takes away."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bellglass.node.helper import kernel, launch


def ended_by(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return pid


def streams(output: int) -> launch.Streams:
    return launch.Streams(os.open(os.devnull, os.O_RDONLY), output)


def sleeper(output: int) -> int:
    script = "echo $$; exec sleep 600"
    return launch.program("/bin/sh", ["-c", script], streams(output), env={"PATH": "/usr/bin:/bin"})


def gone() -> int:
    pid = forked(lambda: None)
    os.waitpid(pid, 0)
    return pid


def test_a_child_lives_as_long_as_its_parent() -> None:
    assert ended_by(forked(lambda parent=os.getpid(): kernel.die_with_parent(parent))) == 0


def test_a_parent_that_was_dead_before_the_call_counts() -> None:
    assert ended_by(forked(lambda: kernel.die_with_parent(gone()))) == -signal.SIGKILL


@pytest.mark.parametrize("mode", [["run", "{}", "/bin/true"], ["namespaces", "{}", str(os.getuid())]])
def test_another_parent_counts_as_dead_for_the_launcher(mode: list[str]) -> None:
    mine = [word.format(os.getpid()) for word in mode]
    started = os.posix_spawn(launch.LAUNCHER, [launch.LAUNCHER.name, *mine], os.environ)
    _, status = os.waitpid(started, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(started, signal.SIGKILL)
        os.waitpid(started, 0)
    else:
        assert os.waitstatus_to_exitcode(status) == 0
    others = [word.format(gone()) for word in mode]
    assert subprocess.run([launch.LAUNCHER, *others], check=False).returncode == -signal.SIGKILL


def test_a_parent_that_is_killed_takes_its_program_along() -> None:
    read, write = os.pipe()

    def parent() -> None:
        sleeper(write)
        signal.pause()

    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    try:
        pid = forked(parent)
        child = int(os.read(read, 32))
        os.kill(pid, signal.SIGKILL)
        assert ended_by(pid) == ended_by(child) == -signal.SIGKILL
    finally:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)
        os.close(read)
        os.close(write)


def test_a_program_has_its_own_session_and_nothing_of_ours() -> None:
    read, write = os.pipe()
    script = "cut -d' ' -f1,6 /proc/$$/stat; pwd; ls /proc/$$/fd | tr '\\n' ' '; grep SigIgn /proc/$$/status; echo $A"
    extra = os.open("/dev/null", os.O_RDONLY)
    pid = launch.program("/bin/sh", ["-c", script], streams(write), env={"PATH": "/usr/bin:/bin", "A": "b"})
    assert ended_by(pid) == 0
    session, cwd, descriptors, value = os.read(read, 4096).decode().splitlines()
    assert session == f"{pid} {pid}"
    assert (cwd, value) == ("/", "b")
    names, _, ignored = descriptors.partition("SigIgn:")
    assert set(names.split()) <= {"0", "1", "2"}
    ours = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn"))
    pipe = 1 << (signal.SIGPIPE - 1)
    assert int(ours.split()[1], 16) & pipe and not int(ignored, 16) & pipe
    for fd in (read, write, extra):
        os.close(fd)


def test_what_is_no_program_is_exit_code_127(tmp_path: Path) -> None:
    with open(tmp_path / "told", "w+b") as told:
        pid = launch.program(str(tmp_path / "missing"), [], streams(told.fileno()), env={})
        assert ended_by(pid) == 127
        told.seek(0)
        assert b"missing: No such file" in told.read()
