"""Heads as the proxy takes them: a request for the host that was dialled, a response as far as its framing. The grammar
is `http1`'s.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from bellglass import http1
from bellglass.http1 import CHUNKED, UNTIL_CLOSE, BadHead, Headers

_ABSOLUTE = re.compile(rb"(?i:http)://([^/?#]*)(.*)", re.DOTALL)


class OtherHost(BadHead):
    """`host`, in which nothing is left that a terminal obeys."""

    def __init__(self, host: bytes) -> None:
        super().__init__("another host")
        self.host = ascii(host[:255].decode("latin-1"))[1:-1]


class Request(NamedTuple):
    plain: http1.Request
    """To send: its target in origin form, its framing as everybody writes it."""
    length: int
    """Of the body: 0 and up, or CHUNKED."""
    upgrade: bool


class Response(NamedTuple):
    status: int
    length: int
    """As answer to a method other than HEAD; or CHUNKED, UNTIL_CLOSE."""


def request(head: bytes, name: str, port: int) -> Request:
    """`head` ends with its empty line. Raises OtherHost, BadHead."""
    read = http1.parse_request(head)
    target = _origin_form(read.method, read.target, name, port)
    _check_host(read.get(b"host") or b"", name, port)
    length = http1.request_length(read)
    settings = b"http2-settings"
    if settings in http1.words(read.headers, b"connection") or http1.find(read.headers, settings) is not None:
        raise BadHead("an upgrade to HTTP/2")
    upgrades = http1.words(read.headers, b"upgrade")
    if any(http1.is_http(protocol) for protocol in upgrades):
        raise BadHead("an upgrade to HTTP/2 or TLS")
    if upgrades and length:
        raise BadHead("an upgrade with a body")  # some servers read that as their next request
    plain = read._replace(target=target, headers=http1.plainly_framed(read.headers, length))
    return Request(plain, length, bool(upgrades))


def response(head: bytes) -> Response:
    """Where its framing isn't plain, it goes on until the connection closes. Raises BadHead for what is no head."""
    first, lines = http1.split(head)
    status = http1.status_line(first).status
    try:
        headers = http1.fields(lines)
        if status < 200 or status in (204, 304):
            return Response(status, 0)
        length = http1.response_length(headers)
    except BadHead:
        return Response(status, UNTIL_CLOSE)
    if length == CHUNKED and http1.find(headers, b"content-length") is not None:
        return Response(status, UNTIL_CLOSE)
    return Response(status, length)


def trailers(lines: list[bytes]) -> Headers:
    """Behind the last chunk. Raises BadHead."""
    found = http1.fields(lines)
    if any(name.lower() in http1.NOT_IN_TRAILERS for name, _ in found):
        raise BadHead("a trailer that belongs into a head")
    return found


def _origin_form(method: bytes, target: bytes, name: str, port: int) -> bytes:
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise BadHead("a target that is neither a path nor http://")
    _check_host(match[1], name, port)
    path = match[2].partition(b"#")[0]
    if not path and method == b"OPTIONS":
        return b"*"
    return path if path.startswith(b"/") else b"/" + path


def _check_host(value: bytes, name: str, port: int) -> None:
    if value.lower() not in (name.encode(), b"%s:%d" % (name.encode(), port)):
        raise OtherHost(value)
