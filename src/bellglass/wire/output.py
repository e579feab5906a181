"""How an execution's output reaches a client: `application/x-bellglass-frames`, NDJSON, or one JSON body.

Frames carry the wire's header with the types below and stream 0. NDJSON has one object a line:
`{"stream":"stdout","offset":0,"next":5,"text":"..."}`, with `b64` in place of `text` where the bytes are not UTF-8
once a character cut at the border of two chunks has been put together. `offset` is the position of the first byte in
the execution's combined output, `next` where to attach again after this line. A character of which only the head has
come lies behind `next`; what the other stream said since then comes a second time, with the same offsets. The stream
ends with exactly one `exit` or `error`; one that ends with neither was cut: the outcome is unknown and the execution
is to be attached again.
"""

from __future__ import annotations

import binascii
import codecs
import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from bellglass.wire.frames import HEADER, MAX_DATA, FrameError, FrameReader, encode

FRAMES = "application/x-bellglass-frames"
NDJSON = "application/x-ndjson"
JSON = "application/json"
KEEPALIVE_S = 15.0
_OFFSET = struct.Struct("<Q")


class OutputType(IntEnum):
    STARTED = 1  # JSON: the execution's record
    STDOUT = 2  # offset u64, bytes
    STDERR = 3
    SKIPPED = 4  # JSON: {"offset", "bytes"}: lost to the log's ring
    KEEPALIVE = 5
    EXIT = 6  # JSON: the finished record
    ERROR = 7  # JSON: the one error shape
    INPUT = 8  # JSON, to who is attached: {"offset", "total"}: so much of what he typed lies in the terminal


class InputType(IntEnum):
    """What goes the other way, from who is attached to a terminal."""

    TYPED = 32  # bytes
    RESIZE = 33  # JSON: {"cols", "rows"}


STREAM_NAMES = {OutputType.STDOUT: "stdout", OutputType.STDERR: "stderr"}


class OutputEvent(NamedTuple):
    """`data` for STDOUT and STDERR (bytes), `value` for the JSON ones."""

    type: OutputType
    offset: int = 0
    data: bytes = b""
    value: dict[str, Any] | None = None


def encode_event(event: OutputEvent) -> bytes:
    """One event as a frame (two if the data is at the limit: never, since chunks are at most MAX_DATA)."""
    if event.type in STREAM_NAMES:
        size = _OFFSET.size + len(event.data)
        return b"".join((HEADER.pack(size, event.type, 0, 0, 0), _OFFSET.pack(event.offset), event.data))
    if event.type is OutputType.KEEPALIVE:
        return encode(event.type, 0)
    raw = json.dumps(event.value, separators=(",", ":"), allow_nan=False).encode()
    if len(raw) > MAX_DATA:
        raise FrameError(f"a record of {len(raw)} bytes")
    return encode(event.type, 0, raw)


class OutputDecoder:
    """Bytes of a frames answer in, events out (for the SDK)."""

    def __init__(self) -> None:
        self._reader = FrameReader()

    def feed(self, data: bytes) -> Iterator[OutputEvent]:
        for frame in self._reader.feed(data):
            try:
                type = OutputType(frame.type)
            except ValueError:
                continue  # a newer server's frame
            if type in STREAM_NAMES:
                if len(frame.payload) < _OFFSET.size:
                    raise FrameError("output without an offset")
                yield OutputEvent(type, _OFFSET.unpack_from(frame.payload)[0], bytes(frame.payload[_OFFSET.size :]))
            elif type is OutputType.KEEPALIVE:
                yield OutputEvent(type)
            else:
                yield OutputEvent(type, value=json.loads(bytes(frame.payload)))


class NdjsonEncoder:
    """Events as NDJSON lines. Keeps the head of a cut character until its rest arrives, of one stream at a time: with
    both, no one offset could say what has been told."""

    def __init__(self) -> None:
        self._held: dict[OutputType, tuple[int, bytes]] = {}
        self._end = 0

    def encode(self, event: OutputEvent) -> bytes:
        if event.type in STREAM_NAMES:
            offset, data, lines = event.offset, event.data, b""
            if held := self._held.pop(event.type, None):
                # Output of the other stream may lie between: the offset then is that of the first byte.
                offset, data = held[0], held[1] + data
            cut = _incomplete_tail(data)
            if cut and self._held:
                self._end = offset
                lines = self.flush()
            self._end = event.offset + len(event.data)
            if cut:
                # Its leading byte is the one that was held, or one of the new bytes.
                self._held[event.type] = (offset if cut > len(event.data) else self._end - cut, data[-cut:])
                data = data[:-cut]
            return lines + self._line(event.type, offset, data) if data else lines
        lines = b""
        if event.type in (OutputType.EXIT, OutputType.ERROR, OutputType.SKIPPED):
            lines = self.flush()
        if event.type is OutputType.KEEPALIVE:
            return b'{"stream":"keepalive"}\n'
        return lines + json.dumps({"stream": event.type.name.lower(), **(event.value or {})}).encode() + b"\n"

    def flush(self) -> bytes:
        """Lines for characters that were never finished."""
        held, self._held = self._held, {}
        return b"".join(self._line(type, offset, data) for type, (offset, data) in held.items())

    def _line(self, type: OutputType, offset: int, data: bytes) -> bytes:
        following = min((held[0] for held in self._held.values()), default=self._end)
        head = b'{"stream":"%b","offset":%d,"next":%d,' % (STREAM_NAMES[type].encode(), offset, following)
        try:
            return b'%b"text":%b}\n' % (head, json.dumps(data.decode("utf-8")).encode())
        except UnicodeDecodeError:
            return b"".join((head, b'"b64":"', binascii.b2a_base64(data, newline=False), b'"}\n'))


def _incomplete_tail(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character that more bytes could finish (0 to 3)."""
    tail = data[-3:]
    if tail.isascii():
        return 0
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    for start in range(len(tail)):
        if tail[start] & 0xC0 == 0xC0:  # a leading byte: is the rest of its character there?
            decoder.reset()
            try:
                if decoder.decode(tail[start:]) == "":
                    return len(tail) - start
            except UnicodeDecodeError:
                continue
    return 0


class HeadTail:
    """Keeps the first and the last half of `limit_bytes` of a stream, and counts the rest."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(limit_bytes // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def feed(self, data: bytes | memoryview) -> None:
        self.total_bytes += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._half:
                del self._tail[: -self._half]

    @property
    def truncated(self) -> bool:
        return self.total_bytes > 2 * self._half

    @property
    def omitted_bytes(self) -> int:
        return max(self.total_bytes - 2 * self._half, 0)

    def value(self) -> bytes:
        """Head and tail put together; with `omitted_bytes` missing between them."""
        return bytes(self._head) + bytes(self._tail[-self._half :])
