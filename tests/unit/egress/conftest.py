"""A loop of the egress processes in a thread of its own, driven from tests over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass.egress.loop import Loop

NARROW = 2048


def pair(*, narrow: bool = False) -> tuple[socket.socket, socket.socket]:
    """`narrow`: what the first one sends, the second one holds little of."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if narrow:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW)
        one = socket.create_connection(listener.getsockname(), 20)
        other, _ = listener.accept()
    other.settimeout(20)
    if narrow:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW)
    return one, other


class LoopThread:
    """Coroutines and calls go in by `call`; it is the only thing of the loop that other threads may touch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._calls: list = []
        self.loop.spawn(self._serve())
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    async def _serve(self) -> None:
        while True:
            try:
                self._theirs.recv(64)
            except BlockingIOError:
                await self.loop.readable(self._theirs)
                continue
            while self._calls:
                self._calls.pop(0)()

    def call(self, function, *args):  # type: ignore[no-untyped-def]
        """Runs it in the loop's thread and answers its result."""
        done = threading.Event()
        outcome: list = []

        def run() -> None:
            try:
                outcome.append((function(*args), None))
            except BaseException as error:
                outcome.append((None, error))
            done.set()

        self._calls.append(run)
        self._ours.send(b".")
        assert done.wait(20), "the loop does not answer"
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        if self._thread.is_alive():
            self.call(self.loop.stop)
            self._thread.join(20)
        self.loop.shutdown()
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def thread(tmp_path: Path) -> Iterator[LoopThread]:
    """A running Loop."""
    running = LoopThread(tmp_path)
    yield running
    running.stop()
