"""What a client's first bytes are, on a port that doesn't say: TLS, HTTP, or something else that is passed as it is.

A server that reads HTTP must never get a request that was taken for something else, so a line is held back until it is
whole: it is HTTP when it begins with a method that we know or has `HTTP/` anywhere. What can't be the start of such a
line is raw at once.
"""

from __future__ import annotations

import re

from bellglass.http1 import BadHead

TLS, HTTP, RAW = "tls", "http", "raw"
MAX_LINE_BYTES = 16 * 1024

_METHODS = frozenset(b"GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PRI PROXY".split())
"""Without `HTTP/` in the line it could only be HTTP/0.9, which lax servers read with headers. Upper case alone: `get
key` is memcached's. PROXY is the PROXY protocol, behind whose line the request or the hello would stand."""
_PROXY_V2 = b"\r\n\r\n\0"
_BYTE = (0x00, 0xFF)
_TLS_STARTS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0x16, 0x16),),
    # Servers pass over a warning, or what else is no handshake, and read the hello behind it; some whatever version the
    # record says. As long as they are here so that no message of MongoDB, whose length comes first, is one of them.
    ((0x14, 0x14), (0x00, 0x0F), _BYTE, (0, 0), (1, 1), (1, 1)),
    ((0x15, 0x15), (0x00, 0x0F), _BYTE, (0, 0), (1, 2), (1, 1)),
    ((0x17, 0x18), (3, 3), (1, 4)),
    # A hello in the form of SSL 2, which has no room for a name: servers of today still take it, for TLS 1.2.
    ((0x80, 0xBF), _BYTE, (1, 1), (3, 3)),
    ((0x80, 0xBF), _BYTE, (1, 1), (0, 0), (2, 2)),
)
"""From and to, of each byte."""
_TOKEN_START = re.compile(rb"[\r\n \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]*")
_BLANK = b" \t\r\n\x0b\x0c"  # what lax servers take for space between the words
_FIRST_WORD = re.compile(rb"[\r\n \t]*([A-Z]+)[ \t\r\x0b\x0c]+[^ \t\r\n\x0b\x0c]")
_HTTP = re.compile(rb"HTTP/", re.IGNORECASE)


class TooLong(BadHead):
    """A line that has begun like a request and doesn't end."""


def classify(data: bytes) -> str | None:
    """TLS, HTTP or RAW; None when more bytes are needed. `data` isn't empty. Raises TooLong. What is told to be TLS or
    HTTP need not be a good hello or request."""
    if (begins := _begins_tls(data)) is not False:
        return TLS if begins else None
    if data.startswith(_PROXY_V2):
        return HTTP
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


def _begins_tls(data: bytes) -> bool | None:
    """None when more bytes are needed."""
    undecided = False
    for start in _TLS_STARTS:
        if all(least <= byte <= most for byte, (least, most) in zip(data, start, strict=False)):
            if len(data) >= len(start):
                return True
            undecided = True
    return None if undecided else False


def _leading_blank(data: bytes) -> int:
    """Where the first line that isn't blank begins: servers skip empty lines in front of a request."""
    at = 0
    while at < len(data) and data[at] in b"\r\n \t":
        at += 1
    return at
