"""A program on a terminal, as the tests speak with it: what it says collected, what is typed sent."""

from __future__ import annotations

import threading
import time
from socket import SHUT_RDWR
from typing import Any


class Screen:
    """Follows an execution's output in a thread of its own."""

    def __init__(self, execution: Any, *, offset: int = 0) -> None:
        self.execution = execution
        self.seen = b""
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._follow, args=(offset,), daemon=True)
        self._thread.start()

    def type(self, text: str) -> None:
        self.execution.write_stdin(text)

    def until(self, wanted: bytes, seconds: float = 30.0) -> bytes:
        """Wait for it; answers what came up to its end, and forgets that."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while wanted not in self.seen:
                left = deadline - time.monotonic()
                assert left > 0 and not self._over, f"{wanted!r} did not come: {self.seen[-2000:]!r}, {self.failure!r}"
                self._changed.wait(left)
            end = self.seen.index(wanted) + len(wanted)
            found, self.seen = self.seen[:end], self.seen[end:]
            return found

    def ask(self, line: str, wanted: bytes) -> bytes:
        self.type(line + "\n")
        return self.until(wanted)

    def rest(self, seconds: float = 30.0) -> bytes:
        """What comes until its end."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), self.seen[-2000:]
        return self.seen

    def _follow(self, offset: int) -> None:
        try:
            for chunk in self.execution.output(offset=offset):
                with self._changed:
                    self.seen += chunk.data
                    self._changed.notify_all()
        except BaseException as error:
            self.failure = error
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Attached(Screen):
    """The same over an attachment. `all` is what came since it began."""

    def __init__(self, execution: Any, *, cut_every: int | None = None, **how: Any) -> None:
        self.attachment = execution.attach(**how)
        self.all = b""
        self.cut_every = cut_every
        super().__init__(execution)

    def type(self, text: str) -> None:
        self.attachment.write(text)

    def cut(self) -> None:
        """Break the connection, seen by both sides at once. By the thread that reads alone."""
        socket = self.attachment._socket
        try:
            if socket is not None:
                socket._stream.get_extra_info("socket").shutdown(SHUT_RDWR)
        except OSError:
            pass  # ENOTCONN: it has been reset meanwhile

    def leave(self) -> None:
        self.attachment.close()
        self.rest()

    def rest(self, seconds: float = 60.0) -> bytes:
        super().rest(seconds)
        return self.all

    def _follow(self, offset: int) -> None:
        came = 0
        try:
            for data in self.attachment:
                came += len(data)
                if self.cut_every is not None and came > self.cut_every:
                    came = 0
                    self.cut()
                with self._changed:
                    self.seen += data
                    self.all += data
                    self._changed.notify_all()
        except BaseException as error:
            self.failure = error
        with self._changed:
            self._over = True
            self._changed.notify_all()
