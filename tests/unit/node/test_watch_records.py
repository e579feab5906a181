"""What an agent tells of changes: whole, in pieces, hostile; and how it becomes lines for a client."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.node.files.watch import LINE_BYTES, TURN_BYTES, RecordReader, WatchStream, render
from bellglass.wire import tlv
from bellglass.wire.frames import FrameError
from bellglass.wire.guest_watch import Change, Changed, decode_change


def record(letter: str, name: str | None = None, *, folder: bool = False, cookie: int = 0, token: int = 0) -> bytes:
    payload = tlv.put(1, letter)
    payload += tlv.put(2, name) if name is not None else b""
    payload += tlv.put(3, 1) if folder else b""
    payload += tlv.put(4, cookie) if cookie else b""
    payload += tlv.put(5, token) if token else b""
    return len(payload).to_bytes(4, "little") + payload


def test_records_in_any_pieces() -> None:
    raw = record("b") + record("c", "ä\udcff", folder=True, cookie=7) + record("o") + record("s", token=2**63)
    expected = [
        Changed(Change.READY, "", False, 0, 0),
        Changed(Change.CREATE, "ä\udcff", True, 7, 0),
        Changed(Change.OVERFLOW, "", False, 0, 0),
        Changed(Change.SYNCED, "", False, 0, 2**63),
    ]
    for size in (1, 3, 17, len(raw)):
        reader = RecordReader()
        found = [each for at in range(0, len(raw), size) for each in reader.feed(raw[at : at + size])]
        assert found == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",
        record("x"),
        record(""),
        record("cw"),
        record("c", "x" * 9000),
        b"\x02\x00\x00\x00ab",
        b"\x00\x00\x00\x00",
    ],
)
def test_what_is_no_record_ends_it(raw: bytes) -> None:
    with pytest.raises(FrameError):
        RecordReader().feed(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_change_or_an_error(raw: bytes) -> None:
    try:
        change = decode_change(raw)
    except FrameError:
        return
    assert all(json.loads(line)["type"] in ("events", "synced") for line in render([change]))


def test_lines_are_ascii_in_order_and_of_a_bounded_length() -> None:
    name = "\n\u2028\udcff" + "x" * 4000
    changes = [Changed(Change.WRITE, name, False, 0, 0)] * 100
    changes += [Changed(Change.SYNCED, "", False, 0, 5), Changed(Change.RENAME, "d", True, 3, 0)]
    lines = list(render(changes))
    assert all(line.isascii() and line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert max(map(len, lines)) < LINE_BYTES + 8192
    told = [json.loads(line) for line in lines]
    assert [message["type"] for message in told][-2:] == ["synced", "events"] and told[-2]["token"] == 5
    events = [event for message in told if message["type"] == "events" for event in message["events"]]
    assert len(events) == 101
    assert events[0] == {"kind": "write", "path": "\n\u2028\ufffd" + "x" * 4000, "dir": False, "cookie": None}
    assert events[-1] == {"kind": "rename", "path": "d", "dir": True, "cookie": 3}
    assert os.fsencode(name)  # it is a name that a kernel may tell


def test_a_piece_full_of_records_is_taken_a_turn_at_a_time() -> None:
    """All at once would keep everybody else waiting for as long as a piece of the largest size takes."""
    raw = record("w") * 20_000

    async def pieces() -> AsyncIterator[memoryview]:
        yield memoryview(raw[:100_001])
        yield memoryview(raw[100_001:])

    async def turns() -> list[int]:
        watch = WatchStream.__new__(WatchStream)
        watch._pieces, watch._rest, watch._records, watch._spent_s = pieces(), memoryview(b""), RecordReader(), 0.0
        counts = []
        while changes := await watch._next():
            counts.append(len(changes))
        return counts

    counts = asyncio.run(turns())
    assert sum(counts) == 20_000 and max(counts) <= TURN_BYTES // len(record("w")) + 1
