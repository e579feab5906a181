"""Uploads that are refused before or in their middle: who sends first and reads later hears why, within bounds."""

from __future__ import annotations

import itertools
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_harness import Harness
from upload_rig import WAYS, Upload, read

from bellglass.errors import BellglassError, DiskFull, NodeUnavailable, SandboxGone
from bellglass.server.http import rests

LONG = 12 * 2**20
"""More than the kernel's buffers of both sides hold."""
NOT_THERE = "sb" + "a" * 20
SHORT = 1000
CONNECTIONS = 20
STORED = (200, 201)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    settings = {"server.max_file": LONG, "server.max_connections": CONNECTIONS}
    harness = Harness(tmp_path_factory.mktemp("limited"), settings).start()
    yield harness
    harness.stop()


@pytest.fixture
def upload(limited: Harness) -> Iterator[Upload]:
    yield Upload(limited, LONG)
    limited.peer.fail.clear()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long the rest of a body is waited for."""
    monkeypatch.setattr(rests, "REST_S", 0.5)
    return rests.REST_S


def push(connection: socket.socket, pieces: Iterable[bytes], pause_s: float = 0.0) -> float:
    """Send until the other side has cut the connection; after how many seconds that was."""
    began = time.monotonic()
    try:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
    except ConnectionError:
        return time.monotonic() - began
    raise AssertionError("all of it was taken")


def needs(way: str) -> None:
    program = {"by_curl": "curl", "by_fetch": "node"}.get(way)
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"no {program} here")


@pytest.mark.parametrize("way", WAYS)
def test_refused_before_the_body(upload: Upload, tmp_path: Path, way: str) -> None:
    needs(way)
    good = upload.key, upload.sandbox_id, upload.query
    assert upload.ask(way, tmp_path)[0] in STORED
    for changed, value, told in (
        ("key", "Bearer bg_wrong", (401, "unauthorized")),
        ("sandbox_id", NOT_THERE, (404, "not_found")),
        ("query", "path=a&mode=x", (422, "invalid_request")),
        ("length", LONG + 1, (413, "too_large")),
    ):
        upload.key, upload.sandbox_id, upload.query = good
        setattr(upload, changed, value)
        assert upload.ask(way, tmp_path) == told, changed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DiskFull("the sandbox's disk is full"), (507, "disk_full")),
        (SandboxGone("it has ended"), (410, "sandbox_gone")),
        (NodeUnavailable("it goes down"), (503, "node_unavailable")),
    ],
)
def test_refused_by_the_node(
    upload: Upload, tmp_path: Path, error: BellglassError, told: tuple[int, str], way: str
) -> None:
    needs(way)
    upload.harness.peer.fail["file.write"] = error
    assert upload.ask(way, tmp_path) == told
    upload.harness.peer.fail.clear()
    assert upload.ask(way, tmp_path)[0] in STORED


def test_refused_in_the_middle_of_a_body_without_a_length(upload: Upload) -> None:
    assert upload.in_chunks()[0] in STORED
    upload.length += 1
    assert upload.in_chunks() == (413, "too_large")


def test_a_body_whose_chunks_are_none(upload: Upload) -> None:
    """The parser refuses it; the node's half is given up at once, not when the client has gone."""
    upload.harness.peer.reset_streams.clear()
    with upload.dial() as connection:
        connection.sendall(upload.head("transfer-encoding: chunked") + b"5\r\nhello\r\n")
        upload.harness.until(lambda: upload.harness.peer.calls[-1][0] == "file.write")
        connection.sendall(b"no size\r\n" + bytes(LONG))
        upload.harness.until(lambda: upload.harness.peer.reset_streams == ["file.write"])
        assert read(connection) == (400, "bad_request")


# --- the connection ---------------------------------------------------------------------------------------------


def test_a_short_rest_is_read_and_the_connection_kept(upload: Upload) -> None:
    good = upload.key
    with upload.dial() as connection:
        for headers, pieces in (
            (f"content-length: {SHORT}", [bytes(SHORT - 1), b"0"]),
            (f"content-length: {SHORT}", [b"", bytes(SHORT)]),
        ):
            upload.key = "Bearer bg_wrong"
            connection.sendall(upload.head(headers) + pieces[0])
            assert read(connection) == (401, "unauthorized")
            upload.key = good
            connection.sendall(pieces[1] + upload.head("content-length: 0"))
            assert read(connection)[0] in STORED


def test_a_long_rest_ends_the_connection_behind_the_answer(upload: Upload) -> None:
    upload.key = "Bearer bg_wrong"
    with upload.dial() as connection:
        connection.sendall(upload.head(f"content-length: {LONG}") + bytes(SHORT))
        answered = connection.makefile("rb").read()
        assert answered.startswith(b"HTTP/1.1 401") and b"connection: close\r\n" in answered
        connection.sendall(bytes(LONG))  # still taken


