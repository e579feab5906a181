"""A worker serves one request after the other, and ends rather than serve from a process that isn't as it was."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from bellglass.node.helper import worker
from bellglass.node.helper.worker import Worker

SECONDS = 10
Fork = Callable[[Callable[[bytes], bool]], Worker]


@pytest.fixture
def fork() -> Iterator[Fork]:
    made: list[Worker] = []

    def one(act: Callable[[bytes], bool]) -> Worker:
        made.append(worker.fork(list(made), act))
        return made[-1]

    yield one
    for each in made:
        each.channel.close()
        with suppress(ChildProcessError):  # its end was looked at
            os.waitpid(each.pid, 0)


def is_ready(one: Worker) -> bool:
    """What it says next: True, or False for its end."""
    poll = select.poll()
    poll.register(one.channel, select.POLLIN)
    assert poll.poll(SECONDS * 1000), "the worker says nothing"
    return one.is_ready()


def exit_code(one: Worker) -> int:
    pidfd = os.pidfd_open(one.pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(SECONDS * 1000), "the worker lives on"
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])


def test_one_process_serves_one_after_the_other(fork: Fork) -> None:
    read, write = os.pipe()

    def act(request: bytes) -> bool:
        os.write(write, b"%s %d\n" % (request, os.getpid()))
        return True

    one = fork(act)
    for request in (b"a", b"b"):
        assert one.give(request) and is_ready(one)
    assert os.read(read, 100) == b"a %d\nb %d\n" % (one.pid, one.pid)
    one.channel.close()
    assert exit_code(one) == 0
    os.close(read)
    os.close(write)


def test_the_end_of_its_channel_ends_it_beside_others(fork: Fork) -> None:
    first, second = fork(lambda _: True), fork(lambda _: True)
    first.channel.close()
    assert exit_code(first) == 0
    assert second.give(b"x") and is_ready(second)


def leave_a_descriptor(_: bytes) -> bool:
    return os.open("/dev/null", os.O_RDONLY) >= 0


def close_it(_: bytes) -> bool:
    os.close(os.open("/dev/null", os.O_RDONLY))
    return True


@pytest.mark.parametrize(
    ("act", "again"),
    [(close_it, True), (leave_a_descriptor, False), (lambda _: False, False)],
    ids=["closed", "a-descriptor-left", "failed"],
)
def test_what_leaves_something_behind_was_its_last(fork: Fork, act: Callable[[bytes], bool], again: bool) -> None:
    one = fork(act)
    assert one.give(b"x")
    assert is_ready(one) is again
    if not again:
        assert exit_code(one) == 0
        assert not one.give(b"y")


def test_an_exception_is_a_failed_process(fork: Fork) -> None:
    def act(_: bytes) -> bool:
        raise OSError("broken")

    one = fork(act)
    assert one.give(b"x") and not is_ready(one)
    assert exit_code(one) != 0


def test_its_last_operation_is_not_followed_by_ready(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_OPERATIONS", 2)
    one = fork(lambda _: True)
    assert one.give(b"x") and is_ready(one)
    assert one.give(b"y") and not is_ready(one)
    assert exit_code(one) == 0


def test_it_dies_with_who_forked_it() -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        one = worker.fork([], lambda _: True)
        os.write(write, b"%d" % one.pid)
        signal.pause()
    pidfd = os.pidfd_open(int(os.read(read, 32)))
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(200) == [], "it lives as long as its parent"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert poll.poll(SECONDS * 1000), "it outlived its parent"
    for fd in (pidfd, read, write):
        os.close(fd)
