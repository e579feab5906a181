"""Commands of the synchronous client."""

from __future__ import annotations

import threading
import time

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)


@pytest.mark.parametrize(
    "text", ["plain", "!@#$%^&*()_+-=[]{}|;',./<>?", "two\nlines", "ü€😀", "  spaces  "], ids=range(5)
)
def test_output_is_what_was_said(sandbox: Sandbox, text: str) -> None:
    result = sandbox.commands.run("printf '%s' \"$SAID\"", envs={"SAID": text})
    assert (result.stdout, result.stderr, result.exit_code, result.error) == (text, "", 0, None)


def test_streams_are_apart_and_callbacks_get_them(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    result = sandbox.commands.run("echo one; echo two >&2", on_stdout=out.append, on_stderr=err.append)
    assert (result.stdout, result.stderr) == ("one\n", "two\n")
    assert ("".join(out), "".join(err)) == ("one\n", "two\n")


def test_a_character_that_is_cut_between_chunks(sandbox: Sandbox) -> None:
    program = "import os,time\nfor b in '€uro'.encode(): os.write(1, bytes([b])); time.sleep(.02)"
    assert sandbox.commands.run(f'python3 -c "{program}"').stdout == "€uro"
    assert sandbox.commands.run(r"head -c 8191 /dev/zero | tr '\0' a; printf '\xe2'").stdout == "a" * 8191 + "\ufffd"


def test_much_output_comes_whole(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("seq 1 400000")
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 400001))


def test_exit_codes(sandbox: Sandbox) -> None:
    for code in (1, 42, 255):
        with pytest.raises(CommandExitException) as caught:
            sandbox.commands.run(f"echo out; echo err >&2; exit {code}")
        assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (code, "out\n", "err\n")
        assert caught.value.error == f"exit status {code}"
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("no-such-program")
    assert caught.value.exit_code == 127


