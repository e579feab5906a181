"""The SDK over connections that break: output is whole, nothing runs twice, and what is not known is not called 0."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bellglass import AsyncSandbox, Sandbox, SandboxGone

EXPECTED = "".join(f"{number}\n" for number in range(1, 100_001))


class Cutter:
    """A TCP relay before the API that resets its connections after so many bytes towards the client."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.budgets: list[int] = []
        self.cut = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self._open += [client, server]
            for source, target, downward in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pump, args=(source, target, downward), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, target: socket.socket, downward: bool) -> None:
        try:
            while data := source.recv(16384):
                if downward and self.budgets:
                    self.budgets[0] -= len(data)
                    if self.budgets[0] < 0:
                        target.sendall(data[: self.budgets.pop(0)])
                        self.cut += 1
                        break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(5)
        for end in self._open:
            end.close()


@pytest.fixture
def cutter(stack: Any) -> Iterator[Cutter]:
    relay = Cutter(int(stack.api_url.rpartition(":")[2]))
    yield relay
    relay.close()


def through(cutter: Cutter, stack: Any, box: Any) -> Sandbox:
    return Sandbox.connect(box.id, api_url=cutter.url, api_key=stack.api_key)


def test_output_is_whole_over_cut_connections(cutter: Cutter, stack: Any, shared_box: Any) -> None:
    box = through(cutter, stack, shared_box)
    count = len(list(shared_box.executions()))
    cutter.budgets = [20_000, 1_500, 100_000, 7_000, 90_001]
    pieces: list[str] = []
    result = box.exec("seq 1 100000", on_stdout=pieces.append)
    box.close()
    assert cutter.cut == 5
    assert result.stdout == "".join(pieces) == EXPECTED and result.ok and not result.truncated
    assert len(list(shared_box.executions())) == count + 1


def test_async_output_is_whole_over_cut_connections(cutter: Cutter, stack: Any, shared_box: Any) -> None:
    async def check() -> None:
        box = await AsyncSandbox.connect(shared_box.id, api_url=cutter.url, api_key=stack.api_key)
        cutter.budgets = [20_000, 1_500, 100_000]
        result = await box.exec("seq 1 100000")
        await box.aclose()
        assert cutter.cut == 3 and result.stdout == EXPECTED

    asyncio.run(check())


def test_a_cut_while_nothing_is_said_changes_nothing(cutter: Cutter, stack: Any, shared_box: Any) -> None:
    box = through(cutter, stack, shared_box)
    threading.Timer(0.5, lambda: cutter.budgets.append(0)).start()
    result = box.exec("echo a; sleep 1; echo b; sleep 1; echo $$ >> ran; cat ran | wc -l", cwd="/tmp")
    box.close()
    assert cutter.cut == 1 and result.stdout == "a\nb\n1\n"


def test_the_last_line_is_never_missing(shared_box: Any) -> None:
    for _ in range(50):
        result = shared_box.exec(["seq", "1", "20000"])
        assert result.ok and result.stdout.endswith("\n19999\n20000\n")


def test_threads_and_tasks_at_once(shared_box: Any, stack: Any) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: shared_box.exec(["echo", str(number)]).stdout, range(40)))
    assert results == [f"{number}\n" for number in range(40)]

    async def tasks() -> list[str]:
        box = await AsyncSandbox.connect(shared_box.id, api_url=stack.api_url, api_key=stack.api_key)
        found = await asyncio.gather(*[box.exec(["echo", str(number)]) for number in range(40)])
        await box.aclose()
        return [result.stdout for result in found]

    assert asyncio.run(tasks()) == results


@pytest.mark.parametrize("after_s", [0.005, 0.03, 0.1])
def test_a_cancelled_create_leaves_no_sandbox(stack: Any, no_leak: None, after_s: float) -> None:
    async def check() -> None:
        connection = {"api_url": stack.api_url, "api_key": stack.api_key}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_s):
                async with AsyncSandbox(memory="512MiB", owner="cancelled", **connection):
                    await asyncio.sleep(60)
        assert [box.id async for box in AsyncSandbox.list(owner="cancelled", **connection)] == []

    asyncio.run(check())


@pytest.mark.parametrize("what", ["exec", "wait", "output"])
def test_deleted_by_somebody_else_says_so(new_box: Any, stack: Any, what: str) -> None:
    box = new_box()
    assert box.exec(["true"]).ok
    other = Sandbox.connect(box.id, api_url=stack.api_url, api_key=stack.api_key)
    timer = threading.Timer(0.5, other.delete)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(SandboxGone) as caught:
        if what == "exec":
            box.exec("echo hi; sleep 30")
        elif what == "wait":
            box.start("sleep 30").wait()
        else:
            list(box.start("echo hi; sleep 30").output())
    timer.join()
    assert time.monotonic() - begun < 10
    assert caught.value.details["reason"] == "user"


def test_a_lifetime_that_ends_says_so(new_box: Any) -> None:
    box = new_box(lifetime="2s")
    with pytest.raises(SandboxGone) as caught:
        box.exec("sleep 30")
    assert caught.value.details["reason"] == "lifetime" and caught.value.details["ended_at"]
