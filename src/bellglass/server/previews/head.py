"""Heads of HTTP/1, read strictly and written anew: what two readers could take in two ways is refused.

One connection carries many requests, and a proxy in front may put those of many visitors and many origins on one. So
the border between messages must be the same for everybody who reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]
MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256
HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"http2-settings"})
# What a Connection header may not take away from a message.
_END_TO_END = frozenset({
    b"host", b"content-length", b"transfer-encoding", b"cookie", b"authorization", b"date", b"set-cookie",
    b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host",
    b"e2b-sandbox-id", b"e2b-sandbox-port",
})  # fmt: skip
NOT_IN_TRAILERS = frozenset({
    b"content-length", b"transfer-encoding", b"host", b"cookie", b"authorization", b"trailer", b"x-bellglass-token",
    b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port",
    b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port", b"x-real-ip",
})  # fmt: skip
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"/[\x21-\x7e\x80-\xff]*|\*")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_LENGTH = re.compile(rb"[0-9]{1,18}")


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


def parse_request(raw: bytes) -> Request:
    """`raw` up to and with the empty line. Raises BadHead."""
    first, headers = _split(raw)
    words = first.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadHead("the first line is not METHOD /PATH HTTP/1.1")
    method, target = words[0], words[1]
    check_target(method, target)
    if sum(name.lower() == b"host" for name, _ in headers) != 1:
        raise BadHead("there is not exactly one Host")
    return Request(method, target, words[2][-1] - 48, headers)


def check_target(method: bytes, target: bytes) -> None:
    """Raises BadHead."""
    good = _TOKEN.fullmatch(method) and _TARGET.fullmatch(target) and (target != b"*" or method == b"OPTIONS")
    if not good or method == b"CONNECT":
        raise BadHead("the target is not a path")


def check_field(name: bytes, value: bytes) -> None:
    """Raises BadHead."""
    if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadHead("a header that is none")


def parse_response(raw: bytes) -> Response:
    """Raises BadHead."""
    first, headers = _split(raw)
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadHead("the first line is not HTTP/1.1 STATUS")
    return Response(int(match[2]), match[3] or b"", int(match[1]), headers)


def _split(raw: bytes) -> tuple[bytes, Headers]:
    lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if len(lines) > MAX_FIELDS:
        raise BadHead(f"more than {MAX_FIELDS} fields")
    if b"\n" in lines[0] or b"\r" in lines[0]:
        raise BadHead("a line end that is not CRLF")
    return lines[0], [_field(line) for line in lines[1:]]


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadHead("a header line that is none")
    return name, value.strip(b" \t")


def parse_trailer(line: bytes) -> tuple[bytes, bytes]:
    """Raises BadHead."""
    return _field(line)


def find(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header; `name` in lower case."""
    return next((value for key, value in headers if key.lower() == name), None)


def words(headers: Headers, name: bytes) -> list[bytes]:
    """The comma-separated words of all headers of a name, in lower case."""
    found = [value for key, value in headers if key.lower() == name]
    return [word.strip().lower() for value in found for word in value.split(b",") if word.strip()]


def length_of(headers: Headers) -> int | None:
    """Content-Length. Raises BadHead for one that is no number, or several that differ."""
    found = {value for name, value in headers if name.lower() == b"content-length"}
    if not found:
        return None
    value = found.pop()
    if found or not _LENGTH.fullmatch(value):
        raise BadHead("the Content-Length is not one number")
    return int(value)


def chunked(headers: Headers) -> bool:
    """Whether Transfer-Encoding says so. Raises BadHead for any other one."""
    found = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if found and (len(found) > 1 or found[0].lower() != b"chunked"):
        raise BadHead("the Transfer-Encoding is not `chunked`")
    return bool(found)


def without(headers: Headers, names: Iterable[bytes]) -> Headers:
    dropped = frozenset(names)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def end_to_end(headers: Headers) -> Headers:
    """Without what is about this hop alone."""
    named = frozenset(words(headers, b"connection")) - _END_TO_END
    return without(headers, HOP_BY_HOP | named)


def write_request(method: bytes, target: bytes, headers: Headers) -> bytes:
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, _fields(headers))


def write_response(status: int, reason: bytes, headers: Headers) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, _fields(headers))


def _fields(headers: Headers) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in headers)
