"""Which daemons hang: asked over real sockets, with a clock that this test moves."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass.supervise import answers
from bellglass.supervise.answers import ASK_EVERY_S, HANGS_S, TURN_S, Answers
from bellglass.supervise.processes import ProcessId

ONE, OTHER = ProcessId(os.getpid(), 1), ProcessId(os.getpid(), 2)


class Daemon:
    """Takes connections; answers as long as it may."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(4)
        self.answered = threading.Semaphore(0)
        self.asked: list[socket.socket] = []

    def answer(self) -> None:
        sock, _ = self.listener.accept()
        assert b"health" in sock.recv(4096)
        sock.send(b'{"id": 1, "ok": true}')
        self.asked.append(sock)

    def close(self) -> None:
        for sock in (self.listener, *self.asked):
            sock.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(answers, "time", made)
    return made


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "proxy.sock")
    yield made
    made.close()


@pytest.fixture
def watch(tmp_path: Path, clock: Clock) -> Iterator[Answers]:
    made = Answers({"proxy": tmp_path / "proxy.sock"})
    yield made
    made.close()


def turns(watch: Answers, clock: Clock, seconds: float, process: ProcessId = ONE, step: float = TURN_S) -> list[str]:
    found: list[str] = []
    for _ in range(int(seconds / step)):
        clock.now += step
        found += watch.look({"proxy": process})
    return found


def test_one_that_answers_is_asked_again_and_again(daemon: Daemon, watch: Answers, clock: Clock) -> None:
    for _ in range(3):
        assert watch.look({"proxy": ONE}) == [] and len(watch.descriptors) == 1
        daemon.answer()
        assert turns(watch, clock, ASK_EVERY_S - TURN_S) == [] and watch.descriptors == []
        clock.now += TURN_S


def test_one_that_says_nothing_hangs_and_is_told_once_a_question(daemon: Daemon, watch: Answers, clock: Clock) -> None:
    watch.look({"proxy": ONE})
    assert turns(watch, clock, HANGS_S - TURN_S) == []
    assert turns(watch, clock, TURN_S) == ["proxy"] and watch.descriptors == []
    assert turns(watch, clock, HANGS_S) == []
    assert turns(watch, clock, 2 * TURN_S) == ["proxy"], "whoever was to kill it has failed"


def test_time_in_which_the_machine_stood_still_does_not_count(daemon: Daemon, watch: Answers, clock: Clock) -> None:
    watch.look({"proxy": ONE})
    assert turns(watch, clock, 3600.0, step=3600.0) == []
    daemon.answer()
    assert turns(watch, clock, TURN_S) == [] and watch.descriptors == []


def test_a_new_process_has_its_own_time(daemon: Daemon, watch: Answers, clock: Clock) -> None:
    watch.look({"proxy": ONE})
    assert turns(watch, clock, HANGS_S - TURN_S) == []
    assert turns(watch, clock, HANGS_S, OTHER) == []
    assert turns(watch, clock, 2 * TURN_S, OTHER) == ["proxy"]


def test_one_whose_queue_is_full_hangs_too(daemon: Daemon, watch: Answers, clock: Clock, tmp_path: Path) -> None:
    waiting = []
    for _ in range(20):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        waiting.append(sock)
        if sock.connect_ex(str(tmp_path / "proxy.sock")):
            break
    watch.look({"proxy": ONE})
    assert turns(watch, clock, HANGS_S) == ["proxy"]
    for sock in waiting:
        sock.close()


def test_one_that_is_not_there_is_no_hanging_one(watch: Answers, clock: Clock) -> None:
    assert turns(watch, clock, 5 * HANGS_S) == [] and watch.look({}) == []
