"""Executions through both faces, against a server that misbehaves on order."""

from __future__ import annotations

import io
import os
import threading
import time
from typing import Any

import pytest

from bellglass import (
    Conflict,
    ConnectionFailed,
    ExecutionFailed,
    InvalidCommand,
    InvalidRequest,
    NotFound,
    SandboxGone,
    StreamInterrupted,
)
from bellglass.sdk import _patience


def test_outcomes(sandbox: Any) -> None:
    result = sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.ok, result.signal) == (3, False, None)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert sandbox.exec(["true"]).ok
    killed = sandbox.exec("kill -9 $$")
    assert (killed.exit_code, killed.signal, killed.ok) == (137, "SIGKILL", False)
    missing = sandbox.exec(["nosuchcmd"])
    assert missing.exit_code == 127 and "nosuchcmd" in missing.stderr


def test_env_cwd_and_argv_arrive_as_they_are(sandbox: Any) -> None:
    value = "a\nb\"c$d`e'f=é" + "x" * 100_000
    assert sandbox.exec(["sh", "-c", 'printf %s "$V"'], env={"V": value}).stdout == value
    sandbox.files.mkdir("job")
    assert sandbox.exec("pwd", cwd="job").stdout.endswith("/job\n")
    assert sandbox.exec(["printf", "%s|", "a b", "", "$HOME"]).stdout == "a b||$HOME|"


def test_timeout_is_a_result(sandbox: Any) -> None:
    result = sandbox.exec("echo begun; sleep 60", timeout=0.5)
    assert result.timed_out and result.exit_code == 137 and not result.ok
    assert result.stdout == "begun\n"


def test_a_long_wait_is_refused_and_names_start(sandbox: Any) -> None:
    assert sandbox.exec(["true"], timeout=600).ok
    with pytest.raises(InvalidRequest, match=r"start\(\)"):
        sandbox.exec(["true"], timeout="601s")


def test_check_raises_with_the_result_and_the_last_lines(sandbox: Any) -> None:
    assert sandbox.exec("exit 0", check=True).ok
    with pytest.raises(ExecutionFailed, match="exit code 4") as caught:
        sandbox.exec("for i in $(seq 9); do echo line $i >&2; done; exit 4", check=True)
    assert caught.value.result.exit_code == 4
    assert "line 9" in str(caught.value) and "line 4" not in str(caught.value)


@pytest.mark.parametrize("text", ["a\n\nb\n\n\nc", "10%\r50%\r100%", "\n", ""])
def test_line_ends_are_exact(sandbox: Any, text: str) -> None:
    pieces: list[str] = []
    result = sandbox.exec(["printf", "%s", text], on_stdout=pieces.append)
    assert result.stdout == "".join(pieces) == text


def test_characters_are_whole_over_chunks(sandbox: Any) -> None:
    pieces: list[str] = []
    result = sandbox.exec(["python3", "-c", "print('☕'*100000,end='')"], on_stdout=pieces.append)
    assert result.stdout == "".join(pieces) == "☕" * 100_000
    pieces.clear()
    script = r"import os,time;os.write(1,b'caf\xc3');time.sleep(.3);os.write(1,b'\xa9')"
    result = sandbox.exec(["python3", "-c", script], on_stdout=pieces.append)
    assert result.stdout == "".join(pieces) == "café"
    assert "caf" in pieces  # it was told as it came


def test_a_character_cut_by_the_end_is_one_replacement(sandbox: Any) -> None:
    pieces: list[str] = []
    result = sandbox.exec(["printf", r"ab\360\237\230"], on_stdout=pieces.append)
    assert result.stdout == "".join(pieces) == "ab\ufffd"
    assert result.stdout_raw == b"ab\xf0\x9f\x98"


