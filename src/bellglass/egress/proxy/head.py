"""Heads of HTTP/1.x messages: a request read strictly and written anew, a response as far as its framing.

A request is refused wherever two servers could read it differently: bare CR or LF, folded lines, space before a colon,
two Hosts, two lengths, a length and chunks, another coding than chunked. What is sent on is made from what was read,
never the client's own bytes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 200
END = b"\r\n\r\n"

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_VERSION = re.compile(rb"HTTP/1\.[01]")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_ABSOLUTE = re.compile(rb"(?i:http)://([^/?#]*)(.*)", re.DOTALL)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")

_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))
_NOT_IN_TRAILERS = _FRAMING | {b"connection", b"te", b"trailer", b"upgrade", b"expect", b"authorization", b"cookie"}

CHUNKED, UNTIL_CLOSE = -1, -2
"""In place of a length."""


class BadMessage(Exception):
    """`host` is the host that it names, where that is what's wrong."""

    def __init__(self, message: str, host: str | None = None) -> None:
        super().__init__(message)
        self.host = host


class Request(NamedTuple):
    method: bytes
    head: bytes
    """To send."""
    length: int
    """Of the body: 0 and up, or CHUNKED."""
    upgrade: bool


class Response(NamedTuple):
    status: int
    length: int
    """As answer to a method other than HEAD; or CHUNKED, UNTIL_CLOSE."""


class Field(NamedTuple):
    key: bytes
    """The name in lower case."""
    name: bytes
    value: bytes


Fields = list[Field]


def request(head: bytes, name: str, port: int) -> Request:
    """`head` ends with its empty line. Raises BadMessage; with `host` set when it is meant for another host."""
    first, fields = _split(head)
    method, target, version = _request_line(first)
    target = _origin_form(method, target, name, port)
    hosts = _values(fields, b"host")
    if len(hosts) != 1:
        raise BadMessage(f"{len(hosts)} Host fields")
    _check_host(hosts[0], name, port)
    length = _request_length(fields, version)
    listed = _listed(fields, b"connection")
    if listed & _FRAMING:
        raise BadMessage("Connection names a field that frames the message")
    if b"http2-settings" in listed or _values(fields, b"http2-settings"):
        raise BadMessage("an upgrade to HTTP/2")
    upgrades = _listed(fields, b"upgrade")
    if any(token.startswith((b"h2", b"tls", b"http")) for token in upgrades):
        raise BadMessage("an upgrade to HTTP/2 or TLS")
    if upgrades and length:
        raise BadMessage("an upgrade with a body")  # some servers read that as their next request
    lines = [b"%s %s %s" % (method, target, version)]
    lines += [b"%s: %s" % (field.name, field.value) for field in fields]
    return Request(method, b"\r\n".join(lines) + END, length, bool(upgrades))


def response(head: bytes) -> Response:
    """Where its framing isn't plain, it goes on until the connection closes. Raises BadMessage for what is no head."""
    first, _, _ = head.partition(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadMessage("not a status line")
    status = int(match[1])
    try:
        _, fields = _split(head)
    except BadMessage:
        return Response(status, UNTIL_CLOSE)
    if status < 200 or status in (204, 304):
        return Response(status, 0)
    lengths = _values(fields, b"content-length")
    codings = [value.lower() for value in _values(fields, b"transfer-encoding")]
    if codings:
        return Response(status, CHUNKED if codings == [b"chunked"] and not lengths else UNTIL_CLOSE)
    if not lengths or len(set(lengths)) != 1 or not _LENGTH.fullmatch(lengths[0]):
        return Response(status, UNTIL_CLOSE)
    return Response(status, int(lengths[0]))


def chunk_size(line: bytes) -> int:
    """Of a chunk's first line, without its CRLF. Extensions are not kept. Raises BadMessage."""
    match = _SIZE.fullmatch(line)
    if match is None:
        raise BadMessage("not a chunk's size")
    return int(match[1], 16)


def trailer(lines: bytes) -> bytes:
    """The lines behind the last chunk, up to and with the empty one, to send. Raises BadMessage."""
    if lines == b"\r\n":
        return lines
    fields = _fields(lines[: -len(END)].split(b"\r\n"))
    if any(field.key in _NOT_IN_TRAILERS for field in fields):
        raise BadMessage("a trailer that belongs into a head")
    return b"".join(b"%s: %s\r\n" % (field.name, field.value) for field in fields) + b"\r\n"


def _split(head: bytes) -> tuple[bytes, Fields]:
    lines = head[: -len(END)].split(b"\r\n")
    return lines[0], _fields(lines[1:])


def _fields(lines: list[bytes]) -> Fields:
    if len(lines) > MAX_FIELDS:
        raise BadMessage(f"more than {MAX_FIELDS} fields")
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadMessage("a line that is no field")  # folded lines and space before the colon as well
        if not _VALUE.fullmatch(value):
            raise BadMessage("a control character in a field")
        fields.append(Field(name.lower(), name, value.strip(b" \t")))
    return fields


def _values(fields: Fields, key: bytes) -> list[bytes]:
    return [field.value for field in fields if field.key == key]


def _request_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    words = line.split(b" ")
    if len(words) != 3:
        raise BadMessage("not a request line")
    method, target, version = words
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise BadMessage("not a request line")
    if not _VERSION.fullmatch(version):
        raise BadMessage("not HTTP/1.0 or 1.1")
    if method.upper() in (b"CONNECT", b"PRI"):
        raise BadMessage(f"method {method.decode().upper()}")
    return method, target, version


def _origin_form(method: bytes, target: bytes, name: str, port: int) -> bytes:
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise BadMessage("a target that is neither a path nor http://")
    _check_host(match[1], name, port)
    path = match[2].partition(b"#")[0]
    if not path and method == b"OPTIONS":
        return b"*"
    return path if path.startswith(b"/") else b"/" + path


def _check_host(value: bytes, name: str, port: int) -> None:
    host = value.lower()
    if host not in (name.encode(), b"%s:%d" % (name.encode(), port)):
        raise BadMessage("another host", host=ascii(value[:255].decode("latin-1"))[1:-1])


def _request_length(fields: Fields, version: bytes) -> int:
    lengths = _values(fields, b"content-length")
    codings = [value.lower() for value in _values(fields, b"transfer-encoding")]
    if codings:
        if lengths or codings != [b"chunked"] or version != b"HTTP/1.1":
            raise BadMessage("a body framed in two ways, or in one that isn't known")
        return CHUNKED
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise BadMessage("a length that isn't one number")
    return int(lengths[0])


def _listed(fields: Fields, key: bytes) -> set[bytes]:
    listed = b",".join(_values(fields, key)).lower().split(b",")
    return {token.strip(b" \t") for token in listed} - {b""}
