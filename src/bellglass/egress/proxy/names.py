"""Asking the resolver which name a synthetic address stands for. No answer is no name: the connection is refused."""

from __future__ import annotations

import socket
from time import monotonic

from bellglass.egress.control import ControlError, encode, receive, send
from bellglass.egress.loop import Loop, Signal

TIMEOUT_S = 2.0


class Names:
    """Connects when first asked and again after each break. Many questions at once, told apart by their ids."""

    def __init__(self, loop: Loop, path: str) -> None:
        self._loop = loop
        self._path = path
        self._sock: socket.socket | None = None
        self._count = 0
        self._waiting: dict[int, _Question] = {}

    async def name_of(self, sandbox: str, address: str) -> str | None:
        """None for an address that stands for nothing, and while the resolver is away."""
        self._count += 1
        question_id = self._count
        question = self._waiting[question_id] = _Question(self._loop)
        data = encode({"id": question_id, "sandbox": sandbox, "address": address})
        deadline = monotonic() + TIMEOUT_S
        try:
            while True:
                sock = self._connected()
                try:
                    send(sock, data)
                    break
                except BlockingIOError:
                    # Edges of this socket are the reader's; a queue that is full is rare and short.
                    await self._loop.sleep(0.005)
                    if monotonic() > deadline:
                        return None
            await question.answered.wait(deadline)
            return question.name
        except (OSError, TimeoutError):
            return None
        finally:
            self._waiting.pop(question_id, None)

    def _connected(self) -> socket.socket:
        if self._sock is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            try:
                sock.connect(self._path)
            except OSError:
                sock.close()
                raise
            self._sock = sock
            self._loop.spawn(self._read(sock))
        return self._sock

    async def _read(self, sock: socket.socket) -> None:
        try:
            while True:
                try:
                    packet = receive(sock)
                except BlockingIOError:
                    await self._loop.readable(sock)
                    continue
                if packet is None:
                    return
                question = self._waiting.get(packet.document.get("id", 0))
                name = packet.document.get("name")
                if question is not None:
                    question.name = name if isinstance(name, str) else None
                    question.answered.set()
        except (OSError, ControlError):
            return
        finally:
            self._sock = None
            self._loop.close(sock)
            for question in self._waiting.values():
                question.answered.set()


class _Question:
    __slots__ = ("answered", "name")

    def __init__(self, loop: Loop) -> None:
        self.name: str | None = None
        self.answered = Signal(loop)