def test_memory_is_bounded_and_says_so(sandbox: Any) -> None:
    result = sandbox.exec("seq 1 200000", max_output="64KiB")
    assert result.truncated and len(result.stdout_raw) == 65536
    assert result.stdout.startswith("1\n2\n") and result.stdout.endswith("199999\n200000\n")
    assert result.stdout_total_bytes > 1_000_000
    assert not sandbox.exec("seq 1 2000", max_output="64KiB").truncated


@pytest.mark.parametrize(
    "given",
    [
        "text é\n",
        b"\x00\xff" * 100,
        b"x" * 3_000_000,
        lambda: io.BytesIO(b"y" * 2_000_000),
        lambda: iter(["a", b"b", "é"]),
        "",
    ],
    ids=["text", "bytes", "large", "file", "iterator", "empty"],
)
def test_stdin(sandbox: Any, given: Any) -> None:
    source = given() if callable(given) else given
    result = sandbox.exec(["cat"], stdin=source, timeout=60)
    again = given() if callable(given) else given
    if hasattr(again, "read"):
        again = again.read()
    elif hasattr(again, "__next__"):
        again = "abé"
    assert result.stdout_raw == (again.encode() if isinstance(again, str) else again)


def test_without_stdin_a_reader_sees_the_end(sandbox: Any) -> None:
    assert sandbox.exec(["cat"], timeout=20).ok


def test_a_program_that_does_not_read_ends_all_the_same(sandbox: Any) -> None:
    result = sandbox.exec("echo done", stdin=iter([b"z" * 1_000_000] * 5), timeout=60)
    assert result.stdout == "done\n"


def test_an_input_that_never_comes_holds_nothing_up(sandbox: Any) -> None:
    reading, writing = os.pipe()
    source = os.fdopen(reading, "rb", buffering=0)
    begun = time.monotonic()
    try:
        assert sandbox.exec("echo hi", stdin=source, timeout=60).stdout == "hi\n"
        assert time.monotonic() - begun < 5
    finally:
        os.close(writing)
        time.sleep(0.1)
        source.close()


def test_a_failing_input_of_a_command_that_is_gone_is_raised_all_the_same(sandbox: Any, fake: Any) -> None:
    def broken() -> Any:
        yield b"first"
        fake.forget_executions = True
        raise LookupError("the source is gone")

    with pytest.raises(LookupError, match="the source is gone"):
        sandbox.exec(["cat"], stdin=broken(), timeout=1)


def test_a_failing_input_ends_the_command_and_is_raised(sandbox: Any, fake: Any) -> None:
    def broken() -> Any:
        yield b"first"
        raise LookupError("the source is gone")

    with pytest.raises(LookupError, match="the source is gone"):
        sandbox.exec(["cat"], stdin=broken(), timeout=60)
    run = list(fake.runs.values())[-1]
    assert run.done and run.record["signal"] == "SIGKILL"


def test_a_broken_stream_is_taken_up_where_it_broke(sandbox: Any, fake: Any) -> None:
    fake.cuts = [10_000, 1, 70_000, 5]
    pieces: list[str] = []
    result = sandbox.exec("seq 1 20000", on_stdout=pieces.append)
    expected = "".join(f"{number}\n" for number in range(1, 20001))
    assert result.stdout == "".join(pieces) == expected
    assert fake.started == 1 and fake.cuts == []
    paths = [path for method, path in fake.requests if method == "GET" and path.endswith("/output")]
    assert len(paths) == 4


def test_an_answer_that_is_lost_at_once_runs_nothing_twice(sandbox: Any, fake: Any) -> None:
    fake.drop_answers = 1
    result = sandbox.exec("echo once")
    assert result.stdout == "once\n" and fake.started == 1


def test_an_execution_that_the_server_forgot_is_unknown_and_never_zero(sandbox: Any, fake: Any) -> None:
    fake.cuts = [3]
    fake.forget_executions = True
    with pytest.raises(StreamInterrupted, match="not known") as caught:
        sandbox.exec("echo hello")
    assert caught.value.details["execution_id"] in fake.runs
    assert fake.started == 1


