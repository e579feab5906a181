"""The log's ring: offsets, gaps, torn ends, a disk that takes no more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bellglass.node.executions import log as log_module
from bellglass.node.executions.log import Cursor, ExecutionLog
from bellglass.wire.guest import STDERR, STDOUT

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
MIB = 2**20


def read_all(
    log: ExecutionLog, offset: int = 0, *, limit_bytes: int = log_module.MAX_CHUNK_BYTES
) -> tuple[dict[int, bytes], int]:
    cursor, parts, gap = Cursor(offset), {STDOUT: b"", STDERR: b""}, 0
    while chunks := log.read(cursor, limit_bytes):
        assert sum(chunk.length for chunk in chunks if chunk.stream) <= limit_bytes
        for chunk in chunks:
            if chunk.stream:
                parts[chunk.stream] += chunk.data
            else:
                gap += chunk.length
    return parts, gap


def test_no_file_before_the_first_byte(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path, ID, MIB)
    assert read_all(log) == ({STDOUT: b"", STDERR: b""}, 0) and not list(tmp_path.iterdir())
    log.append(STDOUT, b"x")
    assert len(list(tmp_path.iterdir())) == 1
    log.close()


@given(
    st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(min_size=1, max_size=4000)), max_size=60),
    st.integers(0, 5000),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_written_is_read_live_and_after_reopening(tmp_path_factory, writes, offset) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = ExecutionLog(folder, ID, MIB)
    combined = b""
    for stream, data in writes:
        assert log.append(stream, data) == len(combined)
        combined += data
    expected = {stream: b"".join(data for kind, data in writes if kind == stream) for stream in (STDOUT, STDERR)}
    assert read_all(log) == (expected, 0)
    assert read_all(log, limit_bytes=1000) == (expected, 0), "also where a piece ends in the middle of a record"
    parts, gap = read_all(log, offset)
    assert gap == 0 and sum(map(len, parts.values())) == max(len(combined) - offset, 0)
    log.close()
    again = ExecutionLog.reopen(folder, ID, MIB)
    assert read_all(again) == (expected, 0)
    assert again.stream_bytes == {stream: len(data) for stream, data in expected.items()}
    assert again.append(STDOUT, b"more") == len(combined)
    assert read_all(again)[0][STDOUT] == expected[STDOUT] + b"more"
    again.close()


def test_the_ring_drops_the_oldest_and_says_how_much(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path, ID, 4 * MIB)
    cursor = Cursor(0)
    log.append(STDOUT, b"first")
    assert log.read(cursor)[0].data == b"first"
    for number in range(100):
        log.append(STDOUT, bytes([number]) * 100_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * MIB
    parts, gap = read_all(log)
    assert gap == log.start > 0 and gap + len(parts[STDOUT]) == log.total_bytes == 5 + 100 * 100_000
    assert parts[STDOUT].endswith(bytes([99]) * 100_000) and log.truncated
    chunks = log.read(cursor)
    assert chunks[0].stream == 0 and chunks[0].offset == 5, "a slow reader hears of its own gap"
    log.close()
    again = ExecutionLog.reopen(tmp_path, ID, 4 * MIB)
    assert (again.start, again.total_bytes) == (log.start, log.total_bytes)
    again.delete()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 100])
def test_a_torn_record_is_cut_off(tmp_path: Path, cut: int) -> None:
    log = ExecutionLog(tmp_path, ID, MIB)
    log.append(STDOUT, b"whole")
    log.append(STDERR, b"t" * 200)
    log.close()
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - cut)
    again = ExecutionLog.reopen(tmp_path, ID, MIB)
    assert (again.total_bytes, again.stream_bytes) == (5, {STDOUT: 5, STDERR: 0})
    again.append(STDERR, b"anew")
    again.close()
    assert read_all(ExecutionLog.reopen(tmp_path, ID, MIB))[0] == {STDOUT: b"whole", STDERR: b"anew"}


def test_a_full_disk_loses_bytes_counted_and_goes_on(tmp_path: Path, monkeypatch) -> None:
    log = ExecutionLog(tmp_path, ID, MIB)
    log.append(STDOUT, b"before")
    real = os.writev

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module.os, "writev", full)
    assert log.append(STDOUT, b"lost bytes") == 6
    monkeypatch.setattr(log_module.os, "writev", real)
    assert log.append(STDOUT, b"after") == 16
    cursor = Cursor(0)
    seen = []
    while chunks := log.read(cursor):
        seen += [(chunk.stream, chunk.offset, chunk.data, chunk.length) for chunk in chunks]
    assert seen == [(STDOUT, 0, b"before", 6), (0, 6, b"", 10), (STDOUT, 16, b"after", 5)]
    assert log.truncated and log.lost_bytes == 10
    log.close()


def test_damaged_files_are_gaps_not_crashes(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path, ID, MIB)
    log.append(STDOUT, b"a" * 1000)
    log.close()
    next(tmp_path.iterdir()).unlink()
    assert read_all(log) == ({STDOUT: b"", STDERR: b""}, 1000)
    (tmp_path / f"{ID}.0.log").write_bytes(b"not a log")
    assert ExecutionLog.reopen(tmp_path, ID, MIB).total_bytes == 0


def test_followers_wake_and_end(run, tmp_path: Path) -> None:
    async def scenario() -> None:
        log, cursor = ExecutionLog(tmp_path, ID, MIB), Cursor(0)
        waiting = asyncio.create_task(log.wait(cursor))
        await asyncio.sleep(0)
        log.append(STDOUT, b"x")
        assert await waiting is True
        log.read(cursor)
        waiting = asyncio.create_task(log.wait(cursor))
        await asyncio.sleep(0)
        log.finish()
        assert await waiting is False

    run(scenario())


def test_a_hostile_log_of_single_bytes_costs_little(run, tmp_path: Path) -> None:
    """Bytes of alternating streams, each a record: reopening and seeking don't read the whole of it."""
    import time

    async def scenario() -> None:
        log = ExecutionLog(tmp_path, ID, 16 * MIB)
        for _ in range(300_000):
            log.append(STDOUT, b"x")
            log.append(STDERR, b"y")
        log.close()
        began = time.perf_counter()
        again = ExecutionLog.reopen(tmp_path, ID, 16 * MIB)
        finished = ExecutionLog.reopen(tmp_path, ID, 16 * MIB, totals=log.stream_bytes)
        assert time.perf_counter() - began < 0.5
        assert again.total_bytes == finished.total_bytes == 600_000 and again.stream_bytes == log.stream_bytes
        cursor = Cursor(599_000)
        await finished.seek(cursor)
        parts = {STDOUT: b"", STDERR: b""}
        while chunks := finished.read(cursor):
            for chunk in chunks:
                parts[chunk.stream] += chunk.data
        assert parts == {STDOUT: b"x" * 500, STDERR: b"y" * 500}

    run(scenario())


def test_single_bytes_are_read_as_few_chunks(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path, ID, 4 * MIB)
    for _ in range(20_000):
        log.append(STDOUT, b"x")
    chunks = log.read(Cursor(0))
    assert len(chunks) < 10 and sum(chunk.length for chunk in chunks) > 10_000
    log.close()
