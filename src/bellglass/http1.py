"""HTTP/1 heads and chunks, read strictly and written anew: what two readers could take in two ways is refused.

Bare CR or LF, folded lines, space before a colon, two Hosts, two lengths, a length and chunks, another coding than
chunks, a Connection that names what frames the message. What is sent on is made from what was read, never the sender's
own bytes. Which host and target are good is for those who read: the proxy of sandboxes' connections, published ports,
the API inside of sandboxes; the server's API has a parser of its own, and holds what that read against `check_request`.

No IO, and nothing imported but the standard library: the confined proxy loads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

END = b"\r\n\r\n"
MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256
CHUNKED, UNTIL_CLOSE = -1, -2
"""In place of a length."""
FRAMING = frozenset({b"content-length", b"transfer-encoding"})
NOT_IN_TRAILERS = FRAMING | {
    b"host", b"connection", b"te", b"trailer", b"upgrade", b"expect", b"authorization", b"cookie",
}  # fmt: skip

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")

Headers = list[tuple[bytes, bytes]]


class BadHead(ValueError):
    """What was wrong, in words for the answer."""


class Request(NamedTuple):
    method: bytes
    target: bytes
    minor: int
    """The version is HTTP/1.minor."""
    headers: Headers

    def get(self, name: bytes) -> bytes | None:
        return find(self.headers, name)


class Response(NamedTuple):
    status: int
    reason: bytes
    minor: int
    headers: Headers


# --- reading heads ---------------------------------------------------------------------------------------


def parse_request(raw: bytes) -> Request:
    """`raw` up to and with the empty line. Raises BadHead."""
    first, lines = split(raw)
    words = first.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadHead("the first line is not METHOD TARGET HTTP/1.1")
    request = Request(words[0], words[1], words[2][-1] - 48, fields(lines))
    check_request(request)
    return request


def check_request(request: Request, *, without_host: bool = False) -> None:
    """What is true of every good one, whoever has read it; `without_host`: one of HTTP/1.0 may do without. Raises
    BadHead."""
    check_line(request.method, request.target)
    hosts = len(values(request.headers, b"host"))
    if hosts != 1 and (hosts or request.minor or not without_host):
        raise BadHead(f"{hosts} Host fields")
    if not FRAMING.union((b"host",)).isdisjoint(words(request.headers, b"connection")):
        raise BadHead("Connection names a field that frames the message")


def check_line(method: bytes, target: bytes) -> None:
    """Raises BadHead."""
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise BadHead("the first line is not METHOD TARGET HTTP/1.1")
    if method.upper() in (b"CONNECT", b"PRI"):
        raise BadHead(f"method {method.decode().upper()}")


def parse_response(raw: bytes) -> Response:
    """`raw` up to and with the empty line. Raises BadHead."""
    first, lines = split(raw)
    return status_line(first)._replace(headers=fields(lines))


def status_line(line: bytes) -> Response:
    """Without its headers. Raises BadHead."""
    match = _STATUS.fullmatch(line)
    if match is None:
        raise BadHead("the first line is not HTTP/1.1 STATUS")
    return Response(int(match[2]), match[3] or b"", int(match[1]), [])


def split(raw: bytes) -> tuple[bytes, list[bytes]]:
    """The first line of a head, and the others."""
    first, *lines = raw.removesuffix(END).split(b"\r\n")
    return first, lines


def fields(lines: list[bytes]) -> Headers:
    """Of a head or a trailer. Raises BadHead."""
    if len(lines) > MAX_FIELDS:
        raise BadHead(f"more than {MAX_FIELDS} fields")
    found = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadHead("a line that is no field")
        check_field(name, value)
        found.append((name, value.strip(b" \t")))
    return found


def check_field(name: bytes, value: bytes) -> None:
    """Raises BadHead."""
    if not _TOKEN.fullmatch(name):
        raise BadHead("a line that is no field")  # folded ones and space before the colon as well
    if not _VALUE.fullmatch(value):
        raise BadHead("a control character in a field")


# --- what fields say; names are asked for in lower case --------------------------------------------------


def values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def find(headers: Headers, name: bytes) -> bytes | None:
    """The first value."""
    return next((value for key, value in headers if key.lower() == name), None)


def words(headers: Headers, name: bytes) -> list[bytes]:
    """The comma-separated words of all fields of a name, in lower case."""
    return [word for each in values(headers, name) for item in each.split(b",") if (word := item.strip(b" \t").lower())]


def without(headers: Headers, names: Iterable[bytes]) -> Headers:
    dropped = frozenset(names)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def is_http(protocol: bytes) -> bool:
    """Whether an upgrade to it leads to further requests, which nobody would check. In lower case."""
    return protocol.startswith((b"h2", b"http", b"tls"))


# --- bodies ----------------------------------------------------------------------------------------------


def request_length(request: Request) -> int:
    """Of its body: 0 and up, or CHUNKED. Raises BadHead."""
    lengths, codings = values(request.headers, b"content-length"), values(request.headers, b"transfer-encoding")
    if codings:
        if lengths or not _are_chunks(codings) or not request.minor:
            raise BadHead("a body framed in two ways, or in one that is not known")
        return CHUNKED
    if len(lengths) > 1:
        raise BadHead("more than one Content-Length")
    return _number(lengths[0]) if lengths else 0


def response_length(headers: Headers) -> int:
    """Of a body that a response has: 0 and up, CHUNKED, UNTIL_CLOSE. Chunks go before a length. Raises BadHead."""
    codings, lengths = values(headers, b"transfer-encoding"), set(values(headers, b"content-length"))
    if codings:
        if not _are_chunks(codings):
            raise BadHead("the Transfer-Encoding is not `chunked`")
        return CHUNKED
    if len(lengths) > 1:
        raise BadHead("more than one Content-Length")
    return _number(lengths.pop()) if lengths else UNTIL_CLOSE


def _are_chunks(codings: list[bytes]) -> bool:
    return len(codings) == 1 and codings[0].lower() == b"chunked"


def _number(length: bytes) -> int:
    if not _LENGTH.fullmatch(length):
        raise BadHead("the Content-Length is not one number")
    return int(length)


def chunk_size(line: bytes) -> int:
    """Of a chunk's first line, without its CRLF. Extensions are not kept. Raises BadHead."""
    match = _SIZE.fullmatch(line)
    if match is None:
        raise BadHead("a chunk without a size")
    return int(match[1], 16)


# --- writing ---------------------------------------------------------------------------------------------


def write_request(request: Request) -> bytes:
    return b"%b %b HTTP/1.%d\r\n%b\r\n" % (request.method, request.target, request.minor, _lines(request.headers))


def write_response(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, _lines(headers))


def write_trailers(headers: Headers) -> bytes:
    """The end of a chunked body."""
    return b"0\r\n%b\r\n" % _lines(headers)


def plainly_framed(headers: Headers, length: int) -> Headers:
    """Those of a request, with its length or coding as everybody writes it: not `05`, not `Chunked`."""
    plain = {b"content-length": b"%d" % length, b"transfer-encoding": b"chunked"}
    return [(name, plain.get(name.lower(), value)) for name, value in headers]


def _lines(headers: Headers) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in headers)