def test_a_sandbox_that_is_deleted_while_the_connection_is_broken_is_gone(sandbox: Any, fake: Any) -> None:
    """Not unknown: it was there when the output began."""
    fake.cuts = [50_000]
    with pytest.raises(SandboxGone) as caught:
        sandbox.exec(
            "echo a; sleep 0.3; head -c 100000 /dev/zero", on_stdout=lambda _: fake.boxes.pop(sandbox.id, None)
        )
    assert caught.value.details["reason"] == "user" and fake.cuts == []
    with pytest.raises(NotFound):
        sandbox.exec("true")


def test_a_server_that_restarts_is_waited_for(sandbox: Any, server: Any) -> None:
    def restart() -> None:
        time.sleep(0.4)
        server.stop()
        time.sleep(0.4)
        server.start()

    thread = threading.Thread(target=restart)
    thread.start()
    result = sandbox.exec("echo a; sleep 1.5; echo b")
    thread.join()
    assert (result.stdout, result.exit_code) == ("a\nb\n", 0)
    assert server.app.started == 1


def test_giving_up_on_a_server_that_stays_away(sandbox: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_patience, "RECONNECT_S", 1.0)
    timer = threading.Timer(0.3, server.stop)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(StreamInterrupted, match="not known"):
        sandbox.exec("echo a; sleep 60; echo b")
    assert time.monotonic() - begun < 10
    timer.join()
    server.start()


def test_no_server_at_all_is_said_soon(sandbox: Any, server: Any) -> None:
    server.stop()
    begun = time.monotonic()
    with pytest.raises(ConnectionFailed, match="bellglass up"):
        sandbox.exec(["true"])
    assert time.monotonic() - begun < 5
    server.start()
    assert sandbox.exec(["true"]).ok


def test_refusals_are_typed(sandbox: Any, fake: Any) -> None:
    for wrong in (3, None, b"ls", {"a": 1}):
        with pytest.raises(InvalidCommand, match="command"):
            sandbox.exec(wrong)
    with pytest.raises(InvalidCommand):
        sandbox.exec("")
    with pytest.raises(InvalidRequest, match="env"):
        sandbox.exec(["true"], env={"A": float("nan")})
    with pytest.raises(InvalidRequest, match="timeout"):
        sandbox.exec(["true"], timeout=float("nan"))
    with pytest.raises(InvalidRequest, match="stdin"):
        sandbox.exec(["true"], stdin=3)
    with pytest.raises(InvalidRequest, match="max_output"):
        sandbox.exec(["true"], max_output=0)
    assert fake.started == 0


def test_a_sandbox_that_ended_says_why(sandbox: Any, fake: Any) -> None:
    fake.refuse = [SandboxGone("it has ended", details={"reason": "lifetime", "ended_at": "2026-01-01T00:00:00Z"})]
    with pytest.raises(SandboxGone) as caught:
        sandbox.exec(["true"])
    assert caught.value.details["reason"] == "lifetime" and caught.value.request_id == "rqtest"


def test_start_output_and_wait(sandbox: Any) -> None:
    execution = sandbox.start("for i in 1 2 3; do echo $i; sleep .1; done; echo end >&2")
    assert execution.status().state == "running"
    chunks = list(execution.output())
    assert "".join(chunk.text for chunk in chunks if chunk.stream == "stdout") == "1\n2\n3\n"
    assert [chunk.offset for chunk in chunks] == sorted(chunk.offset for chunk in chunks)
    result = execution.wait()
    assert (result.stdout, result.stderr, result.ok) == ("1\n2\n3\n", "end\n", True)
    assert [chunk.data for chunk in execution.output(offset=4)] == [b"3\n", b"end\n"]
    assert execution.status().exit_code == 0
    again = sandbox.execution(execution.id)
    assert again.wait().stdout == "1\n2\n3\n"
    assert [record.id for record in sandbox.executions()] == [execution.id]


