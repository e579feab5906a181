"""How a command ended: codes, signals, timeouts of whole trees, background children, input that nobody closes."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from bellglass.errors import ExecutionFailed, InvalidCommand, InvalidRequest
from bellglass.testing.stack import bellglass_command


def sleepers(box: Any, *seconds: int) -> list[str]:
    wanted = "|".join(f"^sleep {n}$" for n in seconds)
    return box.exec(["pgrep", "-fx", wanted]).stdout.split()


def test_codes(shared_box: Any) -> None:
    missing = shared_box.exec(["nosuchcmd"])
    assert missing.exit_code == 127 and "nosuchcmd" in missing.stderr
    assert shared_box.exec("nosuchcmd").exit_code == 127
    no_program = shared_box.exec(["/etc/passwd"])
    assert no_program.exit_code == 126 and "/etc/passwd" in no_program.stderr
    killed = shared_box.exec(["sh", "-c", "kill -9 $$"])
    assert (killed.exit_code, killed.signal, killed.oom_killed, killed.timed_out) == (137, "SIGKILL", False, False)
    fault = shared_box.exec(["sh", "-c", "kill -SEGV $$"])
    assert (fault.exit_code, fault.signal) == (139, "SIGSEGV")
    assert shared_box.exec("exit 255").exit_code == 255
    for empty in ("", [], [""]):
        with pytest.raises(InvalidRequest):
            shared_box.exec(empty)


def test_check_raises_with_the_whole_result(shared_box: Any) -> None:
    assert shared_box.exec("echo out; exit 0", check=True).stdout == "out\n"
    with pytest.raises(ExecutionFailed) as raised:
        shared_box.exec("echo out; echo err >&2; exit 3", check=True)
    assert (raised.value.result.exit_code, raised.value.result.stderr) == (3, "err\n")


def test_a_background_child_does_not_hold_the_answer(box: Any) -> None:
    started = time.monotonic()
    result = box.exec(["sh", "-c", "sleep 61 & echo hi"])
    assert (result.stdout, result.exit_code) == ("hi\n", 0)
    assert time.monotonic() - started < 2
    assert sleepers(box, 61), "the child lives on until the sandbox ends"
    late = box.exec(["sh", "-c", "(sleep 2; echo late > late.txt; echo late) & echo hi"])
    assert late.stdout == "hi\n"
    deadline = time.monotonic() + 6
    while not box.files.exists("late.txt"):
        assert time.monotonic() < deadline, "the child did not get to write"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("script", "seconds"),
    [
        ("sleep 31337 & sleep 31338; :", [31337, 31338]),
        ('trap "" TERM; sleep 31339; :', [31339]),
        ("setsid nohup sleep 31340 >/dev/null 2>&1 & sleep 31341", [31340, 31341]),
        ("(setsid sh -c 'setsid sleep 31342 & setsid sleep 31343' &) ; sleep 31344", [31342, 31343, 31344]),
    ],
)
def test_a_timeout_kills_the_whole_tree(box: Any, script: str, seconds: list[int]) -> None:
    execution = box.start(["sh", "-c", f"echo partial; {script}"], timeout=2)
    deadline = time.monotonic() + 1.5
    while len(sleepers(box, *seconds)) < len(seconds):
        assert time.monotonic() < deadline, "the children were never there"
    result = execution.wait()
    assert (result.exit_code, result.timed_out, result.stdout) == (137, True, "partial\n")
    assert sleepers(box, *seconds) == []


def test_a_timeout_comes_on_time(shared_box: Any) -> None:
    started = time.monotonic()
    result = shared_box.exec(["sleep", "60"], timeout=0.5)
    assert result.timed_out and time.monotonic() - started < 1.5
    with pytest.raises(InvalidRequest, match="start"):
        shared_box.exec(["true"], timeout=601)
    assert shared_box.exec(["true"], timeout=600).ok


def test_input_that_nobody_closes(shared_box: Any, stack: Any) -> None:
    """The command line reads its standard input only as far as the command does, and ends with the command."""
    holder = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
    try:
        for more in ([], ["--timeout", "5"]):
            done = subprocess.run(
                [*bellglass_command(), "exec", *more, shared_box.id, "--", "echo", "hi"],
                stdin=holder.stdout,
                capture_output=True,
                timeout=20,
                env={"PATH": "/usr/bin:/bin", **stack.environment},
                check=False,
            )
            assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert shared_box.exec(["cat"]).stdout == "", "no input is the end of input"
    assert shared_box.exec(["cat"], stdin="given").stdout == "given"
    assert shared_box.exec(["readlink", "/proc/self/fd/0"]).stdout == "/dev/null\n"


def test_a_bad_cwd_and_a_bad_user_are_named(shared_box: Any) -> None:
    assert shared_box.exec("pwd", cwd="/").stdout == "/\n"
    for cwd in ("/nope", "/etc/passwd"):
        with pytest.raises(InvalidCommand, match=cwd):
            shared_box.exec("pwd", cwd=cwd)
    assert shared_box.exec("id -un", user="root").stdout == "root\n"
    for user in ("nobody-by-that-name", "", "root:root", "-1", "4294967296"):
        with pytest.raises(InvalidRequest):
            shared_box.exec("id", user=user)


def test_heredocs_and_huge_scripts(shared_box: Any) -> None:
    shared_box.exec("cat << 'EOF' > /tmp/heredoc\nhello $HOME\nEOF")
    assert shared_box.files.read_text("/tmp/heredoc") == "hello $HOME\n"
    open_end = shared_box.exec("cat << 'EOF'\nnever ended")
    assert open_end.stdout == "never ended" or open_end.stdout == "never ended\n"
    assert shared_box.exec("echo alive").stdout == "alive\n"
    huge = "\n".join(f": line {n} {'x' * 80}" for n in range(3400)) + "\necho end $#"
    assert len(huge) > 300_000
    result = shared_box.exec(huge)
    assert (result.stdout, result.exit_code) == ("end 0\n", 0), result.stderr
    with pytest.raises(InvalidCommand, match="too long"):
        shared_box.exec(["echo", "x" * 200_000])  # the kernel takes 128 KiB in one argument
