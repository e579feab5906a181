"""Visitors that are answered in HTTP/2 while they still send: they hear the answer, and no reset right behind it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import h2.errors
import h2.events
import httpx2
import pytest
from preview_http2_rig import Raw, speak
from preview_rig import WAIT_S, Site, program, public
from server_harness import Harness

from bellglass.server.http.rests import KEPT_REST_BYTES
from bellglass.server.previews import http2_visit


@pytest.fixture
def raw(harness: Harness) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
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
