"""A sandbox's log: lines of all executions and events in the order of time, paged, searched, over killed daemons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bellglass import Sandbox
from bellglass.errors import ConnectionFailed, InvalidRequest, NodeUnavailable, NotFound
from bellglass.model import LogLine
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack
from tests.functional.own import own_installation
from tests.functional.waiting import wait_until

pytestmark = pytest.mark.root
SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}
PATIENCE_S = 30.0
SLOWLY = """
import time
for part in ("be", "gin", " end\\n"):
    print(part, end="")
    time.sleep(0.2)
"""


def written(box: Sandbox, **options: Any) -> list[str]:
    return [line.text for line in box.logs(**options) if line.kind in ("stdout", "stderr")]


def test_lines_in_the_order_of_time(box: Sandbox) -> None:
    box.exec("echo one; echo two >&2; printf 'no end'")
    ticking = box.start("for i in 1 2 3; do echo tick $i; sleep 0.3; done")
    ticking.wait()
    lines = list(box.logs())
    kinds = [line.kind for line in lines]
    assert kinds[:2] == ["sandbox.creating", "sandbox.running"]
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    told = [(line.kind, line.text) for line in lines if line.execution_id is not None]
    assert told[0] == ("started", "started: echo one; echo two >&2; printf 'no end'")
    assert sorted(told[1:4]) == [("stderr", "two"), ("stdout", "no end"), ("stdout", "one")]
    assert told[4] == ("ended", "ended: exit code 0")
    assert [text for _, text in told[6:9]] == ["tick 1", "tick 2", "tick 3"]
    back = list(box.logs(backward=True))
    assert back == lines[::-1]
    assert written(box, execution=ticking.id) == ["tick 1", "tick 2", "tick 3"]
    assert written(box, search="tick 2") == ["tick 2"]
    assert [line.text for line in box.logs(search="ended: exit code 0")] == ["ended: exit code 0"] * 2
    middle = next(line.time for line in lines if line.text == "tick 2")
    assert written(box, start=middle) == ["tick 2", "tick 3"]
    assert written(box, end=middle)[-1] == "tick 2"
    assert written(box, end="1d") == []


def test_a_line_is_whole_however_it_was_written(shared_box: Sandbox) -> None:
    made = shared_box.exec(["python3", "-uc", SLOWLY])
    assert written(shared_box, execution=made.execution_id) == ["begin end"]
    long = shared_box.exec(["python3", "-c", "print('x' * 300000); print('after')"])
    cut, after = [line for line in shared_box.logs(execution=long.execution_id) if line.kind == "stdout"]
    assert (cut.text, cut.truncated) == ("x" * 16384, True)
    assert (after.text, after.truncated) == ("after", False)
    raw = shared_box.exec(["python3", "-c", r"import os; os.write(1, b'\xff\r\n\n\x1b[1m\n')"])
    assert written(shared_box, execution=raw.execution_id) == ["\ufffd", "", "\x1b[1m"]


def test_pages_of_any_size_have_each_line_once(api: Any, shared_box: Sandbox) -> None:
    made = shared_box.exec("seq 1 2500")
    path = f"/v1/sandboxes/{shared_box.id}/logs"
    for direction, size in (("forward", 1000), ("backward", 1000), ("forward", 701)):
        found: list[str] = []
        query = {"direction": direction, "limit": size, "execution": made.execution_id}
        while True:
            page = api.get(path, params=query).json()
            assert len(page["items"]) <= size
            found += [item["text"] for item in page["items"] if item["kind"] == "stdout"]
            if not page["more"]:
                break
            query["cursor"] = page["cursor"]
        assert found == [str(number) for number in range(1, 2501)][:: 1 if direction == "forward" else -1]


def test_a_cursor_goes_on_where_there_was_no_more(api: Any, box: Sandbox) -> None:
    path = f"/v1/sandboxes/{box.id}/logs"
    found: list[str] = []
    cursor = None

    def read() -> list[str]:
        nonlocal cursor
        page = api.get(path, params={"limit": 1000} | ({"cursor": cursor} if cursor else {})).json()
        cursor = page["cursor"]
        found.extend(item["text"] for item in page["items"] if item["kind"] == "stdout")
        return found

    running = box.start("for i in $(seq 40); do echo $i; sleep 0.04; done; printf 'and '; sleep 0.5; echo done")
    wait_until(lambda: read()[-1:] == ["and done"], PATIENCE_S, lambda: f"the end of {found}")
    assert found == [*map(str, range(1, 41)), "and done"]
    assert running.wait().ok


def test_logs_outlive_daemons_and_the_end() -> None:
    with own_installation() as stack, stack.sandbox(**SMALL) as box:
        counting = box.start("for i in $(seq 1000); do echo line $i; sleep 0.05; done")
        wait_until(lambda: "line 3" in written(box), PATIENCE_S, "the first lines")
        for daemon in ("node", "server"):
            end_and_await(stack, daemon)
            seen = len(lines_at_last(box))
            wait_until(lambda: len(lines_at_last(box)) > seen + 3, PATIENCE_S, "lines after the restart")  # noqa: B023
        counting.kill()
        box.update(lifetime="1s")
        wait_until(lambda: box.info().state == "ended", PATIENCE_S, "its end")
        wait_until(lambda: list(box.logs(search="sandbox.ended")) != [], PATIENCE_S, "the event of its end")
        lines = written(box)
        assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
        told: list[LogLine] = list(box.logs())
        assert [line.text for line in told if line.kind == "ended"] == ["ended: SIGKILL"]
        box.delete()
        with pytest.raises(NotFound):
            list(box.logs())


def lines_at_last(box: Sandbox) -> list[str]:
    """Once server and node have found each other again."""
    found: list[str] = []

    def read() -> bool:
        nonlocal found
        try:
            found = written(box)
        except (NodeUnavailable, ConnectionFailed):
            return False
        return True

    wait_until(read, PATIENCE_S, "an answer")
    return found


def test_wrong_values_are_refused(api: Any, stack: Stack, shared_box: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="start"):
        list(shared_box.logs(start="never"))
    path = f"/v1/sandboxes/{shared_box.id}/logs"
    good = api.get(path).json()["cursor"]
    assert api.get(path, params={"cursor": good}).status_code == 200
    for bad in ("x", good[:-2], "W10", "W1sxLC0xXSxudWxsXQ", "W1t0cnVlLDFdLG51bGxd"):
        assert api.get(path, params={"cursor": bad}).status_code == 422, bad
    assert api.get(path, params={"direction": "up"}).status_code == 422
    assert api.get(path, params={"execution": "0" * 25}).status_code == 404


def test_the_command(stack: Stack, shared_box: Sandbox) -> None:
    shared_box.exec(["printf", "for people\\n\\033[31mred\\n"])

    def out(*words: str) -> str:
        done = stack.command("logs", shared_box.id, *words)
        assert done.returncode == 0, done.stderr.decode()
        return str(done.stdout.decode())

    assert out("--all", "--search", "for people").count("stdout  for people") == 1
    assert "?[31mred" in out("-a", "-n", "3")
    items = [json.loads(line) for line in out("--all", "--json", "-n", "2").splitlines()]
    assert [item["kind"] for item in items] == ["stdout", "ended"]
    assert stack.command("logs", shared_box.id, "--search", "x").returncode == 1
