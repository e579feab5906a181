"""Executions, their output and their input while server and node die under them, each killed or stopped in order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bellglass import AsyncSandbox, ExecResult, NodeUnavailable, Sandbox
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack
from tests.functional.waiting import wait_until

KILLS = 20
LAST = 2_000_000
PIECES = 60
PIECE = 40_000
ORDER = (("server", signal.SIGKILL), ("node", signal.SIGKILL), ("server", signal.SIGTERM), ("node", signal.SIGTERM))


@pytest.fixture(scope="module")
def numbers() -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, LAST + 1))


def state(execution: Any) -> str:
    """What the server says once it has the node again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return str(execution.status().state)
        except NodeUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.timeout(600)
def test_a_node_killed_twenty_times_leaves_the_output_exact(own_stack: Stack, own_box: Any, numbers: bytes) -> None:
    heard, digest, kills = 0, hashlib.sha256(), 0
    other = Sandbox.connect(own_box.id, api_url=own_stack.api_url, api_key=own_stack.api_key)
    execution = other.execution("01ARZ3NDEKTSV4RRFFQ69G5FAV")

    def listen(text: str) -> None:
        nonlocal heard, kills
        digest.update(text.encode())
        heard += len(text)
        if kills < KILLS and heard > kills * 200_000:
            assert state(execution) == "running", f"it was over before kill {kills}"
            end_and_await(own_stack, "node")
            kills += 1

    result = own_box.exec(["seq", "1", str(LAST)], id=execution.id, on_stdout=listen, max_output="1MiB")
    assert kills == KILLS
    assert (result.exit_code, result.stdout_total_bytes, heard) == (0, len(numbers), len(numbers))
    assert digest.digest() == hashlib.sha256(numbers).digest()
    chunks = list(execution.output(follow=False))
    assert not any(chunk.skipped_bytes for chunk in chunks)
    assert b"".join(chunk.data for chunk in chunks) == numbers, "the log"
    record = execution.status()
    assert (record.state, record.exit_code, record.stdout_bytes) == ("exited", 0, len(numbers))
    other.close()


def ticks(count: int) -> str:
    return f"for i in $(seq {count}); do echo $i; sleep 0.1; done; echo $$ >> ran; exit 7"


def input_pieces() -> list[bytes]:
    return [os.urandom(PIECE) for _ in range(PIECES)]


class Deaths:
    """Ends the daemons in order, once as many executions run in the box (a request that never reached a server is soon
    given up); `over` is set when all are back."""

    def __init__(self, stack: Stack, box: Sandbox, running: int) -> None:
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self._stack, self._box, self._running = stack, box, running
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            wait_until(self._all_run, 30, "not all have begun")
            for name, number in ORDER:
                end_and_await(self._stack, name, number)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.over.set()

    def _all_run(self) -> bool:
        return len(list(self._box.executions(state="running"))) == self._running

    def __enter__(self) -> Deaths:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        assert self.failure is None


def check(results: dict[str, Any], pieces: list[bytes], count: int) -> None:
    expected = "".join(f"{number}\n" for number in range(1, count + 1))
    for name in ("exec", "wait"):
        result: ExecResult = results[name]
        assert (result.stdout, result.exit_code) == (expected, 7), name
    assert results["output"] == expected.encode()
    digest = hashlib.sha256(b"".join(pieces)).hexdigest()
    for name in ("stdin", "written"):
        assert (results[name].stdout.split()[:1], results[name].exit_code) == ([digest], 0), name


@pytest.mark.timeout(300)
def test_everything_attaches_again(own_stack: Stack, own_box: Any) -> None:
    """Sync: what waits and what reads and what writes go on, whichever daemon goes, and nothing runs twice."""
    own_box.exec("rm -f ran")
    count, pieces = 40, input_pieces()

    def fed(deaths: Deaths) -> Iterator[bytes]:
        for number, piece in enumerate(pieces):
            if number == PIECES - 1:
                deaths.over.wait(120)  # the last piece goes to daemons that have all been replaced
            deaths.over.wait(0.05)
            yield piece

    def write(deaths: Deaths) -> ExecResult:
        execution = own_box.start(["sha256sum"], stdin_open=True)
        for piece in fed(deaths):
            execution.write_stdin(piece)
        execution.close_stdin()
        return execution.wait()

    started, followed = own_box.start(ticks(count)), own_box.start(ticks(count))
    with Deaths(own_stack, own_box, 5) as deaths, ThreadPoolExecutor(5) as pool:
        work: dict[str, Callable[[], Any]] = {
            "exec": lambda: own_box.exec(ticks(count), timeout=120),
            "wait": started.wait,
            "output": lambda: b"".join(chunk.data for chunk in followed.output()),
            "stdin": lambda: own_box.exec(["sha256sum"], stdin=fed(deaths), timeout=200),
            "written": lambda: write(deaths),
        }
        futures = {name: pool.submit(call) for name, call in work.items()}
        results = {name: future.result() for name, future in futures.items()}
    check(results, pieces, count)
    assert len(own_box.exec("cat ran").stdout.split()) == 3


@pytest.mark.timeout(300)
def test_everything_attaches_again_async(own_stack: Stack, own_box: Any) -> None:
    own_box.exec("rm -f ran")
    count, pieces = 40, input_pieces()

    async def fed(deaths: Deaths) -> AsyncIterator[bytes]:
        for number, piece in enumerate(pieces):
            if number == PIECES - 1:
                await asyncio.to_thread(deaths.over.wait, 120)
            await asyncio.sleep(0.05)
            yield piece

    async def scenario(deaths: Deaths) -> dict[str, Any]:
        box = await AsyncSandbox.connect(own_box.id, api_url=own_stack.api_url, api_key=own_stack.api_key)
        started, followed = await box.start(ticks(count)), await box.start(ticks(count))

        async def output() -> bytes:
            return b"".join([chunk.data async for chunk in followed.output()])

        async def write() -> ExecResult:
            execution = await box.start(["sha256sum"], stdin_open=True)
            async for piece in fed(deaths):
                await execution.write_stdin(piece)
            await execution.close_stdin()
            return await execution.wait()

        with deaths:
            found = await asyncio.gather(
                box.exec(ticks(count), timeout=120),
                started.wait(),
                output(),
                box.exec(["sha256sum"], stdin=fed(deaths), timeout=200),
                write(),
            )
        await box.aclose()
        return dict(zip(("exec", "wait", "output", "stdin", "written"), found, strict=True))

    check(asyncio.run(scenario(Deaths(own_stack, own_box, 5))), pieces, count)
    assert len(own_box.exec("cat ran").stdout.split()) == 3
