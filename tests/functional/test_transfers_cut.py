"""Server or node die in the middle of a big transfer: an error that says "again", the old file or none, and the second
time it works. The first 256 MiB of a gibibyte are on their way when it happens."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bellglass import AsyncSandbox, BellglassError, ConnectionFailed, NodeUnavailable
from bellglass.errors import AgentLost
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack

MIB = 1 << 20
SIZE = 1 << 30
CUT_AT = 256 * MIB
RETRYABLE = (ConnectionFailed, NodeUnavailable, AgentLost)
BLOCK = os.urandom(MIB)


@pytest.fixture(scope="module")
def own_box(own_stack: Stack) -> Iterator[Any]:
    box = own_stack.sandbox(cpus=2, memory="1GiB", disk="4GiB", lifetime="15m")
    box.exec(["mkdir", "in"])
    box.files.write_text("in/file", "old")
    yield box
    again(box.delete)


def blocks(size: int, at_cut: Callable[[], None] | None = None, *, cut_at: int = CUT_AT) -> Iterator[bytes]:
    """Each block differs from its neighbours: a piece at a wrong place is a wrong sum."""
    for number in range(size // MIB):
        if number * MIB == cut_at and at_cut is not None:
            at_cut()
        yield number.to_bytes(8, "little") + BLOCK[8:]


@functools.cache
def digest(size: int) -> str:
    found = hashlib.sha256()
    for block in blocks(size):
        found.update(block)
    return found.hexdigest()


def again(call: Callable[[], Any]) -> Any:
    """As a caller would: while the error says that a retry can help."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except BellglassError as error:
            assert error.retryable and time.monotonic() < deadline, error
            time.sleep(0.1)


def check_nothing_half(box: Any, held: str) -> None:
    """The folder holds the old file and nothing else, soon: the worker inside tidies when its link is gone."""
    deadline = time.monotonic() + 15
    while (names := again(lambda: box.exec(["ls", "-A", "in"])).stdout.split()) != ["file"]:
        assert time.monotonic() < deadline, names
        time.sleep(0.1)
    assert box.files.read_text("in/file") == held


@pytest.mark.timeout(300)
@pytest.mark.parametrize("daemon", ["node", "server"])
def test_an_upload_that_is_cut(own_stack: Stack, own_box: Any, daemon: str) -> None:
    own_box.files.write_text("in/file", "old")
    there_meanwhile: list[list[str]] = []

    def cut() -> None:
        there_meanwhile.append(own_box.exec(["ls", "-A", "in"]).stdout.split())
        end_and_await(own_stack, daemon)

    with pytest.raises(RETRYABLE) as caught:
        own_box.files.upload(blocks(SIZE, cut), "in/file")
    assert caught.value.retryable and caught.value.message
    assert len(there_meanwhile[0]) == 2, "a temporary file stood beside it while it was written"
    check_nothing_half(own_box, "old")
    assert again(lambda: own_box.files.upload(blocks(CUT_AT), "in/file")).sha256 == digest(CUT_AT)
    assert own_box.exec(["stat", "-c", "%s", "in/file"]).stdout == f"{CUT_AT}\n"
    assert own_box.exec(["ls", "-A", "in"]).stdout == "file\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("daemon", ["server", "node"])
def test_a_download_that_is_cut(own_stack: Stack, own_box: Any, daemon: str, tmp_path: Path) -> None:
    local = tmp_path / "file"
    made = f"head -c {CUT_AT} /dev/urandom > part; cat part part part part > big; rm part; stat -c %s big"
    assert own_box.exec(f"[ -f big ] && stat -c %s big || {{ {made}; }}", timeout=120).stdout == f"{SIZE}\n"
    local.write_text("mine")
    cuts = []

    def cut(done: int, _: int | None) -> None:
        if done >= CUT_AT and not cuts:
            cuts.append(done)
            end_and_await(own_stack, daemon)

    with pytest.raises(RETRYABLE) as caught:
        own_box.files.download("big", local, on_progress=cut)
    assert caught.value.retryable and CUT_AT <= cuts[0] < SIZE
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and local.read_text() == "mine"
    # The end of the big one, and the whole of a quarter of it.
    assert (
        again(lambda: own_box.files.read_bytes("big", offset=SIZE - MIB))
        == own_box.exec(["tail", "-c", str(MIB), "big"], max_output="2MiB").stdout_raw
    )
    again(lambda: own_box.files.download("in/file", local))
    with local.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest(CUT_AT)
    local.unlink()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("daemon", ["server", "node"])
def test_both_ways_async(own_stack: Stack, own_box: Any, daemon: str, tmp_path: Path) -> None:
    own_box.files.upload(blocks(64 * MIB), "down")
    own_box.files.write_text("in/file", "old")

    async def scenario() -> None:
        box = await AsyncSandbox.connect(own_box.id, api_url=own_stack.api_url, api_key=own_stack.api_key)
        with pytest.raises(RETRYABLE):
            await box.files.upload(blocks(32 * MIB, lambda: end_and_await(own_stack, daemon), cut_at=MIB), "in/file")
        await asyncio.to_thread(check_nothing_half, own_box, "old")
        cut = False
        with pytest.raises(RETRYABLE):
            async for _ in box.files.read_stream("down"):
                if not cut:
                    cut = True
                    await asyncio.to_thread(end_and_await, own_stack, daemon)
        await box.aclose()

    asyncio.run(scenario())
