"""The agent's executions: outcomes, environment, users, limits, signals, and what it is as PID 1."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bellglass.wire import guest, tlv
from bellglass.wire.frames import encode
from bellglass.wire.guest import GuestType, StartFlag

from .conftest import Peer, errno_name, resident_bytes

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_output_and_exit_code(peer: Peer) -> None:
    done = peer.run("sh", "-c", "printf 'a\\n\\nb\\n\\n\\nc'; printf 'e\\r' >&2; exit 255")
    assert (done.stdout, done.stderr) == (b"a\n\nb\n\n\nc", b"e\r")
    assert done.exit is not None
    assert (done.exit.exit_code, done.exit.signal) == (255, None)
    assert done.exit.peak_rss_bytes > 0


@pytest.mark.parametrize("name", ["KILL", "SEGV", "TERM"])
def test_killed_by_a_signal(peer: Peer, name: str) -> None:
    done = peer.run("sh", "-c", f"kill -{name} $$")
    assert done.exit is not None
    assert (done.exit.exit_code, done.exit.signal) == (None, getattr(signal, f"SIG{name}"))


@pytest.mark.parametrize(
    ("program", "errno"),
    [("nosuchcmd", "ENOENT"), ("/nosuch/cmd", "ENOENT"), ("/etc/passwd", "EACCES"), ("/tmp", "EACCES")],
)
def test_programs_that_cannot_run(peer: Peer, program: str, errno: str) -> None:
    done = peer.run(program)
    assert done.failure is not None and done.exit is None
    assert (done.failure.stage, errno_name(done.failure.errno)) == ("exec", errno)
    assert "STARTED" not in done.order


def test_scripts_without_an_interpreter_line(peer: Peer, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    assert peer.run(str(script), "x").stdout == f"{script} x\n".encode()
    script.write_bytes(b"\x00\x01binary")
    failure = peer.run(str(script)).failure
    assert failure is not None and errno_name(failure.errno) == "ENOEXEC"


def test_path_of_the_given_environment(peer: Peer, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o644)
    env = {"PATH": f"/nosuch:{tmp_path}:/usr/bin:/bin"}
    failure = peer.run("mine", env=env).failure
    assert failure is not None and errno_name(failure.errno) == "EACCES"
    program.chmod(0o755)
    assert peer.run("mine", env=env).stdout == b"found\n"
    assert peer.run("mine").failure is not None


def test_environment_is_exact(peer: Peer) -> None:
    awkward = "a\nb\"c$d`e'f=é"
    env = {"PATH": "/usr/bin:/bin", "A": awkward, "A-B": "1", "EMPTY": "", "LONG": "x" * 120_000}
    done = peer.run("env", "-0", env=env)
    assert done.stdout == b"".join(f"{key}={value}\0".encode() for key, value in env.items())


def test_user_environment_only_where_absent(peer: Peer) -> None:
    plain = peer.run("env", env={"PATH": "/usr/bin:/bin"}).stdout
    assert b"HOME=" not in plain
    env = {"PATH": "/usr/bin:/bin", "USER": "mine"}
    lines = peer.run("env", env=env, flags=StartFlag.USER_ENV).stdout.splitlines()
    assert b"USER=mine" in lines
    assert any(line.startswith(b"HOME=/") for line in lines) and any(line.startswith(b"SHELL=/") for line in lines)


@pytest.mark.parametrize("bad", [b"=x", b"novalue", b"A=x\0y"])
def test_bad_environment_entries(peer: Peer, bad: bytes) -> None:
    for entry, good in ((b"A=x", True), (bad, False)):
        stream = peer._new()
        peer.send(encode(GuestType.START, stream.id, tlv.put(1, "/bin/true") + tlv.put(2, entry)))
        peer.wait(stream)
        assert (stream.exit is not None) is good
    assert stream.failure is not None and stream.failure.stage == "protocol"


def test_working_directory(peer: Peer, tmp_path: Path) -> None:
    assert peer.run("pwd", cwd=str(tmp_path)).stdout == f"{tmp_path}\n".encode()
    for cwd, name in (("/nope", "ENOENT"), ("/etc/passwd", "ENOTDIR")):
        failure = peer.run("pwd", cwd=cwd).failure
        assert failure is not None and (failure.stage, errno_name(failure.errno)) == ("chdir", name)
    fresh = tmp_path / "a" / "b"
    assert peer.run("pwd", cwd=str(fresh), flags=StartFlag.CREATE_CWD).stdout == f"{fresh}\n".encode()


def test_unknown_user(peer: Peer) -> None:
    failure = peer.run("true", user="nobody-of-that-name").failure
    assert failure is not None and failure.stage == "user"
    if os.geteuid() != 0:
        failure = peer.run("true", user="0").failure
        assert failure is not None and (failure.stage, errno_name(failure.errno)) == ("user", "EPERM")
    else:
        assert peer.run("id", "-u", user="4242").stdout == b"4242\n"


def test_too_many_streams_at_once(peer: Peer) -> None:
    streams = [peer.start("sleep", "60") for _ in range(256)]
    refused = peer.run("true")
    assert refused.failure is not None and refused.failure.stage == "limit"
    for stream in streams:
        peer.send(guest.encode_abort(stream.id))
    for stream in streams:
        peer.wait(stream)
        assert stream.exit is not None and stream.exit.signal == 9
        peer.release(stream)
    assert peer.run("true").exit is not None


def test_long_command_lines(peer: Peer) -> None:
    arguments = ["x" * 100_000] * 12  # 1.2 MB: five START frames
    done = peer.run("sh", "-c", 'printf %s "$*" | wc -c', "sh", *arguments)
    assert done.stdout.strip() == str(12 * 100_000 + 11).encode()
    one = peer.run("printf", "%s", "y" * 131_071)
    assert one.stdout == b"y" * 131_071
    failure = peer.run("printf", "%s", "y" * 131_072).failure
    assert failure is not None and (failure.stage, errno_name(failure.errno)) == ("exec", "E2BIG")


def test_split_start_over_its_limit(peer: Peer) -> None:
    stream = peer._new()
    part = tlv.put(1, b"z" * 200_000)
    for _ in range(11):
        peer.send(encode(GuestType.START, stream.id, part, flags=guest.FLAG_MORE))
    peer.wait(stream)
    assert stream.failure is not None and stream.failure.stage == "limit"
    peer.release(stream)
    assert peer.run("true").exit is not None


def test_oom_score_is_added(peer: Peer) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    done = peer.run("cat", "/proc/self/oom_score_adj", oom_score_adj=321)
    assert int(done.stdout) == min(1000, own + 321)


def test_umask_session_and_signals(peer: Peer) -> None:
    done = peer.run(
        "sh", "-c", "umask; grep -E 'Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$; echo $$", umask=0o27
    )
    mask, blocked, ignored, session, pid = done.stdout.split(b"\n")[:5]
    assert mask == b"0027"
    assert int(blocked.split()[1], 16) == 0 and int(ignored.split()[1], 16) == 0
    assert session.strip() == pid.strip()


def test_idle_memory_and_no_secrets(peer: Peer) -> None:
    peer.run("true")
    assert resident_bytes(peer.agent.pid) < 1 << 20
    assert Path(f"/proc/{peer.agent.pid}/cmdline").read_bytes().count(b"\0") == 2
    assert Path(f"/proc/{peer.agent.pid}/stat").stat().st_uid == os.geteuid() or os.geteuid() != 0
    environ = Path(f"/proc/{peer.agent.pid}/environ")
    if os.geteuid() != 0:  # not dumpable: its /proc files belong to root
        with pytest.raises(PermissionError):
            environ.read_bytes()


@needs_root
def test_as_pid_1_it_reaps_strays_and_ends_on_sigterm(tmp_path: Path) -> None:
    """In a pid namespace of its own: orphans become its children, and SIGTERM ends everything with code 0."""
    peer = Peer(tmp_path, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    try:
        peer.accept()
        strays = "for i in 1 2 3; do (sleep 0.1 & sleep 0.05 &) ; done; sleep 0.4; ps -eo stat,ppid,comm"
        processes = [line.split() for line in peer.run("sh", "-c", strays).stdout.decode().splitlines()[1:]]
        assert not [line for line in processes if line[0].startswith("Z")], "strays were not reaped"
        assert len(processes) == 3, "the agent, sh and ps"
        sleeper = peer.start("sleep", "1000")
        peer.until(lambda: sleeper.pid is not None)
        inner = int(Path(f"/proc/{peer.agent.pid}/task/{peer.agent.pid}/children").read_text())
        os.kill(inner, signal.SIGTERM)
        assert peer.agent.wait(5) == 0
    finally:
        peer.close()
