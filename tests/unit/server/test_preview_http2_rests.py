"""Visitors that are answered in HTTP/2 while they still send: they hear the answer, and no reset right behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import httpx2
import pytest
from preview_http2_rig import Raw, speak
from preview_rig import WAIT_S, Site, program, public
from server_harness import Harness

from bellglass.server.http.rests import KEPT_REST_BYTES
from bellglass.server.previews import http2_visit
from bellglass.server.previews.http2 import CONNECTION_WINDOW_BYTES

PIECE_BYTES = 16 * 1024


@pytest.fixture
def raw(harness: Harness) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Raw(connection)


def reset_of(raw: Raw, stream: int) -> h2.errors.ErrorCodes:
    event = raw.until(lambda event: isinstance(event, h2.events.StreamReset) and event.stream_id == stream)
    return event.error_code  # type: ignore[attr-defined, no-any-return]


def answered(raw: Raw, site: Site, status: int) -> int:
    """A stream whose answer has come to its end, and whose request has not."""
    stream = raw.ask(site.host, "/", end=False)
    assert raw.status(stream)[0] == status
    raw.until(lambda event: isinstance(event, h2.events.StreamEnded) and event.stream_id == stream)
    return stream


@pytest.mark.parametrize("status", [200, 401], ids=["by the program", "refused"])
def test_the_rest_is_taken_and_nothing_is_reset(harness: Harness, api: httpx2.Client, raw: Raw, status: int) -> None:
    with program(speak) as made:
        site = public(harness, api, made.port) if status == 200 else Site(harness, api, made.port)
        for _ in range(3):
            stream = answered(raw, site, status)
            raw.http.send_data(stream, b"x" * 1000)
            raw.http.send_data(stream, b"y", end_stream=True)
            raw.flush()
        assert raw.status(raw.ask(site.host, "/"))[0] == status
    assert not [event for event in raw.events if isinstance(event, h2.events.StreamReset)]


def test_who_does_not_end_is_reset(
    harness: Harness, api: httpx2.Client, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(harness, api, 8000)
    monkeypatch.setattr(http2_visit, "LAST_WORDS_S", 0.2)
    assert reset_of(raw, answered(raw, site, 401)) == h2.errors.ErrorCodes.NO_ERROR
    monkeypatch.setattr(http2_visit, "LAST_WORDS_S", 10 * WAIT_S)
    stream = answered(raw, site, 401)
    for _ in range(KEPT_REST_BYTES // 8192):
        raw.http.send_data(stream, bytes(8192))
    raw.flush()
    assert reset_of(raw, stream) == h2.errors.ErrorCodes.NO_ERROR


def test_giving_up_what_was_answered_is_no_flood(harness: Harness, api: httpx2.Client, raw: Raw) -> None:
    site = Site(harness, api, 8000)
    for _ in range(http2_visit.RESETS_BEFORE_WORK + 10):
        raw.http.reset_stream(answered(raw, site, 401))
        raw.events.clear()
    assert raw.status(raw.ask(site.host, "/"))[0] == 401


def test_what_a_program_never_took_does_not_narrow_the_connection(
    harness: Harness, api: httpx2.Client, raw: Raw
) -> None:
    """It answers before it gives room for the body, as who refuses an upload does."""
    sent = threading.Semaphore(0)

    def refuse(connection: socket.socket, head: bytes) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        http.local_settings = h2.settings.Settings(
            client=False, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}
        )
        http.initiate_connection()
        data = head
        while data:
            for event in http.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    connection.sendall(http.data_to_send())
                    assert sent.acquire(timeout=WAIT_S)
                    http.send_headers(event.stream_id, [(":status", "413")], end_stream=True)
            connection.sendall(http.data_to_send())
            data = connection.recv(65536)

    with program(refuse) as made:
        site = public(harness, api, made.port)
        sent.release()
        assert raw.status(raw.ask(site.host, "/"))[0] == 413, "from now on it is known that there is no room"
        for _ in range(2 * CONNECTION_WINDOW_BYTES // PIECE_BYTES):
            assert raw.http.outbound_flow_control_window >= PIECE_BYTES, "there is no room on the connection any more"
            stream = raw.ask(site.host, "/", end=False)
            raw.http.send_data(stream, bytes(PIECE_BYTES))
            raw.http.ping(b"12345678")
            raw.flush()
            raw.until(lambda event: isinstance(event, h2.events.PingAckReceived))
            sent.release()
            assert raw.status(stream)[0] == 413
            raw.http.send_data(stream, b"", end_stream=True)
            raw.flush()
            raw.events.clear()
