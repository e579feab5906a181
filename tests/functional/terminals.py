"""A program on a terminal, as the tests speak with it: what it says collected, what is typed sent."""

from __future__ import annotations

import threading
import time
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
