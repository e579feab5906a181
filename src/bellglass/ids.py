"""Ids: their grammar and how they are made.

A sandbox id is `sb` and 20 characters `[a-z2-7]` (100 bits from the CSPRNG): it fits a DNS label and a kernel name.
An execution id is a ULID, made by the client or the server: 48 bits of milliseconds and 80 random bits.
Anything that does not match its grammar is treated as an unknown id, so a malformed id answers 404 like a foreign one.
"""

from __future__ import annotations

import re
import secrets
import time

_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

SANDBOX_ID = re.compile(r"^sb[a-z2-7]{20}\Z")
EXECUTION_ID = re.compile(r"^[0-9A-HJKMNP-TV-Z]{26}\Z")
CONTEXT_ID = re.compile(r"^cx[a-z2-7]{20}\Z")
KEY_ID = re.compile(r"^ky[a-z2-7]{16}\Z")
INSTALLATION_ID = re.compile(r"^[a-z2-7]{8}\Z")
DIGEST = re.compile(r"^[0-9a-f]{64}\Z")
TEMPLATE_NAME = re.compile(r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?\Z")
NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")


def random_base32(length: int) -> str:
    return encode_base32(secrets.token_bytes(length))


def encode_base32(raw: bytes) -> str:
    """One character for each byte, by its lowest five bits: of random bytes or a digest."""
    return "".join(_BASE32[byte & 31] for byte in raw)


def new_sandbox_id() -> str:
    return "sb" + random_base32(20)


def new_context_id() -> str:
    return "cx" + random_base32(20)


def new_project_id() -> str:
    return "pj" + random_base32(16)


def new_key_id() -> str:
    return "ky" + random_base32(16)


def new_installation_id() -> str:
    return random_base32(8)


def new_request_id() -> str:
    return "rq" + random_base32(16)


def new_ulid() -> str:
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))
