"""The loop of the egress processes: turns, timers, cancelling."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from time import monotonic, thread_time

import pytest

from bellglass.egress.loop import SLICE_S, Loop, Signal, Task


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.shutdown()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


def test_groups_take_turns_whatever_they_have_to_do(loop: Loop) -> None:
    order: list[str] = []

    async def work(group: str) -> None:
        for _ in range(5):
            order.append(group)
            await loop.turn()

    async def end() -> None:
        await loop.sleep(0.05)
        loop.stop()

    for _ in range(100):
        loop.spawn(work("many"), "many")
    loop.spawn(work("one"), "one")
    loop.spawn(end())
    loop.run()
    assert order.count("many") == 500
    # Its five steps come within the first dozen of all.
    assert [index for index, group in enumerate(order) if group == "one"][-1] < 12


def test_own_work_comes_before_that_of_sandboxes(loop: Loop) -> None:
    order: list[str] = []

    async def busy() -> None:
        for _ in range(50):
            order.append("sandbox")
            await loop.turn()
        loop.stop()

    async def own() -> None:
        order.append("own")

    loop.spawn(busy(), "sb1")
    loop.spawn(own())
    loop.run()
    assert order[0] == "own"


def test_a_step_that_takes_long_breathes(loop: Loop) -> None:
    steps: list[str] = []

    async def long() -> None:
        end = monotonic() + 0.1
        while monotonic() < end:
            await loop.breathe()
        steps.append("long")
        loop.stop()

    async def short() -> None:
        await loop.sleep(0.005)
        steps.append("short")

    loop.spawn(long(), "a")
    loop.spawn(short(), "b")
    loop.run()
    assert steps == ["short", "long"]


def test_a_loop_that_is_never_without_work_rests_all_the_same(loop: Loop) -> None:
    async def work(group: str) -> None:
        end = thread_time() + 0.05
        while thread_time() < end:
            await loop.breathe()

    async def end(tasks: list[Task]) -> None:
        while not all(task.done for task in tasks):
            await loop.sleep(0.01)
        loop.stop()

    loop.spawn(end([loop.spawn(work(group), group) for group in "ab"]))
    before, begun = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, thread_time()
    loop.run()
    rests = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert rests > (thread_time() - begun) / SLICE_S / 4, "once in each SLICE_S, and a step beside it"


def test_edges_that_came_while_nobody_waited_are_not_lost(
    loop: Loop, pair: tuple[socket.socket, socket.socket]
) -> None:
    one, other = pair
    got: list[bytes] = []

    async def read() -> None:
        while len(got) < 3:
            try:
                got.append(one.recv(1))
            except BlockingIOError:
                await loop.readable(one, monotonic() + 10)
            await loop.sleep(0.002)
        loop.stop()

    async def write() -> None:
        for _ in range(3):
            other.send(b"x")
            await loop.sleep(0.001)

    loop.spawn(read(), "a")
    loop.spawn(write(), "a")
    loop.run()
    assert got == [b"x"] * 3


def test_a_deadline_and_a_later_edge(loop: Loop, pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    seen: list[str] = []

    async def read() -> None:
        with contextlib.suppress(BlockingIOError):
            one.recv(1)
        try:
            await loop.readable(one, monotonic() + 0.01)
            await loop.readable(one, monotonic() + 0.01)
        except TimeoutError:
            seen.append("timeout")
        other.send(b"x")
        await loop.readable(one, monotonic() + 10)
        seen.append(one.recv(1).decode())
        loop.stop()

    loop.spawn(read())
    loop.run()
    assert seen == ["timeout", "x"]


def test_either_of_two(loop: Loop) -> None:
    first, second = socket.socketpair(), socket.socketpair()
    woken: list[str] = []

    async def wait() -> None:
        for expected in ("a", "b", "a"):
            while True:
                await loop.either(first[0], second[0], monotonic() + 10)
                found = ""
                for name, sock in (("a", first[0]), ("b", second[0])):
                    with contextlib.suppress(BlockingIOError):
                        sock.recv(1)
                        found = name
                if found:
                    woken.append(found)
                    break
            assert woken[-1] == expected
        loop.stop()

    async def send() -> None:
        for sock in (first[1], second[1], first[1]):
            await loop.sleep(0.005)
            sock.send(b"x")

    with contextlib.ExitStack() as undo:
        for sock in (*first, *second):
            undo.enter_context(sock)
            sock.setblocking(False)
        loop.spawn(wait())
        loop.spawn(send())
        loop.run()
    assert woken == ["a", "b", "a"]


def test_cancelling_runs_what_has_to_be_run_inside_the_call(loop: Loop) -> None:
    seen: list[str] = []

    async def held() -> None:
        try:
            await loop.sleep(100)
            seen.append("went on")
        finally:
            seen.append("cleaned")

    async def cancel() -> None:
        await loop.turn()
        task.cancel()
        task.cancel()
        seen.append("after")
        loop.stop()

    task = loop.spawn(held(), "a")
    never_run = loop.spawn(held(), "a")
    never_run.cancel()
    loop.spawn(cancel(), "b")
    loop.run()
    assert seen == ["cleaned", "after"] and task.done and never_run.done


def test_signals_and_their_deadlines(loop: Loop) -> None:
    signal = Signal(loop)
    seen: list[object] = []

    async def wait(deadline_s: float) -> None:
        try:
            await signal.wait(monotonic() + deadline_s)
            seen.append("set")
        except TimeoutError:
            seen.append("timeout")

    async def main() -> None:
        await loop.sleep(0.02)
        signal.set()
        await loop.sleep(0.02)
        seen.append(len(loop._timers))
        loop.stop()

    loop.spawn(wait(0.005), "a")
    loop.spawn(wait(100), "a")
    loop.spawn(main())
    loop.run()
    assert seen[:2] == ["timeout", "set"]


def test_timers_that_are_not_needed_any_more_do_not_pile_up(
    loop: Loop, pair: tuple[socket.socket, socket.socket]
) -> None:
    one, other = pair

    async def main() -> None:
        for _ in range(5000):
            other.send(b"x")
            await loop.readable(one, monotonic() + 1000)
            with contextlib.suppress(BlockingIOError):
                while one.recv(10):
                    pass
        loop.stop()

    loop.spawn(main())
    loop.run()
    assert len(loop._timers) < 3000


def test_one_that_fails_is_told_and_ends_alone(loop: Loop, capfd: pytest.CaptureFixture[str]) -> None:
    async def fails() -> None:
        raise ValueError("broken")

    async def main() -> None:
        await loop.sleep(0.01)
        loop.stop()

    task = loop.spawn(fails(), "a")
    loop.spawn(main())
    loop.run()
    assert isinstance(task.error, ValueError) and task.done
    assert "ValueError: broken" in capfd.readouterr().err
