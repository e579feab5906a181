"""Executions found again by what the sandbox calls them (pid) or the caller did (tag)."""

from __future__ import annotations

from typing import Any

import pytest

from bellglass.errors import InvalidRequest


def test_pid_and_tag(shared_box: Any) -> None:
    started = shared_box.start(["sleep", "60"], tag="web server")
    status = started.status()
    assert status.tag == "web server"
    assert shared_box.exec(["cat", f"/proc/{status.pid}/cmdline"]).stdout == "sleep\x0060\x00", "as seen inside"
    assert shared_box.exec(["kill", "-0", str(status.pid)]).ok
    assert [item.id for item in shared_box.executions(tag="web server", state="running")] == [started.id]
    assert [item.id for item in shared_box.executions(pid=status.pid)] == [started.id]
    assert list(shared_box.executions(tag="nobody")) == []
    assert shared_box.exec(["kill", str(status.pid)]).ok, "killed from inside"
    ended = started.wait()
    assert ended.signal == "SIGTERM"
    assert list(shared_box.executions(tag="web server", state="running")) == []
    assert [item.state for item in shared_box.executions(tag="web server")] == ["exited"]
    with pytest.raises(InvalidRequest):
        shared_box.start(["true"], tag="x" * 257)


def test_from_now_on_alone(shared_box: Any, api: Any) -> None:
    started = shared_box.start("echo before; read a; echo $a", stdin_open=True)
    assert next(iter(started.output())).data == b"before\n"
    path = f"/v1/sandboxes/{shared_box.id}/executions/{started.id}/output"
    with api.stream(
        "GET", path, params={"follow": "true", "live": "true"}, headers={"accept": "application/x-ndjson"}
    ) as body:
        lines = body.iter_lines()
        assert '"stream": "started"' in next(lines)
        started.write_stdin("after\n")
        rest = list(lines)
    assert '"text":"after\\n"' in rest[0] and '"stream": "exit"' in rest[-1]