def test_variables_of_a_command_end_with_it(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo $MINE", envs={"MINE": "here"}).stdout == "here\n"
    assert sandbox.commands.run("echo $MINE").stdout == "\n"


def test_variables_of_a_sandbox_are_everywhere() -> None:
    sandbox = Sandbox.create(timeout=60, envs={"EVERYWHERE": "yes", "OVER": "sandbox"})
    try:
        assert sandbox.commands.run("echo $EVERYWHERE $OVER", envs={"OVER": "command"}).stdout == "yes command\n"
    finally:
        sandbox.kill()


def test_users_and_folders(sandbox: Sandbox, folder: str) -> None:
    assert sandbox.commands.run("whoami; pwd; echo $HOME").stdout == "user\n/home/user\n/home/user\n"
    assert sandbox.commands.run("whoami; pwd; echo $HOME", user="root").stdout == "root\n/root\n/root\n"
    assert sandbox.commands.run("pwd", cwd=folder).stdout == f"{folder}\n"
    assert sandbox.commands.run("pwd", cwd=folder.removeprefix("/home/user/")).stdout == f"{folder}\n"
    assert sandbox.commands.run("pwd", cwd="~").stdout == "/home/user\n"
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("true", cwd="/no/such/folder")
    with pytest.raises(AuthenticationException, match="invalid username"):
        sandbox.commands.run("true", user="nobody-of-that-name")


def test_the_time_of_a_command_ends_it_with_all_that_it_runs(sandbox: Sandbox) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 4321 & sleep 4321; echo", timeout=1)
    assert time.monotonic() - began < 30
    with pytest.raises(CommandExitException):
        sandbox.commands.run("pgrep -f 'sleep 432[1]'")
    assert sandbox.commands.run("echo in time", timeout=60).stdout == "in time\n"
    handle = sandbox.commands.run("sleep 4322", timeout=1, background=True)
    with pytest.raises(TimeoutException):
        for _ in handle:
            pass


def test_pids_are_those_inside_and_killing_hits_what_runs(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 5432; echo", background=True)
    assert sandbox.commands.run(f"kill -0 {handle.pid}; pgrep -f 'sleep 543[2]' | wc -l").exit_code == 0
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    assert handle.kill() is True
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")
    for gone in (f"kill -0 {handle.pid}", "pgrep -f 'sleep 543[2]'"):
        with pytest.raises(CommandExitException):
            sandbox.commands.run(gone)
    assert sandbox.commands.kill(handle.pid) is False
    assert sandbox.commands.kill(999_999) is False


def test_list_tells_what_runs(sandbox: Sandbox) -> None:
    handles = [sandbox.commands.run(f"sleep 10{i}", background=True) for i in range(2)]
    found = {process.pid: process for process in sandbox.commands.list()}
    for i, handle in enumerate(handles):
        process = found[handle.pid]
        assert (process.cmd, process.args, process.cwd) == ("/bin/bash", ["-l", "-c", f"sleep 10{i}"], "/home/user")
        handle.kill()
        with pytest.raises(CommandExitException):
            handle.wait()
    assert not {handle.pid for handle in handles} & {process.pid for process in sandbox.commands.list()}


def test_input(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "first €\n")
    for stdout, _, _ in handle:
        assert stdout == "first €\n"
        break
    sandbox.commands.send_stdin(handle.pid, b"second\n")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.endswith("second\nend\n")
    assert sandbox.commands.run("cat").stdout == ""  # no input at all unless it was asked for
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(999_999, "x")


def test_input_that_was_not_asked_for(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 600", background=True)
    with pytest.raises(SandboxException):
        sandbox.commands.send_stdin(handle.pid, "x")
    handle.kill()


def test_input_as_a_stream(sandbox: Sandbox) -> None:
    if not hasattr(sandbox.commands, "stream_input"):
        return  # of an older client
    handle = sandbox.commands.run("read a; echo got $a; cat", background=True, stdin=True)
    seen = threading.Event()

    def pieces() -> object:
        yield "one\n"
        assert seen.wait(60), "the first piece was not written before the last was sent"
        yield b"two\n"

    def watch() -> None:
        for stdout, _, _ in handle:
            if stdout and "got one" in stdout:
                seen.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    sandbox.commands.stream_input(handle.pid, pieces())
    sandbox.commands.close_stdin(handle.pid)
    watcher.join(60)
    assert seen.is_set()


def test_who_connects_hears_what_is_said_from_then_on(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo before; read x; echo after", background=True, stdin=True)
    for stdout, _, _ in handle:
        assert stdout == "before\n"
        break
    second, third = sandbox.commands.connect(handle.pid), sandbox.commands.connect(handle.pid)
    assert second.pid == third.pid == handle.pid
    handle.disconnect()
    sandbox.commands.send_stdin(handle.pid, "\n")
    assert second.wait().stdout == third.wait().stdout == "after\n"
    assert sandbox.commands.connect(handle.pid).wait().exit_code == 0  # a late one still hears the end
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)


def test_who_hangs_up_leaves_it_running(sandbox: Sandbox, folder: str) -> None:
    handle = sandbox.commands.run(f"read x; echo done > {folder}/done", background=True, stdin=True)
    handle.disconnect()
    sandbox.commands.send_stdin(handle.pid, "\n")
    sandbox.commands.connect(handle.pid).wait()
    assert sandbox.files.read(f"{folder}/done") == "done\n"


@pytest.mark.parametrize("end", ["kill", "timeout"])
def test_death_looks_like_death(end: str) -> None:
    sandbox = Sandbox.create(timeout=60)
    handle = sandbox.commands.run("echo alive; sleep 600", background=True)
    for stdout, _, _ in handle:
        assert stdout == "alive\n"
        break
    if end == "kill":
        assert sandbox.kill() is True
    else:
        sandbox.set_timeout(0)
    with pytest.raises(SandboxException) as caught:
        handle.wait()
    if type(caught.value).__name__ != "TimeoutException":  # as older clients call it
        assert "killed or reached its end of life" in str(caught.value)
    assert sandbox.is_running() is False
    with pytest.raises(SandboxException):
        sandbox.commands.run("true")
    with pytest.raises(SandboxException):
        sandbox.files.read("/etc/passwd")
