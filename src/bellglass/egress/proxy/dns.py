"""DNS messages, as far as the proxy asks: one question for A or AAAA, and the addresses that answer it (RFC 1035).

The answer comes from a server that the operator chose, about a name whose owner may be hostile: names are compressed,
aliases may run in a circle, counts may lie. What doesn't answer the very question is no answer.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

A, CNAME, AAAA = 1, 5, 28
MAX_ADDRESSES = 32
_MAX_RECORDS = 256
_MAX_ALIASES = 16
_CLASS_IN = 1
_HEADER = struct.Struct("!HHHHHH")
_RESPONSE, _TRUNCATED, _RECURSION_DESIRED = 0x8000, 0x0200, 0x0100
_NO_ERROR, _NAME_ERROR = 0, 3


class BadAnswer(Exception):
    """Not an answer to the question; another one may still come."""


class ServerFailure(Exception):
    """The server says that it can't answer."""


class Truncated(Exception):
    """It didn't fit: ask by TCP."""


class Answer(NamedTuple):
    addresses: tuple[IPv4Address | IPv6Address, ...]
    """None of them for a name that doesn't exist, or has no such record."""
    ttl_s: int
    """The least of all records on the way."""


def question(query_id: int, name: str, kind: int) -> bytes:
    """`name` as policies hold it: at most 253 bytes, labels of 1 to 63."""
    header = _HEADER.pack(query_id, _RECURSION_DESIRED, 1, 0, 0, 0)
    labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split("."))
    return header + labels + b"\0" + struct.pack("!HH", kind, _CLASS_IN)


def answer(message: bytes, query_id: int, name: str, kind: int) -> Answer:
    """Raises BadAnswer, ServerFailure, Truncated."""
    try:
        return _answer(message, query_id, name, kind)
    except (struct.error, IndexError, ValueError) as error:
        raise BadAnswer(f"a malformed message: {error}") from error


def _answer(message: bytes, query_id: int, name: str, kind: int) -> Answer:
    got_id, flags, questions, answers, _, _ = _HEADER.unpack_from(message)
    if got_id != query_id or not flags & _RESPONSE or flags >> 11 & 0xF or questions != 1:
        raise BadAnswer("not a response to this query")
    asked, at = _name(message, _HEADER.size)
    if asked != name or struct.unpack_from("!HH", message, at) != (kind, _CLASS_IN):
        raise BadAnswer("the answer to another question")
    at += 4
    if flags & _TRUNCATED:
        raise Truncated
    code = flags & 0xF
    if code == _NAME_ERROR:
        return Answer((), 5)
    if code != _NO_ERROR:
        raise ServerFailure(f"code {code}")
    aliases: dict[str, tuple[str, int]] = {}
    found: dict[str, list[tuple[bytes, int]]] = {}
    for _ in range(min(answers, _MAX_RECORDS)):
        owner, at = _name(message, at)
        record, record_class, ttl, size = struct.unpack_from("!HHIH", message, at)
        at += 10
        data = message[at : at + size]
        if len(data) != size:
            raise BadAnswer("a record that is cut off")
        ttl = ttl if ttl < 2**31 else 0
        if record_class == _CLASS_IN and record == CNAME:
            aliases.setdefault(owner, (_name(message, at)[0], ttl))
        elif record_class == _CLASS_IN and record == kind:
            found.setdefault(owner, []).append((data, ttl))
        at += size
    return _follow(name, kind, aliases, found)


def _follow(
    name: str, kind: int, aliases: dict[str, tuple[str, int]], found: dict[str, list[tuple[bytes, int]]]
) -> Answer:
    least = 2**31
    for _ in range(_MAX_ALIASES):
        if name in found:
            made = IPv4Address if kind == A else IPv6Address
            addresses = tuple(made(data) for data, _ in found[name][:MAX_ADDRESSES])
            return Answer(addresses, min(least, *(ttl for _, ttl in found[name])))
        if name not in aliases:
            break
        name, ttl = aliases[name]
        least = min(least, ttl)
    return Answer((), min(least, 5))


def _name(message: bytes, at: int) -> tuple[str, int]:
    """The name there in lower case, and where what follows it begins. Raises BadAnswer, IndexError."""
    labels: list[str] = []
    end = None
    length = 0
    while True:
        size = message[at]
        if size >= 0xC0:
            target = (size & 0x3F) << 8 | message[at + 1]
            if target >= at:
                raise BadAnswer("a name that leads forward")  # backward alone can't run in a circle
            end = at + 2 if end is None else end
            at = target
            continue
        if size > 63:
            raise BadAnswer("a label of an unknown kind")
        at += 1
        if size == 0:
            return ".".join(labels), at if end is None else end
        length += size + 1
        if length > 254:
            raise BadAnswer("a name that is too long")
        label = message[at : at + size]
        if len(label) != size:
            raise BadAnswer("a name that is cut off")
        # A dot inside a label would read as two labels; escaped, it equals no name that a policy holds.
        labels.append(label.decode("latin-1").lower().replace(".", "\\."))
        at += size
