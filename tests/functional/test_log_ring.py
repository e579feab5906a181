"""What is kept of much output, in bytes: the stream that started an execution gets all and blocks the program; who
comes later, and executions that nobody waits for, lose the oldest, and are told how much."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Any

import pytest

from bellglass import Sandbox
from bellglass.testing.stack import Stack

LIMIT = 8 << 20
pytestmark = pytest.mark.own_stack(settings={"node.log_limit": LIMIT})
SEGMENT = LIMIT // 16
TOTAL = 48_000_000
LINE = b"0123456789abcde\n"
PROGRAM = f"yes 0123456789abcde | head -c {TOTAL}"
ON_THE_WAY = 16 << 20
"""The most between a program and a client that has stopped reading: pipe, windows, sockets, the log's lead."""


def expected(start: int, end: int) -> bytes:
    first = start // len(LINE)
    return (LINE * ((end - start) // len(LINE) + 2))[start - first * len(LINE) :][: end - start]


def check_ring(chunks: list[Any], total: int) -> None:
    """One gap at the beginning, counted to the byte; then everything to the end, between 14 and 16 segments of it."""
    gaps = [chunk for chunk in chunks if chunk.skipped_bytes]
    kept = b"".join(chunk.data for chunk in chunks)
    assert len(gaps) == 1 and chunks[0] is gaps[0] and gaps[0].offset == 0
    assert gaps[0].skipped_bytes + len(kept) == total
    assert kept == expected(gaps[0].skipped_bytes, total)
    assert LIMIT - 2 * SEGMENT < len(kept) <= LIMIT


def test_the_starter_gets_every_byte_and_blocks_the_program(own_stack: Stack, own_box: Any) -> None:
    watcher = Sandbox.connect(own_box.id, api_url=own_stack.api_url, api_key=own_stack.api_key)
    execution = watcher.execution("01ARZ3NDEKTSV4RRFFQ69G5FA0")
    digest, heard, stopped_at = hashlib.sha256(), 0, []

    def listen(text: str) -> None:
        nonlocal heard
        digest.update(text.encode())
        heard += len(text)
        if not stopped_at:
            deadline, said = time.monotonic() + 30, [-1, execution.status().output_bytes]
            while said[-1] != said[-2]:  # until the program gets no further
                assert time.monotonic() < deadline
                time.sleep(0.5)
                said.append(execution.status().output_bytes)
            stopped_at.append(said[-1])
            assert execution.status().state == "running"

    result = own_box.exec(PROGRAM, id=execution.id, on_stdout=listen, max_output="64KiB")
    assert stopped_at[0] <= ON_THE_WAY < TOTAL
    assert (result.exit_code, result.stdout_total_bytes, heard) == (0, TOTAL, TOTAL)
    assert digest.digest() == hashlib.sha256(expected(0, TOTAL)).digest()
    check_ring(list(execution.output()), TOTAL)
    assert execution.status().truncated, "of the log, and the starter had it all"
    watcher.close()


def test_a_detached_one_never_waits_and_keeps_the_newest(own_box: Any) -> None:
    execution = own_box.start(PROGRAM)
    deadline = time.monotonic() + 60
    while (record := execution.status()).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (record.exit_code, record.output_bytes, record.truncated) == (0, TOTAL, True)
    check_ring(list(execution.output(follow=False)), TOTAL)
    for offset in (TOTAL - 1, TOTAL - LIMIT // 2):
        chunks = list(execution.output(follow=False, offset=offset))
        assert b"".join(chunk.data for chunk in chunks) == expected(offset, TOTAL)
        assert not any(chunk.skipped_bytes for chunk in chunks)
    small = own_box.start("yes 0123456789abcde | head -c 4000000")
    assert not small.wait().truncated
    assert b"".join(chunk.data for chunk in small.output(follow=False)) == expected(0, 4_000_000)


def test_a_slow_later_reader_is_told_of_its_gap_and_holds_nobody_up(own_box: Any) -> None:
    execution = own_box.start(f"read -r go; {PROGRAM}", stdin_open=True)
    go, over = threading.Event(), threading.Event()
    chunks: list[Any] = []

    def read_slowly() -> None:
        for chunk in execution.output(follow=True):
            chunks.append(chunk)
            go.set()
            over.wait(60)  # the first piece, and then nothing until the program has long ended

    reader = threading.Thread(target=read_slowly)
    reader.start()
    execution.write_stdin("go\n")
    assert go.wait(30)
    result = own_box.execution(execution.id).wait(max_output="64KiB")
    assert result.exit_code == 0
    over.set()
    reader.join(60)
    gaps = [chunk for chunk in chunks if chunk.skipped_bytes]
    assert gaps and gaps[0].offset > 0, "it had the beginning, and was overtaken"
    position = 0
    for chunk in chunks:
        assert chunk.offset == position
        assert chunk.data == expected(position, position + len(chunk.data))
        position += chunk.skipped_bytes or len(chunk.data)
    assert position == TOTAL
