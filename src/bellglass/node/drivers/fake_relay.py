"""A link with a fault: passes bytes and descriptors on in both directions, and hangs up after so many bytes."""

from __future__ import annotations

import array
import os
import select
import socket
import threading

CHUNK_BYTES = 64 * 1024


class Relay:
    """Owns `near` (the agent's side); `far_end` is for the node. A thread of its own: it may block."""

    def __init__(self, near: socket.socket, *, limit_bytes: int) -> None:
        self.far_end, self._far = socket.socketpair()
        self.far_end.setblocking(False)
        self._near = near
        self._near.setblocking(True)
        self._left = limit_bytes
        self._thread = threading.Thread(target=self._run, name="fake-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        for sock in (self._near, self._far):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed by the thread
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._left > 0:
                readable, _, _ = select.select([self._near, self._far], [], [])
                if self._near in readable:
                    data = self._near.recv(min(CHUNK_BYTES, self._left))
                    if not data:
                        return
                    self._left -= len(data)
                    self._far.sendall(data)
                if self._far in readable and not self._pass_on():
                    return
        except OSError:
            return  # one side is gone: so is the link
        finally:
            self._near.close()
            self._far.close()

    def _pass_on(self) -> bool:
        data, control, _, _ = self._far.recvmsg(CHUNK_BYTES, socket.CMSG_SPACE(8 * 4))
        descriptors = array.array("i")
        for level, kind, raw in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(raw[: len(raw) - len(raw) % descriptors.itemsize])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        try:
            sent = self._near.sendmsg([data], rights) if data else 0
            if sent < len(data):
                self._near.sendall(data[sent:])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(data)
