"""What a visitor of HTTP/2 may make the server keep or do: tiny pieces, no windows, big tables, empty frames."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.settings
import httpx2
import pytest
from hyperframe.frame import DataFrame, SettingsFrame
from preview_http2_rig import Raw, speak
from preview_rig import WAIT_S, Site, Visitor, program, public, silent
from server_harness import Harness

from bellglass.server.previews import http2, http2_visit
from bellglass.server.previews.http2 import Endpoint
from bellglass.server.previews.source import Source


class Fed(Source):
    """Bytes that a peer said, all at once."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.held += data
        self.ended = asyncio.Event()

    async def more(self) -> bytes:
        await self.ended.wait()
        return b""


def begun(**settings: int) -> h2.connection.H2Connection:
    http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="latin-1"))
    if settings:
        http.local_settings.update({getattr(h2.settings.SettingCodes, name): value for name, value in settings.items()})
    http.initiate_connection()
    return http


async def fed(data: bytes) -> Endpoint:
    """An endpoint that has read it all."""

    async def send(data: bytes) -> None:
        return

    source = Fed(data)
    endpoint = Endpoint(source, send, lambda stream: None)
    running = asyncio.create_task(endpoint.run(ConnectionResetError()))
    while source.held:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return endpoint


def test_the_table_of_headers_that_were_sent_stays_small() -> None:
    changes = b"".join(
        SettingsFrame(settings={SettingsFrame.HEADER_TABLE_SIZE: size}).serialize() for size in [2**31, 2**30] * 2000
    )
    endpoint = asyncio.run(fed(begun().data_to_send() + changes))
    encoder = endpoint._connection.encoder
    assert encoder.header_table_size <= http2.HEADER_TABLE_BYTES and len(encoder.table_size_changes) <= 2


def test_a_peer_that_changes_the_size_of_its_table_still_understands(
    harness: Harness, api: httpx2.Client, raw: Raw
) -> None:
    with program(speak) as made:
        site = public(harness, api, made.port)
        for size in (65536, 0, 65536, 100):
            raw.http.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
            raw.flush()
            assert raw.status(raw.ask(site.host, "/", ("x-long", "y" * 200)))[0] == 200


def test_single_bytes_cost_no_more_than_they_are() -> None:
    http = begun()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/")]
    http.send_headers(1, fields)
    said = http.data_to_send() + DataFrame(1, data=b"x").serialize() * 50_000

    async def read() -> int:
        endpoint = await fed(said)
        items = endpoint.streams[1].items
        assert sum(len(item.data) for item in items) == sum(item.flow_bytes for item in items) == 50_000
        return len(items)

    assert asyncio.run(read()) < 10


def test_frames_that_say_nothing_leave_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "READ_BYTES", 1024)
    said = begun().data_to_send() + SettingsFrame().serialize() * 20_000

    async def turns() -> int:
        taken = 0

        async def count() -> None:
            nonlocal taken
            while True:
                taken += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await fed(said)
        counting.cancel()
        return taken

    assert asyncio.run(turns()) >= len(said) // http2.READ_BYTES


@pytest.fixture
def raw(harness: Harness) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
        yield Raw(connection)


def test_streams_given_up_one_by_one_are_counted(harness: Harness, api: httpx2.Client, raw: Raw) -> None:
    with program(silent) as made:
        site = public(harness, api, made.port)
        ended: list[h2.events.Event] = []
        for _ in range(2 * http2_visit.RESETS_BEFORE_WORK):
            raw.http.reset_stream(raw.ask(site.host, "/"))
            raw.http.ping(b"12345678")
            raw.flush()
            raw.events.clear()
            raw.until(lambda event: isinstance(event, (h2.events.PingAckReceived, h2.events.ConnectionTerminated)))
            ended = [event for event in raw.events if isinstance(event, h2.events.ConnectionTerminated)]
            if ended:
                break
        assert ended, "streams that were given up count as work that was done"


def no_window(harness: Harness, site: Site) -> Raw:
    """A visitor that shows nothing, asks, and never gives room for the answer."""
    visitor = Raw(socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S))
    visitor.http.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    visitor.flush()
    assert visitor.status(visitor.ask(site.host, "/"))[0] == 401
    return visitor


def test_who_was_not_let_in_keeps_no_connection_by_refusing_the_answer(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "data", {"previews.max_connections": 4}).start()
    try:
        with program() as made:
            site = Site(harness, harness.project("p1"), made.port)
            token = site.token()["token"]
            strangers = [no_window(harness, site) for _ in range(4)]
            with Visitor(harness.previews_port, site.host) as visitor:
                assert visitor.ask("/", f"X-Bellglass-Token: {token}").status == 200
            for stranger in strangers:
                stranger.socket.close()
    finally:
        harness.stop()


def test_an_answer_of_ours_that_nobody_takes_is_given_up(
    harness: Harness, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_visit, "ANSWER_S", 0.3)
    visitor = no_window(harness, Site(harness, api, 8000))
    reset = visitor.until(lambda event: isinstance(event, h2.events.StreamReset))
    assert isinstance(reset, h2.events.StreamReset) and reset.error_code == h2.errors.ErrorCodes.CANCEL
    visitor.socket.close()
