"""Lines of JSON, one object each: what the host says to whoever runs it, and what host and kernel say to each other.

A line of the host is ASCII and at most `MAX_LINE` bytes: text is cut into several events, and a result that is longer
into parts. Each part has a piece of one value: of its text, or with `json` of the JSON text of what is no text.
"""

import json
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

MAX_LINE = 256 * 1024
# Every character of a text may be twelve bytes of JSON, and every one of a slice two.
_TEXT_CHARACTERS = 16 * 1024
_SLICE_CHARACTERS = 96 * 1024
_WHOLE_DATA = MAX_LINE - 8 * 1024
# How far the host runs ahead of a reader that is slow; then kernels are held back.
MAX_WAITING = 1024 * 1024

Event = dict[str, Any]


def encode(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def pieces(event: Event) -> Iterator[Event]:
    """The same event as one or several that each fit into a line."""
    if "text" in event and len(event["text"]) > _TEXT_CHARACTERS:
        text = event["text"]
        for start in range(0, len(text), _TEXT_CHARACTERS):
            yield {**event, "text": text[start : start + _TEXT_CHARACTERS]}
        return
    if "data" in event and len(json.dumps(event["data"])) > _WHOLE_DATA:
        rest = {name: value for name, value in event.items() if name not in ("data", "dropped")}
        parts = list(_parts(event["data"]))
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            dropped = {"dropped": event["dropped"]} if last and "dropped" in event else {}
            yield {**rest, "part": number, "last": last, **part, **dropped}
        return
    yield event


def _parts(data: dict[str, Any]) -> Iterator[Event]:
    for mime, value in data.items():
        is_json = not isinstance(value, str)
        text = json.dumps(value, separators=(",", ":")) if is_json else value
        # Escaped, a character of JSON's own text is two bytes at most and one of any other twelve.
        step = _SLICE_CHARACTERS if text.isascii() and (is_json or text.isprintable()) else _TEXT_CHARACTERS
        for start in range(0, max(1, len(text)), step):
            yield {"mime": mime, "piece": text[start : start + step], "json": is_json}


class Writer:
    """Lines to a descriptor whose reader may be slow: what it doesn't take yet waits here."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = 0

    def send(self, event: Event) -> None:
        for piece in pieces(event):
            line = encode(piece)
            self._waiting.append(line)
            self.waiting_bytes += len(line)
        self.flush()

    def flush(self) -> None:
        """As much as the reader takes now."""
        while self._waiting:
            line = self._waiting[0]
            try:
                written = os.write(self.fd, line)
            except BlockingIOError:
                return
            self.waiting_bytes -= written
            if written == len(line):
                self._waiting.popleft()
            else:
                self._waiting[0] = line[written:]

    @property
    def is_behind(self) -> bool:
        return self.waiting_bytes > MAX_WAITING


class Lines:
    """Whole lines out of the bytes that come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        # Only what is new can hold the end of a line: a long one comes in many pieces.
        if b"\n" not in data:
            return
        *whole, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        yield from whole
