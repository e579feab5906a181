"""process.Process by hand: times, keepalives, selectors, streams of input."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator

from bellglass import Sandbox
from bellglass.testing.stack import Stack
from tests.compat.envd_wire import Live, Wire, command, envelope, output_of, upload


def test_keepalives_come_after_silence(wire: Wire) -> None:
    live = Live(wire, "process.Process/Start", command("sleep 2.5"), Keepalive_Ping_Interval="1")
    events = [next(iter(live.next()[1]["event"])) for _ in range(3)]
    assert events == ["start", "keepalive", "keepalive"]
    live.close()


def test_the_time_of_a_request_is_the_life_of_its_command(wire: Wire) -> None:
    began = time.monotonic()
    answer = wire.start("echo begun; sleep 987", Connect_Timeout_Ms="700")
    assert 0.6 < time.monotonic() - began < 30
    assert output_of(answer) == b"begun\n"
    flags, end = answer.messages[-1]
    assert (flags, end["error"]["code"]) == (2, "deadline_exceeded")
    assert output_of(wire.start("pgrep -f 'sleep 98[7]' || echo none")) == b"none\n"


def test_the_time_of_a_connect_leaves_the_command_running(wire: Wire) -> None:
    first = Live(wire, "process.Process/Start", command("sleep 60", tag="long"))
    pid = first.next()[1]["event"]["start"]["pid"]
    answer = wire.stream("process.Process/Connect", {"process": {"tag": "long"}}, Connect_Timeout_Ms="300")
    assert answer.messages[0][1] == {"event": {"start": {"pid": pid}}}
    assert answer.messages[-1][1]["error"]["code"] == "deadline_exceeded"
    listed = wire.unary("process.Process/List", {}).json["processes"]
    assert [(process["pid"], process["tag"]) for process in listed] == [(pid, "long")]
    assert "envs" not in listed[0]["config"]
    assert wire.unary("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"}).json == {}
    assert first.next()[1]["event"]["end"]["status"] == "signal: terminated"
    assert first.next() == (2, {})
    first.close()


def test_a_process_that_is_not_there(wire: Wire) -> None:
    selectors = ({"pid": 999_999}, {"tag": "never"}, {"pid": 0})
    for selector in selectors:
        for method, more in (
            ("SendSignal", {"signal": "SIGNAL_SIGKILL"}), ("SendInput", {"input": {"stdin": "eA=="}}),
            ("CloseStdin", {}), ("Update", {"pty": {"size": {"cols": 80, "rows": 24}}}),
        ):  # fmt: skip
            answer = wire.unary(f"process.Process/{method}", {"process": selector, **more})
            assert (answer.status, answer.json["code"]) == (404, "not_found"), (method, answer.body)
    for selector in ({}, {"pid": 1, "tag": "x"}, {"pid": "one"}, {"pid": -1}):
        answer = wire.unary("process.Process/SendSignal", {"process": selector, "signal": "SIGNAL_SIGKILL"})
        assert (answer.status, answer.json["code"]) == (400, "invalid_argument"), answer.body


def test_input_is_written_as_it_comes(wire: Wire) -> None:
    process = Live(wire, "process.Process/Start", command("cat", stdin=True))
    pid = process.next()[1]["event"]["start"]["pid"]
    heard: list[bytes] = []

    def frames() -> Iterator[bytes]:
        first = envelope({"start": {"process": {"pid": pid}}}) + envelope({"data": {"input": {"stdin": "b25l"}}})
        yield first[:3]  # cut anywhere
        yield first[3:]
        heard.append(base64.b64decode(process.next()[1]["event"]["data"]["stdout"]))
        yield envelope({"keepalive": {}})
        yield envelope({"data": {"input": {"stdin": "dHdv"}}})
        heard.append(base64.b64decode(process.next()[1]["event"]["data"]["stdout"]))

    stream = Live(wire, "process.Process/StreamInput", frames(), Transfer_Encoding="chunked")
    assert (stream.next(), stream.next()) == ((0, {}), (2, {}))
    assert heard == [b"one", b"two"]
    assert wire.unary("process.Process/CloseStdin", {"process": {"pid": pid}}).json == {}
    assert process.next()[1]["event"]["end"]["exitCode"] == 0
    for live in (process, stream):
        live.close()
    first_is_data = wire.stream("process.Process/StreamInput", {"data": {"input": {"stdin": "eA=="}}})
    assert first_is_data.messages[-1][1]["error"]["code"] == "failed_precondition"


def test_a_client_that_is_slow_gets_every_byte(wire: Wire) -> None:
    """More than all that lies between keeps: the program waits."""
    live = Live(wire, "process.Process/Start", command("head -c 150000000 /dev/zero | tr '\\0' y; echo end"))
    live.next()
    wire.start("sleep 1")  # while nobody reads
    size, tail = 0, b""
    while True:
        flags, message = live.next()
        if flags == 2 or "end" in message["event"]:
            break
        tail = base64.b64decode(message["event"]["data"]["stdout"])
        size += len(tail)
    live.close()
    assert (size, tail[-4:]) == (150_000_004, b"end\n")


def test_executions_of_interpreters_are_nobodys_processes(wire: Wire, stack: Stack, e2b_key: str) -> None:
    box = Sandbox.connect(wire.sandbox_id, api_url=stack.api_url, api_key=e2b_key)
    try:
        kernel = box.start(["sleep", "600"], tag="context:hidden")
        shown = box.start(["sleep", "600"], tag="shown")
        pids = {execution.id: execution.pid for execution in box.executions(state="running")}
        listed = wire.unary("process.Process/List", {}).json["processes"]
        assert [process["tag"] for process in listed] == ["shown"]
        for selector, status in (
            ({"pid": pids[kernel.id]}, 404),
            ({"tag": "context:hidden"}, 404),
            ({"tag": "shown"}, 200),
        ):
            message = {"process": selector, "signal": "SIGNAL_SIGKILL"}
            assert wire.unary("process.Process/SendSignal", message).status == status
        kernel.signal("SIGKILL")
        for execution in (kernel, shown):
            execution.wait()
    finally:
        box.close()
    answer = wire.stream("process.Process/Start", command("true", tag="context:mine"))
    assert answer.messages[-1][1]["error"]["code"] == "invalid_argument"


def test_a_watch_on_the_wire(wire: Wire) -> None:
    wire.unary("filesystem.Filesystem/MakeDir", {"path": "/tmp/watched"})
    live = Live(wire, "filesystem.Filesystem/WatchDir", {"path": "/tmp/watched"}, Keepalive_Ping_Interval="1")
    assert live.next() == (0, {"start": {}})
    assert live.next() == (0, {"keepalive": {}})
    upload(wire, "/tmp/watched/file", b"x")
    kinds = [live.next()[1]["filesystem"] for _ in range(3)]
    assert kinds == [{"name": "file", "type": f"EVENT_TYPE_{kind}"} for kind in ("CREATE", "CHMOD", "WRITE")]
    live.close()
    unknown = wire.unary("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "never"})
    assert (unknown.status, unknown.json["code"]) == (404, "not_found")
    made = [wire.unary("filesystem.Filesystem/CreateWatcher", {"path": "/tmp/watched"}) for _ in range(70)]
    ids = [answer.json["watcherId"] for answer in made if answer.status == 200]
    assert 0 < len(ids) <= 64
    assert {answer.json["code"] for answer in made if answer.status != 200} == {"resource_exhausted"}
    for watcher in ids:
        assert wire.unary("filesystem.Filesystem/RemoveWatcher", {"watcherId": watcher}).json == {}
    assert wire.unary("filesystem.Filesystem/GetWatcherEvents", {"watcherId": ids[0]}).status == 404
