"""This side's terminal for `shell`: raw while attached, its size passed on, its keys typed over there.

Keys go through one thread beside the one that shows output. At the start of a line `~.` leaves (the program goes on)
and `~~` types one `~`, as in ssh. Where standard input is no terminal its bytes are typed, and Ctrl-D at their end.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from types import FrameType
from typing import Any, Self

from bellglass.errors import BellglassError
from bellglass.sdk._sync.attach import Attachment

READ_BYTES = 64 * 1024
DEFAULT_SIZE = (80, 24)
END_OF_FILE = b"\x04"


def own_size() -> tuple[int, int]:
    """Columns and rows of this side's terminal; 80 and 24 without one."""
    for fd in (0, 1, 2):
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            continue
        if size.columns > 0 and size.lines > 0:
            return size.columns, size.lines
    return DEFAULT_SIZE


class Keyboard:
    """For `with`: the terminal is as it was before at the end. `left`: the user asked to leave."""

    def __init__(self, attachment: Attachment) -> None:
        self.left = False
        self._attachment = attachment
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._before: list[Any] | None = None
        self._escapes = Escapes()

    def __enter__(self) -> Self:
        import termios
        import tty

        if os.isatty(0):
            self._before = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
            self._attachment.resize(*own_size())
        signal.signal(signal.SIGWINCH, self._resized)
        threading.Thread(target=self._pass_on, name="keyboard", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _resized(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._wake_write, b"w")  # the thread asks: a signal may have come in the middle of anything
        except BlockingIOError:
            pass  # it has been woken often enough

    def _pass_on(self) -> None:
        try:
            watched = [0, self._wake_read]
            while True:
                ready, _, _ = select.select(watched, [], [])
                if self._wake_read in ready:
                    os.read(self._wake_read, READ_BYTES)
                    if self._before is not None:
                        self._attachment.resize(*own_size())
                if 0 in ready and not self._keys():
                    watched.remove(0)
                if self.left:
                    self._attachment.close()
                    return
        except BellglassError as error:  # the one that shows output hears of what ends the connection
            if not self._attachment.ended:
                sys.stderr.write(f"bellglass: {error}\r\n")

    def _keys(self) -> bool:
        """False when there will be no more."""
        try:
            data = os.read(0, READ_BYTES)
        except OSError:  # EIO: this side's terminal has been hung up
            data = b""
        if not data:
            self._attachment.write(END_OF_FILE)
            return False
        if self._before is not None:
            data, self.left = self._escapes.feed(data)
        if data:
            self._attachment.write(data)
        return True


class Escapes:
    """`~.` and `~~` at the start of a line, cut at any place."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = False

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What is to be typed, and whether the user leaves."""
        out = bytearray()
        for byte in data:
            if self._held:
                self._held = False
                if byte == ord("."):
                    return bytes(out), True
                out += b"~"
                if byte == ord("~"):
                    self._at_start = False
                    continue
            elif self._at_start and byte == ord("~"):
                self._held = True
                continue
            out.append(byte)
            self._at_start = byte in b"\r\n"
        return bytes(out), False
