"""envd's protocol by hand: frames, media types, codes, and who may."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.compat.envd_wire import STREAM, UNARY, Wire, envelope, output_of


def test_a_stream_is_framed_as_clients_take_it(wire: Wire) -> None:
    answer = wire.start("printf out; printf err >&2; exit 3")
    assert (answer.status, answer.headers["content-type"]) == (200, STREAM)  # parameters would break clients
    assert answer.headers["transfer-encoding"] == "chunked"
    (first_flags, first), *middle, (end_flags, end), (last_flags, last) = answer.messages
    assert first_flags == 0 and first["event"]["start"]["pid"] > 1
    assert (output_of(answer), output_of(answer, "stderr")) == (b"out", b"err")
    fields = {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    assert (end_flags, end) == (0, {"event": {"end": fields}})
    assert (last_flags, last) == (2, {})
    assert all(flags == 0 for flags, _ in middle)


def test_a_killed_process_has_no_exit_code(wire: Wire) -> None:
    end = wire.start("kill -SEGV $$").messages[-2][1]["event"]["end"]
    assert end == {
        "exitCode": -1, "exited": False, "status": "signal: segmentation fault", "error": "signal: segmentation fault",
    }  # fmt: skip


def test_unary_answers_are_plain_json(wire: Wire) -> None:
    answer = wire.unary("filesystem.Filesystem/Stat", {"path": "/etc/hostname"}, Connect_Protocol_Version="1")
    assert (answer.status, answer.headers["content-type"]) == (200, UNARY)
    entry = answer.json["entry"]
    assert entry["type"] == "FILE_TYPE_FILE" and isinstance(entry["size"], str) and entry["path"] == "/etc/hostname"
    assert wire.unary("filesystem.Filesystem/Stat", {"path": "/etc"}).json["entry"]["type"] == "FILE_TYPE_DIRECTORY"


def test_messages_are_read_as_proto3_json(wire: Wire) -> None:
    for message in (
        {"path": "/etc", "depth": "1", "unknown": [1, {"a": None}]},
        {"path": "/etc", "depth": 1.0},
        {"path": "/etc", "depth": None},
    ):
        assert wire.unary("filesystem.Filesystem/ListDir", message).status == 200, message
    assert wire.unary("process.Process/List", b"").json == {"processes": []}
    answer = wire.stream("process.Process/Start", {"process": {"cmd": "/bin/echo", "args": ["x"], "envs": None}})
    assert output_of(answer) == b"x\n"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"path": NaN}', "not JSON"),
        (b'{"path": "\\ud800"}', "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"path": 5}', "path"),
        (b'{"path": "/etc", "depth": -1}', "depth"),
        (b'{"path": "/etc", "depth": true}', "depth"),
        (b'{"path": "/etc\\u0000"}', "NUL"),
    ],
)
def test_broken_messages_are_the_callers_fault(wire: Wire, body: bytes, part: str) -> None:
    assert wire.unary("filesystem.Filesystem/ListDir", {"path": "/etc"}).status == 200
    answer = wire.unary("filesystem.Filesystem/ListDir", body)
    assert (answer.status, answer.json["code"]) == (400, "invalid_argument"), answer.body
    assert part in answer.json["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_argument"),
        (b"\0\0\0\0", "invalid_argument"),
        (envelope({})[:-1], "invalid_argument"),
        (envelope({}), "invalid_argument"),
        (envelope({"process": {"cmd": ["x"]}}), "invalid_argument"),
        (envelope({"process": {"cmd": "x", "envs": {"A": 1}}}), "invalid_argument"),
        (envelope({"process": {"cmd": "/bin/true"}}, flags=1), "internal"),
        (envelope({"process": {"cmd": "/bin/true"}}, flags=4), "invalid_argument"),
        (envelope({"process": {"cmd": "/bin/true"}}) * 2, "invalid_argument"),
        (struct.pack(">BI", 0, 2**32 - 1), "resource_exhausted"),
        (envelope(b"{nonsense"), "invalid_argument"),
    ],
)
def test_broken_frames_are_told_at_the_end_of_the_stream(wire: Wire, body: bytes, code: str) -> None:
    answer = wire.ask("POST", "/process.Process/Start", body, Content_Type=STREAM)
    assert (answer.status, answer.headers["content-type"]) == (200, STREAM)
    ((flags, end),) = answer.messages
    assert (flags, end["error"]["code"]) == (2, code), end
    assert wire.start("echo still here").status == 200


@pytest.mark.parametrize("kind", ["application/proto", "application/connect+proto", STREAM, "text/plain", ""])
def test_other_codecs_are_refused(wire: Wire, kind: str) -> None:
    answer = wire.unary("process.Process/List", {}, Content_Type=kind)
    assert (answer.status, answer.headers["accept-post"]) == (415, UNARY)
    assert wire.unary("process.Process/List", {}, Content_Type="application/json; charset=utf-8").status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Connect_Protocol_Version": "2"}, 400),
        ({"Connect_Timeout_Ms": "1e3"}, 400),
        ({"Connect_Timeout_Ms": "-1"}, 400),
        ({"Connect_Timeout_Ms": "99999999999"}, 400),
        ({"Content_Encoding": "gzip"}, 501),
        ({"Authorization": "Basic !!!"}, 401),
    ],
)
def test_headers_that_can_not_be_read(wire: Wire, headers: dict[str, str], status: int) -> None:
    assert wire.unary("process.Process/List", {}, Connect_Timeout_Ms="60000", Content_Encoding="identity").status == 200
    assert wire.unary("process.Process/List", {}, **headers).status == status


def test_methods_and_paths_that_are_not_there(wire: Wire) -> None:
    assert wire.ask("GET", "/process.Process/List").status == 405
    assert wire.ask("POST", "/health").status == 405
    assert wire.ask("PUT", "/files?path=x").status == 405
    for path in ("/process.Process/Nothing", "/init", "/envs", "/metrics", "/", "/v1/sandboxes"):
        answer = wire.ask("POST", path, b"{}", Content_Type=UNARY)
        assert (answer.status, answer.json["code"]) == (404, 404), path


def test_tokens_open_their_own_sandbox_alone(
    wire: Wire, create: Callable[[], Wire], delete: Callable[[Wire], None]
) -> None:
    other = create()
    try:
        assert other.start("true").status == 200
        for token in (None, "", "x", other.token, wire.token.upper() if wire.token else "", "ü"):
            mine = Wire(f"http://{wire.address}", wire.sandbox_id, token)
            for answer in (
                mine.unary("process.Process/List", {}),
                mine.start("true"),
                mine.ask("GET", "/files?path=/etc/passwd"),
                mine.ask("POST", "/files?path=/tmp/x", b"x", Content_Type="application/octet-stream"),
            ):
                assert (answer.status, answer.json["code"]) == (401, 401), (token, answer.body)
            assert mine.ask("GET", "/health").status == 204
    finally:
        delete(other)


def test_sandboxes_that_are_not_there_look_alike(create: Callable[[], Wire], delete: Callable[[Wire], None]) -> None:
    gone = create()
    assert gone.ask("GET", "/health").status == 204
    delete(gone)
    never = Wire(f"http://{gone.address}", "sb" + "a" * 20, gone.token)
    for wire in (gone, never, Wire(f"http://{gone.address}", gone.sandbox_id, "wrong")):
        for answer in (wire.ask("GET", "/health"), wire.unary("process.Process/List", {}), wire.start("true")):
            assert answer.status == 502
            assert answer.json == {
                "sandboxId": wire.sandbox_id, "message": "The sandbox was not found", "code": 502,
            }  # fmt: skip
