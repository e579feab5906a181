"""What the listener answers by itself: a page for people, JSON in the one shape for programs."""

from __future__ import annotations

import html
import json

from bellglass.errors import BellglassError
from bellglass.http1 import Headers, Request, find, write_response

_REASONS = {
    302: b"Found", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    409: b"Conflict", 410: b"Gone", 429: b"Too Many Requests", 502: b"Bad Gateway", 503: b"Service Unavailable",
}  # fmt: skip
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:38em;margin:15vh auto;padding:0 1em}}</style>
<h1>{title}</h1><p>{message}</p><p>{hint}</p></html>
"""
_SAFE: Headers = [
    (b"Cache-Control", b"no-store"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"X-Content-Type-Options", b"nosniff"),
]
_HTML = b"text/html; charset=utf-8"
_NO_SCRIPTS = (b"Content-Security-Policy", b"default-src 'none'; style-src 'unsafe-inline'")
Parts = tuple[int, Headers, bytes]
"""Status, headers with the length, and body."""


def of_error(error: BellglassError, request: Request | None, *, close: bool) -> bytes:
    """The whole answer to a request, or to what was none, in HTTP/1."""
    return http1(parts_of_error(error, request), close=close)


def moved(location: str, set_cookie: bytes | None, *, close: bool) -> bytes:
    """302 to an URL, perhaps with a cookie, in HTTP/1."""
    return http1(parts_of_move(location, set_cookie), close=close)


def parts_of_error(error: BellglassError, request: Request | None) -> Parts:
    accept = (find(request.headers, b"accept") or b"") if request is not None else b""
    if b"text/html" in accept.lower():
        title = f"{error.status} {_REASONS.get(error.status, b'Error').decode()}"
        body, kind = _page(title, error.message, error.hint or ""), _HTML
    else:
        body, kind = json.dumps(error.to_dict(), separators=(",", ":")).encode(), b"application/json"
    more: Headers = [(b"Content-Type", kind), _NO_SCRIPTS]
    if error.status == 401:
        more.append((b"WWW-Authenticate", b'Bearer realm="published port"'))
    if error.retryable:
        more.append((b"Retry-After", b"1"))
    without_body = request is not None and request.method == b"HEAD"
    return error.status, _headers(more, len(body)), b"" if without_body else body


def parts_of_move(location: str, set_cookie: bytes | None) -> Parts:
    more: Headers = [(b"Location", location.encode("latin-1"))]
    if set_cookie is not None:
        more.append((b"Set-Cookie", set_cookie))
    return 302, _headers(more, 0), b""


def _page(title: str, message: str, hint: str) -> bytes:
    return _PAGE.format(title=html.escape(title), message=html.escape(message), hint=html.escape(hint)).encode()


def _headers(more: Headers, length: int) -> Headers:
    return [*more, *_SAFE, (b"Content-Length", str(length).encode())]


def in_html(status: int, title: str, message: str, request: Request) -> Parts:
    body = _page(title, message, "")
    without_body = request.method == b"HEAD"
    return status, _headers([(b"Content-Type", _HTML), _NO_SCRIPTS], len(body)), b"" if without_body else body


def in_json(status: int, body: bytes, request: Request) -> Parts:
    without_body = request.method == b"HEAD"
    return status, _headers([(b"Content-Type", b"application/json")], len(body)), b"" if without_body else body


def http1(parts: Parts, *, close: bool) -> bytes:
    status, headers, body = parts
    if close:
        headers = [*headers, (b"Connection", b"close")]
    return write_response(status, _REASONS.get(status, b"Error"), headers) + body
