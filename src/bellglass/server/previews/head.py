"""Which heads are good for published ports, and what of one is about a single hop. The grammar is `http1`'s.

One connection carries many requests, and a proxy in front may put those of many visitors and many origins on one.
"""

from __future__ import annotations

from bellglass import http1
from bellglass.http1 import BadHead, Headers, Request

HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade", b"http2-settings"})
# What a Connection header may not take away from a message.
_END_TO_END = http1.FRAMING | {
    b"host", b"cookie", b"authorization", b"date", b"set-cookie",
    b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host",
    b"e2b-sandbox-id", b"e2b-sandbox-port",
}  # fmt: skip
NOT_IN_TRAILERS = http1.NOT_IN_TRAILERS | {
    b"x-bellglass-token", b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port",
    b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port", b"x-real-ip",
}  # fmt: skip


def parse_request(raw: bytes) -> Request:
    """`raw` up to and with the empty line. Raises BadHead, for a target that is no path as well: visitors of an origin
    send nothing else."""
    request = http1.parse_request(raw)
    check_target(request.method, request.target)
    return request


def check_target(method: bytes, target: bytes) -> None:
    """Raises BadHead."""
    http1.check_line(method, target)
    if not target.startswith(b"/") and (target, method) != (b"*", b"OPTIONS"):
        raise BadHead("the target is not a path")


def end_to_end(headers: Headers) -> Headers:
    """Without what is about this hop alone."""
    named = frozenset(http1.words(headers, b"connection")) - _END_TO_END
    return http1.without(headers, HOP_BY_HOP | named)
