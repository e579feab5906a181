"""The name that a TLS client asks for: a ClientHello read strictly out of its records (RFC 8446, RFC 6066).

Nothing is decrypted and nothing consumed: the caller looks at bytes that stay where they are. Whatever a server might
read otherwise than this is refused: an empty fragment, another message in between or behind, an extension twice, two
names, lengths that don't add up.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_HELLO_BYTES = 16 * 1024
RECORD_HEADER = 5
MAX_RECORD_BYTES = 2**14
MAX_LOOK_BYTES = 2 * MAX_HELLO_BYTES
"""Of the stream, records' headers included: a hello in tiny fragments is no hello of an honest client."""

CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA = 20, 21, 22, 23
CLIENT_HELLO = 1
_SERVER_NAME, _EARLY_DATA = 0, 42
_HOST_NAME = 0
_TLS_1_0 = 0x0301


class BadHello(Exception):
    """Not a hello that can be let through. `name` is what it asked for, if that far was read."""


class NoServerName(BadHello):
    """A good hello without the extension."""


class Hello(NamedTuple):
    name: str
    """Lower case."""
    length: int
    """Bytes of the stream up to the end of its last record."""
    early_data: bool = False
    """Whether records of data may stand between it and a second hello."""


class _Reader:
    """Cuts vectors off a message; a length that leads outside is a BadHello."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise BadHello("a length leads outside")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    @property
    def left(self) -> int:
        return len(self._data) - self._at


class Reading:
    """One hello, in a stream that grows: no record is read twice, however small they are."""

    def __init__(self) -> None:
        self._message = bytearray()
        self._at = 0  # behind the last record that is whole

    def go_on(self, data: bytes | memoryview) -> Hello | int:
        """The hello at the start of the stream, or how many bytes of the stream are needed to go on. `data` is the
        stream from its first byte, at least as long as at the last call. Raises BadHello, NoServerName."""
        while True:
            at = self._at
            if len(data) < at + RECORD_HEADER:
                _check_start(data[at:])
                return _needed(at + RECORD_HEADER)
            _check_start(data[at : at + RECORD_HEADER])
            size = int.from_bytes(data[at + 3 : at + 5], "big")
            if not 0 < size <= MAX_RECORD_BYTES:
                raise BadHello(f"a record of {size} bytes")
            end = at + RECORD_HEADER + size
            fragment = data[at + RECORD_HEADER : end]
            length = _message_length(self._message[:4] + fragment[:4])
            if length is not None and len(self._message) + len(fragment) > length:
                raise BadHello("something follows the hello in its record")
            if len(data) < _needed(end):
                return end
            self._message += fragment
            self._at = end
            if length is not None and len(self._message) == length:
                name, early_data = _read(bytes(self._message[4:]))
                return Hello(name, end, early_data)


def parse(data: bytes | memoryview) -> Hello | int:
    """As `Reading.go_on`, at once."""
    return Reading().go_on(data)


def whole(data: bytes) -> Hello:
    """Of bytes that are one hello from the first to the last. Raises BadHello, NoServerName."""
    hello = parse(data)
    if not isinstance(hello, Hello) or hello.length != len(data):
        raise BadHello("it changed while it was read")
    return hello


def _needed(count: int) -> int:
    if count > MAX_LOOK_BYTES:
        raise BadHello(f"more than {MAX_LOOK_BYTES} bytes")
    return count


def _check_start(header: bytes | memoryview) -> None:
    """As far as there is a header: type handshake, version 3.1 to 3.4."""
    if len(header) > 0 and header[0] != HANDSHAKE:
        raise BadHello(f"a record of type {header[0]}")
    if len(header) > 1 and header[1] != 3:
        raise BadHello(f"version {header[1]}")
    if len(header) > 2 and not 1 <= header[2] <= 4:
        raise BadHello(f"version 3.{header[2]}")


def _message_length(message: bytearray) -> int | None:
    if message and message[0] != CLIENT_HELLO:
        raise BadHello(f"a handshake message of type {message[0]}")
    if len(message) < 4:
        return None
    length = 4 + int.from_bytes(message[1:4], "big")
    if length > MAX_HELLO_BYTES:
        raise BadHello(f"a hello of {length} bytes, more than {MAX_HELLO_BYTES}")
    return length


def _read(body: bytes) -> tuple[str, bool]:
    hello = _Reader(body)
    if (version := hello.number(2)) < _TLS_1_0 or version >> 8 != 3:
        raise BadHello(f"client version {version:#06x}")
    hello.take(32)
    if len(hello.vector(1)) > 32:
        raise BadHello("a long session id")
    suites = hello.vector(2)
    if not suites or len(suites) % 2:
        raise BadHello("cipher suites of an odd length")
    if not hello.vector(1):
        raise BadHello("no compression method")
    if not hello.left:
        raise NoServerName("no extensions")
    extensions = _Reader(hello.vector(2))
    if hello.left:
        raise BadHello("bytes behind the extensions")
    seen: dict[int, bytes] = {}
    while extensions.left:
        kind = extensions.number(2)
        if kind in seen:
            raise BadHello(f"extension {kind} twice")
        seen[kind] = extensions.vector(2)
    if _SERVER_NAME not in seen:
        raise NoServerName("no server name")
    return _only_name(seen[_SERVER_NAME]), _EARLY_DATA in seen


def _only_name(extension: bytes) -> str:
    outer = _Reader(extension)
    names = _Reader(outer.vector(2))
    if outer.left:
        raise BadHello("bytes behind the server names")
    kind, name = names.number(1), names.vector(2)
    if kind != _HOST_NAME or names.left or not name:
        raise BadHello("not exactly one host name")
    # It is shown to people: no control characters, nothing that isn't ASCII.
    if not all(0x21 <= byte < 0x7F for byte in name):
        raise BadHello("a host name of odd characters")
    return name.decode("ascii").lower()