def test_output_without_follow_returns_what_there_is(sandbox: Any) -> None:
    execution = sandbox.start("echo early; sleep 60")
    deadline = time.monotonic() + 10
    while not (chunks := list(execution.output(follow=False))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert chunks[0].text == "early\n"
    execution.kill()
    assert execution.wait().signal == "SIGKILL"


def test_lost_output_is_told(sandbox: Any, fake: Any) -> None:
    execution = sandbox.start("printf 0123456789")
    execution.wait()
    fake.runs[execution.id].lost_bytes = 4
    first, second = execution.output()
    assert (first.stream, first.skipped_bytes) == ("skipped", 4)
    assert (second.offset, second.data) == (4, b"456789")
    assert execution.wait().truncated


def test_stdin_of_a_started_one(sandbox: Any) -> None:
    execution = sandbox.start(["cat"], stdin_open=True)
    execution.write_stdin("one\n")
    execution.write_stdin(b"two\n" * 200_000)
    execution.close_stdin()
    assert execution.wait(max_output="1MiB").stdout_total_bytes == 4 + 800_000
    with pytest.raises(Conflict):
        execution.write_stdin("late")


def test_input_whose_answer_is_lost_is_not_sent_twice(sandbox: Any, fake: Any) -> None:
    execution = sandbox.start(["cat"], stdin_open=True)
    execution.write_stdin("one\n")
    fake.drop_answers = 2
    execution.write_stdin("two\n")
    execution.write_stdin("three\n")
    fake.drop_answers = 1
    execution.close_stdin()
    assert execution.wait().stdout == "one\ntwo\nthree\n"
    posts = [path for method, path in fake.requests if method == "POST" and path.endswith("/stdin")]
    assert len(posts) == 4 + 2 + 1


def test_input_goes_on_over_a_restart(sandbox: Any, server: Any) -> None:
    execution = sandbox.start(["cksum"], stdin_open=True)
    execution.write_stdin(b"x" * 1000)
    again = sandbox.execution(execution.id)
    again.write_stdin(b"y" * 1000)
    timer = threading.Timer(0.5, server.start)
    server.stop()
    timer.start()
    execution.write_stdin(b"z" * 1000, eof=True)
    timer.join()
    assert execution.wait().stdout.split()[1] == "3000"


def test_two_writers_over_a_broken_connection_are_told(sandbox: Any, fake: Any) -> None:
    execution = sandbox.start(["cat"], stdin_open=True)
    other = sandbox.execution(execution.id)
    execution.write_stdin("1")
    other.write_stdin("2")
    execution.write_stdin("3")  # another one's bytes lie between, which is no error
    fake.runs[execution.id].input_bytes += 100
    fake.drop_answers = 1
    with pytest.raises(StreamInterrupted, match="not known"):
        execution.write_stdin("4")
    execution.kill()


def test_a_start_whose_answer_is_lost_is_found_again(sandbox: Any, fake: Any) -> None:
    fake.drop_answers = 4
    execution = sandbox.start("echo once")
    assert execution.wait().stdout == "once\n" and fake.started == 1


def test_signals(sandbox: Any) -> None:
    execution = sandbox.start("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep .05; done")
    for chunk in execution.output():
        if "ready" in chunk.text:
            break
    execution.signal("SIGINT")
    result = execution.wait()
    assert result.exit_code == 7 and "caught" in result.stdout


def test_callbacks_that_fail_are_not_swallowed(sandbox: Any) -> None:
    def refuse(text: str) -> None:
        raise LookupError(text)

    with pytest.raises(LookupError, match="hi"):
        sandbox.exec("echo hi", on_stdout=refuse)


def test_an_id_that_is_none_is_not_found(sandbox: Any) -> None:
    for wrong in ("", "../x", "01", 3):
        with pytest.raises(NotFound):
            sandbox.execution(wrong)
