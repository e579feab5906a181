"""Tokens of a published port: signed with a key of the publication's own, bound to its origin, each with an expiry.

Nothing of a token is stored but that a single-use one was spent. A new key, or none any more, ends all of them at once;
the key lies in the database, so a restart ends none. Each names the API key that made it, masked from visitors: it ends
with that key.

    bgp_<base64url of: kind, expiry in ms (8 bytes), id (9 bytes), maker (10 bytes), HMAC-SHA256 cut to 20 bytes>
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import struct
from enum import IntEnum
from typing import NamedTuple

PREFIX = "bgp_"
_BODY = struct.Struct(">BQ9s10s")
_MAC_BYTES = 20
_KEY_PREFIX = "ky"
_TEXT = re.compile(r"bgp_[A-Za-z0-9_-]{64}")


class Kind(IntEnum):
    TOKEN = 1
    SINGLE_USE = 2
    COOKIE = 3


class Pass(NamedTuple):
    """A token that was found good."""

    kind: Kind
    expires_at_unix: float
    id: str
    maker: str | None
    """The API key that made it, by its id. None for one that no such key made."""


def new_key() -> str:
    return secrets.token_hex(32)


def make(key: str, origin: str, kind: Kind, expires_at_unix: float, maker: str) -> str:
    """`maker` is the id of an API key."""
    token_id = secrets.token_bytes(9)
    masked = _masked(key, token_id, base64.b32decode(maker.removeprefix(_KEY_PREFIX).upper()))
    body = _BODY.pack(kind, round(expires_at_unix * 1000), token_id, masked)
    return PREFIX + base64.urlsafe_b64encode(body + _mac(key, origin, body)).decode()


def check(key: str, origin: str, token: str, now_unix: float) -> Pass | None:
    """None for one of another port, origin or key, for one that was changed, and for one that has expired."""
    if not _TEXT.fullmatch(token):
        return None
    try:
        raw = base64.b64decode(token[len(PREFIX) :], altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    body, mac = raw[: _BODY.size], raw[_BODY.size :]
    if not hmac.compare_digest(_mac(key, origin, body), mac):
        return None
    kind, expires_ms, token_id, masked = _BODY.unpack(body)
    if expires_ms / 1000 <= now_unix:
        return None
    maker = _KEY_PREFIX + base64.b32encode(_masked(key, token_id, masked)).decode().lower()
    return Pass(Kind(kind), expires_ms / 1000, token_id.hex(), maker)


def _mac(key: str, origin: str, body: bytes) -> bytes:
    message = b"bellglass published port\0" + origin.encode() + b"\0" + body
    return hmac.new(bytes.fromhex(key), message, hashlib.sha256).digest()[:_MAC_BYTES]


def _masked(key: str, token_id: bytes, maker: bytes) -> bytes:
    """And back."""
    mask = hmac.digest(bytes.fromhex(key), b"bellglass maker\0" + token_id, hashlib.sha256)
    return bytes(one ^ other for one, other in zip(maker, mask, strict=False))
