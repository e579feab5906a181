"""Executions belong to their sandbox: started, left, found again by id, fed, signalled, and read from any offset."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bellglass.errors import Conflict, InvalidRequest, NotFound
from bellglass.ids import new_ulid


def test_start_leave_and_find_again(shared_box: Any) -> None:
    execution = shared_box.start("for i in 1 2 3 4 5; do echo $i; sleep 0.2; done; exit 4")
    assert execution.status().state == "running"
    again = shared_box.execution(execution.id)
    result = again.wait()
    assert (result.stdout, result.exit_code) == ("1\n2\n3\n4\n5\n", 4)
    record = again.status()
    assert (record.state, record.exit_code, record.detached, record.stdout_bytes) == ("exited", 4, True, 10)
    assert execution.id in [item.id for item in shared_box.executions()]
    assert again.wait().stdout == "1\n2\n3\n4\n5\n", "the log is kept"
    with pytest.raises(NotFound):
        shared_box.execution(new_ulid()).status()


def test_the_log_by_offset(shared_box: Any) -> None:
    execution = shared_box.start("printf abcdef; printf XYZ >&2; printf ghi")
    execution.wait()
    assert execution.status().output_bytes == 12
    for offset in range(13):
        chunks = list(execution.output(follow=False, offset=offset))
        assert sum(len(chunk.data) for chunk in chunks) == 12 - offset
        assert all(chunk.offset >= offset for chunk in chunks)
    assert list(execution.output(follow=False, offset=12)) == []


def test_following_gives_lines_as_they_come(shared_box: Any) -> None:
    execution = shared_box.start("for i in 1 2 3; do echo $i; sleep 0.5; done")
    started, arrivals = time.monotonic(), []
    for chunk in execution.output(follow=True):
        arrivals.append(time.monotonic() - started)
        assert chunk.stream == "stdout"
    assert len(arrivals) == 3 and arrivals[-1] - arrivals[0] > 0.7


def test_several_at_once(shared_box: Any) -> None:
    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: shared_box.exec(f"sleep 1; echo {n}"), range(8)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]
    assert time.monotonic() - started < 6


def test_the_same_id_attaches(shared_box: Any, api: httpx2.Client) -> None:
    path = f"/v1/sandboxes/{shared_box.id}/executions"
    shared_box.files.write_text("count", "")
    body = {"id": new_ulid(), "command": "echo run >> count; sleep 0.5; cat count"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: api.post(path, json=body), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4, answers[0].text
    assert {answer.json()["stdout"] for answer in answers} == {"run\n"}
    other = api.post(path, json={**body, "command": "echo other"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    for id in ("x", "0" * 25, "../../etc", "01ARZ3NDEKTSV4RRFFQ69G5FAU"):
        assert api.post(path, json={"id": id, "command": "true"}).status_code in (404, 422), id


def test_streamed_input(shared_box: Any) -> None:
    execution = shared_box.start(["sort"], stdin_open=True)
    execution.write_stdin("b\nc\n")
    execution.write_stdin("a\n")
    assert execution.status().state == "running"
    execution.close_stdin()
    assert execution.wait().stdout == "a\nb\nc\n"
    with pytest.raises(Conflict):
        execution.write_stdin("late")
    closed = shared_box.start(["sleep", "1"])
    with pytest.raises(Conflict):
        closed.write_stdin("x")
    closed.wait()


def test_big_input_waits_for_its_reader(shared_box: Any) -> None:
    block = bytes(range(256)) * 4096
    result = shared_box.exec(["sh", "-c", "sleep 1; wc -c"], stdin=(block for _ in range(32)), timeout=60)
    assert int(result.stdout) == 32 * len(block)
    ended = shared_box.exec(["head", "-c", "10"], stdin=b"0123456789" + b"x" * (4 << 20))
    assert ended.stdout == "0123456789"


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT", "SIGKILL", "SIGHUP", 15])
def test_signals_end_the_tree(shared_box: Any, signal: str | int) -> None:
    # Not by `&`: a shell lets its background jobs ignore SIGINT.
    program = "import subprocess; subprocess.run(['sh', '-c', 'sleep 41; :'])"
    execution = shared_box.start(["python3", "-c", program])
    deadline = time.monotonic() + 10
    while not shared_box.exec(["pgrep", "-fx", "sleep 41"]).stdout:
        assert time.monotonic() < deadline
    execution.signal(signal)
    result = execution.wait()
    assert result.exit_code >= 128 or result.signal or signal == "SIGINT", result
    assert shared_box.exec(["pgrep", "-fx", "sleep 41"]).stdout == ""


def test_signals_that_are_none(shared_box: Any) -> None:
    execution = shared_box.start(["sleep", "30"])
    for wrong in ("SIGNONE", "", 0, 65, -1):
        with pytest.raises(InvalidRequest):
            execution.signal(wrong)
    execution.kill()
    assert execution.wait().signal == "SIGKILL"
    execution.kill()
    with pytest.raises(Conflict):
        execution.signal("SIGTERM")


def test_many_processes_die_with_the_tree(shared_box: Any) -> None:
    execution = shared_box.start("for i in $(seq 60); do (trap '' TERM INT HUP; setsid sleep 43) & done; wait")
    deadline = time.monotonic() + 10
    while len(shared_box.exec(["pgrep", "-fx", "sleep 43"]).stdout.split()) < 60:
        assert time.monotonic() < deadline
    started = time.monotonic()
    execution.kill()
    assert execution.wait().exit_code == 137
    assert time.monotonic() - started < 2
    assert shared_box.exec(["pgrep", "-fx", "sleep 43"]).stdout == ""


def test_a_full_log_loses_the_oldest_and_says_so(box: Any) -> None:
    execution = box.start(["sh", "-c", "yes 0123456789abcde | head -c 80000000; echo; echo end"])
    record = execution.wait(max_output="1MiB")
    assert record.stdout.endswith("\nend\n") and record.truncated and record.exit_code == 0
    chunks = list(execution.output(follow=False))
    skipped = sum(chunk.skipped_bytes for chunk in chunks)
    kept = sum(len(chunk.data) for chunk in chunks)
    assert skipped > 0 and skipped + kept == 80_000_005
    assert kept <= 64 << 20
