"""What a client's first bytes are, on a port that doesn't say: TLS, HTTP, or something else that is passed as it is.

A server that reads HTTP must never get a request that was taken for something else, so a line is held back until it is
whole: it is HTTP when it begins with a method that we know or has `HTTP/` anywhere. What can't be the start of such a
line is raw at once.
"""

from __future__ import annotations

import re

from bellglass.egress.proxy.head import BadMessage

TLS, HTTP, RAW = "tls", "http", "raw"
MAX_LINE_BYTES = 16 * 1024

_METHODS = frozenset(b"GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PRI".split())
"""Without `HTTP/` in the line it could only be HTTP/0.9, which lax servers read with headers. Upper case alone: `get
key` is memcached's."""
_TOKEN_START = re.compile(rb"[\r\n \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]*")
_BLANK = b" \t\r\n\x0b\x0c"  # what lax servers take for space between the words
_FIRST_WORD = re.compile(rb"[\r\n \t]*([A-Z]+)[ \t\r\x0b\x0c]+[^ \t\r\n\x0b\x0c]")
_HTTP = re.compile(rb"HTTP/", re.IGNORECASE)


class TooLong(BadMessage):
    """A line that has begun like a request and doesn't end."""


def classify(data: bytes) -> str | None:
    """TLS, HTTP or RAW; None when more bytes are needed. `data` isn't empty. Raises TooLong."""
    if data[0] == 0x16:
        return TLS
    start = _TOKEN_START.match(data)
    assert start is not None  # it matches nothing as well
    if start.end() < len(data) and data[start.end()] not in _BLANK:
        return RAW  # no request line has that in its method
    line_end = data.find(b"\n", _leading_blank(data))
    line = data if line_end < 0 else data[:line_end]
    word = _FIRST_WORD.match(data)
    if word is not None and word[1] in _METHODS:
        return HTTP
    if _HTTP.search(line):
        return HTTP
    if line_end >= 0:
        return RAW
    if len(data) > MAX_LINE_BYTES:
        raise TooLong(f"no end of line in {MAX_LINE_BYTES} bytes")
    return None


def _leading_blank(data: bytes) -> int:
    """Where the first line that isn't blank begins: servers skip empty lines in front of a request."""
    at = 0
    while at < len(data) and data[at] in b"\r\n \t":
        at += 1
    return at
