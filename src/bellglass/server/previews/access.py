"""What a visitor shows to be let in, and taking it out of the request: the program sees neither token nor cookie."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_plus

from bellglass.http1 import Headers, Request, without
from bellglass.server.previews.origins import TOKEN_PARAMETER

TOKEN_HEADER = b"x-bellglass-token"
TRAFFIC_HEADER = b"e2b-traffic-access-token"
"""What clients of another platform send to every private port of a sandbox."""
COOKIES = {"https": "__Host-bellglass", "http": "bellglass"}
"""A browser takes the first name only with Secure, for the whole path and without a Domain: no sibling can set it."""
_NAMES = frozenset(name.encode() for name in COOKIES.values())


class Shown(NamedTuple):
    """`request` is without all of it."""

    request: Request
    in_query: list[str]
    in_header: list[str]
    in_cookies: list[str]
    for_all: list[str]
    """Tokens that may be for all ports of the sandbox."""


def take(request: Request, scheme: str) -> Shown:
    """A cookie counts only under the scheme's own name: the plain one may have been set by a sibling."""
    target, in_query = _from_query(request.target)
    headers, in_cookies = _from_cookies(request.headers, COOKIES[scheme].encode())
    in_header = _values(headers, TOKEN_HEADER)
    for_all = _values(headers, TRAFFIC_HEADER)
    headers = [_without_token(field) for field in without(headers, (TOKEN_HEADER, TRAFFIC_HEADER))]
    return Shown(
        request._replace(target=target, headers=headers),
        in_query,
        in_header,
        in_cookies,
        for_all,
    )


def _values(headers: Headers, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name.lower() == wanted]


def _without_token(field: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """A page that was asked for with the token in its URL, by POST, names that URL as Referer of all it loads."""
    name, value = field
    if name.lower() == b"referer" and TOKEN_PARAMETER in unquote_plus(value.decode("latin-1")):
        value = value.partition(b"?")[0]
    return name, value


def cookie(scheme: str, value: str, left_s: int) -> bytes:
    """A Set-Cookie value. With https it also works in a frame of another site, kept apart for each such site."""
    text = f"{COOKIES[scheme]}={value}; Path=/; Max-Age={left_s}; HttpOnly; "
    return (text + ("Secure; SameSite=None; Partitioned" if scheme == "https" else "SameSite=Lax")).encode()


def _from_query(target: bytes) -> tuple[bytes, list[str]]:
    path, mark, query = target.partition(b"?")
    if not mark:
        return target, []
    kept, found = [], []
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if unquote_plus(name.decode("latin-1")) == TOKEN_PARAMETER:
            found.append(unquote_plus(value.decode("latin-1")))
        else:
            kept.append(pair)
    if not found:
        return target, []
    return (path + b"?" + b"&".join(kept) if kept else path), found


def _from_cookies(headers: Headers, good: bytes) -> tuple[Headers, list[str]]:
    left: Headers = []
    found: list[str] = []
    for name, value in headers:
        if name.lower() != b"cookie":
            left.append((name, value))
            continue
        kept = []
        mine = 0
        for pair in value.split(b";"):
            key, _, text = pair.partition(b"=")
            if key.strip() in _NAMES:
                mine += 1
                if key.strip() == good:
                    found.append(text.strip().strip(b'"').decode("latin-1"))
            else:
                kept.append(pair)
        if not mine:
            left.append((name, value))
        elif rest := b";".join(kept).strip():
            left.append((name, rest))
    return left, found
