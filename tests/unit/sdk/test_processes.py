"""Threads, forks and one event loop after the other: connections are never shared where they must not be."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bellglass import AsyncSandbox, Sandbox
from bellglass.errors import StreamInterrupted


def test_threads_share_a_sandbox(server: Any) -> None:
    with Sandbox() as box, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: box.exec(["echo", str(number)]).stdout, range(64)))
    assert results == [f"{number}\n" for number in range(64)]


def test_tasks_share_a_sandbox(server: Any) -> None:
    async def check() -> list[str]:
        async with AsyncSandbox() as box:
            results = await asyncio.gather(*[box.exec(["echo", str(number)]) for number in range(64)])
            return [result.stdout for result in results]

    assert asyncio.run(check()) == [f"{number}\n" for number in range(64)]


def in_child(work: Any) -> str:
    """Fork, run `work`, and return what it gives; the child never returns into the test."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            try:
                answer = work()
            except BaseException as error:
                answer = repr(error)
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + 20
    with os.fdopen(reading) as answers:
        text = answers.read()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return text


def test_a_forked_child_opens_connections_of_its_own(server: Any) -> None:
    with Sandbox() as box:
        assert box.exec("echo parent").stdout == "parent\n"
        assert in_child(lambda: box.exec("echo child").stdout) == "child\n"
        assert box.exec("echo parent").stdout == "parent\n"


def test_a_fork_in_the_middle_of_a_stream_leaves_the_stream_alone(server: Any) -> None:
    with Sandbox() as box:
        texts: list[str] = []
        thread = threading.Thread(
            target=lambda: texts.append(box.exec("for i in 1 2 3 4 5 6; do echo $i; sleep .1; done").stdout)
        )
        thread.start()
        time.sleep(0.2)
        assert in_child(lambda: box.exec("echo child").stdout) == "child\n"
        thread.join()
        assert texts == ["1\n2\n3\n4\n5\n6\n"]
    assert server.app.started == 2


def test_a_child_that_leaves_the_block_deletes_nothing(server: Any) -> None:
    with Sandbox() as box:

        def leave() -> str:
            box.__exit__(None, None, None)
            return "left"

        assert in_child(leave) == "left"
        assert box.id in server.app.boxes
        assert box.exec("echo still").stdout == "still\n"
    assert server.app.boxes == {}


def test_one_async_sandbox_in_several_loops(server: Any) -> None:
    async def make() -> AsyncSandbox:
        return await AsyncSandbox()

    async def use(box: AsyncSandbox) -> str:
        return (await box.exec("echo hi")).stdout

    box = asyncio.run(make())
    assert [asyncio.run(use(box)) for _ in range(3)] == ["hi\n"] * 3
    asyncio.run(box.delete())
    assert server.app.boxes == {}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("closing", ["delete", "close", "dropped"])
def test_nothing_stays_open(server: Any, closing: str) -> None:
    """Warnings are errors in these tests: a socket that is collected unclosed fails one."""

    async def in_loop() -> None:
        box = await AsyncSandbox()
        await box.exec("echo hi")
        if closing != "dropped":
            await (box.delete() if closing == "delete" else box.aclose())

    def sync() -> None:
        box = Sandbox()
        box.exec("echo hi")
        if closing != "dropped":
            (box.delete if closing == "delete" else box.close)()

    for work in (sync, lambda: asyncio.run(in_loop())):
        work()
        gc.collect()
        time.sleep(0.1)
        before = descriptors()
        for _ in range(5):
            work()
        gc.collect()
        deadline = time.monotonic() + 5
        while descriptors() > before:  # the server closes its ends when it notices
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_cancelled_exec_closes_its_connection(server: Any) -> None:
    async def check() -> None:
        async with AsyncSandbox() as box:
            task = asyncio.create_task(box.exec("echo begun; sleep 60"))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await box.exec("echo after")).stdout == "after\n"

    asyncio.run(check())


def test_an_interrupt_ends_a_wait(server: Any) -> None:
    with Sandbox() as box:
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            box.exec("sleep 60")
        timer.join()
        assert box.exec("echo after").stdout == "after\n"


def test_an_interrupted_create_leaves_no_sandbox(server: Any) -> None:
    server.app.create_takes_s = 1.0
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        Sandbox()
    timer.join()
    assert len(server.app.keys_seen) == 1 and server.app.boxes == {}


def test_a_cancelled_create_leaves_no_sandbox(server: Any) -> None:
    async def check() -> None:
        server.app.create_takes_s = 1.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await AsyncSandbox()
        assert len(server.app.keys_seen) == 1 and server.app.boxes == {}

    asyncio.run(check())


def test_errors_survive_pickling() -> None:
    import pickle

    error = StreamInterrupted("m", hint="h", details={"execution_id": "x"})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.details) == (str(error), error.details)