def test_what_is_said_behind_a_refused_body_is_no_request(upload: Upload) -> None:
    good, upload.key = upload.key, "Bearer bg_wrong"
    with upload.dial() as connection:
        connection.sendall(upload.head(f"content-length: {LONG}") + bytes(LONG))
        upload.key = good
        connection.sendall(upload.head("content-length: 0"))
        assert connection.makefile("rb").read().count(b"HTTP/1.1") == 1
    assert ("file.write", upload.sandbox_id) not in [
        (op, params.get("sandbox_id")) for op, params in upload.harness.peer.calls
    ]


# --- bounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "piece", "pause_s"),
    [(2**40, bytes(65536), 0.0), (2**40, b"0", 0.05), (SHORT, b"0", 0.05), (None, b"1\r\n0\r\n", 0.05)],
    ids=["for ever", "slowly", "slowly, and short", "slowly, in chunks"],
)
def test_who_does_not_come_to_an_end_is_cut(
    upload: Upload, hasty: float, length: int | None, piece: bytes, pause_s: float
) -> None:
    upload.key = "Bearer bg_wrong"
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    with upload.dial() as connection:
        connection.sendall(upload.head(framing))
        assert read(connection) == (401, "unauthorized")
        assert push(connection, itertools.repeat(piece), pause_s) < hasty + 5


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_who_sends_nothing_more_is_cut(upload: Upload, hasty: float, length: int) -> None:
    upload.key = "Bearer bg_wrong"
    made: Any = upload.harness.server.config.http_protocol_class
    counted = made.keywords["counted"]
    with upload.dial() as connection:
        address = connection.getsockname()

        def is_open() -> bool:
            return address in [each.client for each in list(counted.open)]

        connection.sendall(upload.head(f"content-length: {length}"))
        assert read(connection) == (401, "unauthorized") and is_open()
        upload.harness.until(lambda: not is_open(), hasty + 5)


def test_they_make_room_for_others(upload: Upload) -> None:
    good, upload.key = upload.key, "Bearer bg_wrong"
    crowd = []
    try:
        for _ in range(3 * CONNECTIONS):
            crowd.append(upload.dial())
            crowd[-1].sendall(upload.head(f"content-length: {LONG}") + b"0")
            assert read(crowd[-1]) == (401, "unauthorized")
        upload.key = good
        assert upload.by_hand()[0] in STORED
    finally:
        for one in crowd:
            one.close()


def test_all_together_have_one_pace() -> None:
    pace = rests.Pace()
    assert pace.spend(rests.BYTES_PER_S // 100, 1000.0) == 0
    waits = [pace.spend(rests.BYTES_PER_S // 10, 1000.0) for _ in range(20)]
    assert waits == sorted(waits) and 1.5 < waits[-1] < 2
    assert pace.spend(0, 1001.0) == pytest.approx(waits[-1] - 1)
    assert pace.spend(0, 1003.0) == 0


def test_the_pace_is_kept(upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rests, "BYTES_PER_S", 8 * 2**20)
    monkeypatch.setattr(rests, "BURST_S", 0.0)
    upload.key = "Bearer bg_wrong"
    began = time.monotonic()
    assert upload.by_hand() == (401, "unauthorized")
    assert time.monotonic() - began > 0.5, "some of 12 MiB lay in the kernel's buffers"


# --- Expect: 100-continue ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_nobody_is_asked_for_a_body_that_is_refused(upload: Upload, length: int) -> None:
    good = upload.key, upload.sandbox_id
    expecting = f"content-length: {length}\r\nexpect: 100-continue"
    with upload.dial() as connection:
        connection.sendall(upload.head(expecting))
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(bytes(length))
        assert read(connection)[0] in STORED
    for changed, value, status in (("key", "Bearer bg_wrong", b"401"), ("sandbox_id", NOT_THERE, b"404")):
        upload.key, upload.sandbox_id = good
        setattr(upload, changed, value)
        for sends_anyway in (False, True):
            with upload.dial() as connection:
                connection.sendall(upload.head(expecting))
                if sends_anyway:
                    connection.sendall(bytes(length))
                answered = connection.makefile("rb").read()
            assert answered.startswith(b"HTTP/1.1 " + status) and answered.count(b"HTTP/1.1") == 1
            assert b"connection: close\r\n" in answered, "whether a body follows nobody could tell"


def test_a_length_that_is_refused_is_not_asked_for(upload: Upload) -> None:
    with upload.dial() as connection:
        connection.sendall(upload.head(f"content-length: {LONG + 1}", "expect: 100-continue"))
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 413")


def test_clients_of_http_1_0_are_told_no_100(upload: Upload) -> None:
    with upload.dial() as connection:
        connection.sendall(upload.head(f"content-length: {SHORT}", "expect: 100-continue", version="1.0"))
        connection.sendall(bytes(SHORT))
        answered = connection.makefile("rb").read()
        assert answered.startswith(b"HTTP/1.1 20") and answered.count(b"HTTP/1.1") == 1
