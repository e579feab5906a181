"""The agent's executions: outcomes, streams, windows, links that break, descriptors, hostile frames."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
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


def test_stdin_and_its_absence(peer: Peer) -> None:
    data = os.urandom(3_000_000)
    assert peer.run("cat", input=data).stdout == data
    assert peer.run("cat").stdout == b""  # no stdin: /dev/null, not the agent's own


def test_stdin_to_a_program_that_does_not_read(peer: Peer) -> None:
    done = peer.run("true", input=b"x" * 2_000_000)
    assert done.exit is not None and done.exit.exit_code == 0


def test_stdin_window_is_enforced(peer: Peer) -> None:
    stream = peer.start("sleep", "60", stdin=True)
    peer.until(lambda: stream.pid is not None)
    for offset in range(0, guest.WINDOW_BYTES, 65536):
        peer.send(guest.encode_data(stream.id, 0, offset, b"x" * 65536))
    peer.until(lambda: stream.stdin_acked >= 65536)  # what the pipe itself took
    peer.send(encode(GuestType.PING, 0, b"alive"))
    peer.until(lambda: peer.pongs)
    peer.send(guest.encode_data(stream.id, 0, guest.WINDOW_BYTES, b"x" * 200_000))
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            peer.step()


def test_background_child_holds_the_pipe(peer: Peer) -> None:
    begin = time.monotonic()
    done = peer.run("sh", "-c", "(sleep 2; echo late) & echo hi")
    assert done.stdout == b"hi\n" and done.exit is not None and done.exit.exit_code == 0
    assert 0.15 < time.monotonic() - begin < 1.5


def test_output_written_after_the_exit_but_soon_is_kept(peer: Peer) -> None:
    script = "(for i in 1 2 3 4 5 6; do sleep 0.1; echo $i; done) & echo hi"
    assert peer.run("sh", "-c", script).stdout == b"hi\n1\n2\n3\n4\n5\n6\n"


def test_last_line_is_never_lost(peer: Peer) -> None:
    for _ in range(100):
        assert peer.run("seq", "1", "20000").stdout.endswith(b"\n20000\n")


def test_unacknowledged_output_blocks_the_writer(peer: Peer) -> None:
    peer.run("true")
    peer.acks = False
    stream = peer.start("head", "-c", "400000000", "/dev/zero")
    peer.until(lambda: stream.received[1] == guest.WINDOW_BYTES)
    with pytest.raises(TimeoutError):
        peer.step(0.5)
    assert resident_bytes(peer.agent.pid) < 2_500_000
    peer.acks, stream.keep = True, False
    peer.acknowledge(stream, 1)
    peer.wait(stream, 60)
    assert stream.received[1] == 400_000_000
    assert resident_bytes(peer.agent.pid) < 2_500_000


def test_several_at_once(peer: Peer) -> None:
    streams = [peer.start("sh", "-c", f"seq 1 5000; echo {i} >&2") for i in range(30)]
    for i, stream in enumerate(streams):
        peer.wait(stream)
        assert stream.stdout.endswith(b"\n5000\n") and stream.stderr == f"{i}\n".encode()


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


def test_descriptor_is_written_to_before_the_program_runs(peer: Peer) -> None:
    reading, writing = os.pipe()
    try:
        done = peer.run("sh", "-c", "ls /proc/self/fd | wc -l", descriptor=writing)
        assert os.read(reading, 10) == b"0"
        assert done.stdout.strip() == b"4"  # three streams and the folder that ls reads
        long = peer.run("sh", "-c", "echo $#", "sh", *(["x" * 100_000] * 5), descriptor=writing)
        assert os.read(reading, 10) == b"0" and long.stdout == b"5\n"
    finally:
        os.close(reading)
        os.close(writing)


@needs_root  # to look at the descriptors of a process that is not dumpable
def test_descriptors_do_not_pile_up(peer: Peer) -> None:
    peer.run("true")
    before = len(os.listdir(f"/proc/{peer.agent.pid}/fd"))
    reading, writing = os.pipe()
    try:
        for _ in range(20):
            peer.run("true", descriptor=writing, input=b"x")
        peer.send_with_descriptor(encode(GuestType.PING, 0, b"nobody asked for one"), writing)
        peer.until(lambda: peer.pongs)
    finally:
        os.close(reading)
        os.close(writing)
    assert len(os.listdir(f"/proc/{peer.agent.pid}/fd")) == before


def test_start_that_lacks_its_descriptor(peer: Peer) -> None:
    stream = peer._new()
    peer.send(encode(GuestType.START, stream.id, tlv.put(1, "/bin/true"), flags=guest.FLAG_DESCRIPTOR))
    peer.wait(stream)
    assert stream.failure is not None and stream.failure.stage == "protocol"


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


def test_replay_after_a_broken_link_is_exact(peer: Peer) -> None:
    """The node stops reading in the middle, hangs up, and gets the rest from its last acknowledged byte."""
    stream = peer.start("sh", "-c", "seq 1 200000; echo end >&2; exit 3")
    finished = peer.run("echo", "earlier")
    kept = peer.start("sh", "-c", "echo kept; exit 4")
    peer.wait(kept)
    peer.streams.pop(finished.id)
    for link in range(2, 20):
        peer.acks = False
        peer.until(lambda: stream.received[1] > stream.acked[1] or stream.exit is not None)
        peer.acknowledge(stream, 1)
        peer.send(encode(GuestType.PING, 0, b"x"))  # its answer says that the acknowledgement has been read
        peer.pongs.clear()
        peer.until(lambda: peer.pongs)
        peer.hang_up()
        hello = peer.accept()
        assert hello.streams == {stream.id: 16, kept.id: 16}
        assert hello.epoch == link
        peer.acks = True
        peer.until(lambda: kept.exit is not None)
    peer.wait(stream)
    assert stream.stdout == "".join(f"{i}\n" for i in range(1, 200001)).encode()
    assert stream.stderr == b"end\n" and stream.exit is not None and stream.exit.exit_code == 3
    assert kept.stdout == b"kept\n" and kept.exit is not None and kept.exit.exit_code == 4
    assert kept.order.count("EXIT") >= 2  # kept until RELEASE, sent again on each link


def test_program_goes_on_without_a_link(peer: Peer) -> None:
    stream = peer.start("sh", "-c", "echo a; sleep 0.5; echo b; read line; echo got $line", stdin=True)
    peer.until(lambda: stream.stdout == b"a\n")
    peer.send(guest.encode_data(stream.id, 0, 0, b"hel"))
    peer.hang_up()
    time.sleep(1)
    peer.accept()
    # whether the first bytes arrived is not known: sent again from the last acknowledged offset, here 0
    peer.send(guest.encode_data(stream.id, 0, 0, b"hello\n"))
    peer.wait(stream)
    assert stream.stdout == b"a\nb\ngot hello\n"


def test_hello_tells_how_much_input_came(peer: Peer) -> None:
    """A restarted node knows nothing of what the one before it had sent; the program takes nothing for now."""
    stream = peer.start("sh", "-c", "echo up; sleep 1; cksum", stdin=True)
    without = peer.start("sleep", "30")
    data = os.urandom(guest.WINDOW_BYTES)
    peer.until(lambda: stream.stdout == b"up\n")
    assert peer.hello is not None and peer.hello.features & 8
    for start, end in ((0, 100_000), (100_000, 250_000)):
        peer.send(guest.encode_data(stream.id, 0, start, data[start:end]))
        peer.send(encode(GuestType.PING, 0, b"x"))
        peer.pongs.clear()
        peer.until(lambda: peer.pongs)
        peer.hang_up()
        assert peer.accept().inputs == {stream.id: guest.Input(end, False)}
    peer.send(guest.encode_data(stream.id, 0, 250_000, data[250_000:]) + guest.encode_eof(stream.id, 0, len(data)))
    peer.wait(stream)
    peer.hang_up()
    assert peer.accept().inputs == {stream.id: guest.Input(len(data), True)}
    peer.wait(stream)
    expected = subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout
    assert stream.stdout == b"up\n" + expected
    peer.send(guest.encode_release(without.id))


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("<IBBHI", 300_000, 18, 0, 0, 1),
        struct.pack("<IBBHI", 0xFFFFFFFF, 16, 0, 0, 1),
        encode(GuestType.DATA, 1, b"abc"),
        encode(GuestType.ACK, 1, struct.pack("<Q", 1 << 60), channel=1),
        encode(GuestType.DATA, 1, struct.pack("<Q", 1 << 63) + b"x"),
        encode(GuestType.EOF, 1, struct.pack("<Q", 5)),
        encode(GuestType.START, 0, tlv.put(1, "x")),
        encode(GuestType.PING, 0, b"x" * 65),
        os.urandom(0) + b"\xff" * 64,
    ],
)
def test_garbage_ends_the_link_and_nothing_else(peer: Peer, garbage: bytes) -> None:
    stream = peer.start("sh", "-c", "echo up; read x; echo $x", stdin=True)
    assert stream.id == 1
    peer.until(lambda: stream.stdout == b"up\n")
    peer.send(garbage)
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            peer.step(5)
    peer.hang_up()
    assert peer.accept().streams == {1: 16}
    peer.feed(stream, b"ok\n")
    assert peer.wait(stream).stdout == b"up\nok\n"


def test_unknown_frames_and_streams_are_skipped(peer: Peer) -> None:
    peer.send(encode(200, 9, b"later"))
    peer.send(encode(GuestType.DATA, 77, struct.pack("<Q", 0) + b"x"))
    peer.send(encode(GuestType.RELEASE, 77) + encode(GuestType.ABORT, 77) + encode(GuestType.SIGNAL, 77))
    assert peer.run("echo", "fine").stdout == b"fine\n"


def test_silence_until_welcome(silent_peer: Peer) -> None:
    silent_peer.accept(welcome=False)
    with pytest.raises(TimeoutError):
        silent_peer.read(0.3)
    stream = silent_peer._new()
    silent_peer.send(encode(GuestType.START, stream.id, tlv.put(1, "/bin/true")))
    with pytest.raises((EOFError, ConnectionResetError)):
        silent_peer.read(5)


def test_frames_byte_by_byte(peer: Peer) -> None:
    frame = encode(GuestType.PING, 0, b"slowly")
    for i in range(len(frame)):
        peer.send(frame[i : i + 1])
    peer.until(lambda: peer.pongs == [b"slowly"])


def test_idle_memory_and_no_secrets(peer: Peer) -> None:
    peer.run("true")
    assert resident_bytes(peer.agent.pid) < 1 << 20
    assert Path(f"/proc/{peer.agent.pid}/cmdline").read_bytes().count(b"\0") == 2
    assert Path(f"/proc/{peer.agent.pid}/stat").stat().st_uid == os.geteuid() or os.geteuid() != 0
    environ = Path(f"/proc/{peer.agent.pid}/environ")
    if os.geteuid() != 0:  # not dumpable: its /proc files belong to root
        with pytest.raises(PermissionError):
            environ.read_bytes()


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
