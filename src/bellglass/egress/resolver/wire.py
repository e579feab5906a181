"""DNS messages as far as the resolver needs them (RFC 1035, 6891): one question in, one short answer out.

    question = parse(packet)            # raises Malformed, or Ignored where silence is the answer
    packet = question.answer(address=b"\\xc6\\x12\\x00\\x02", ttl=30)

Strict on purpose: one question without compression, no records but at most one OPT, nothing behind them. Every resolver
library asks so; what doesn't is refused, and nothing of a packet is ever passed on.
"""

from __future__ import annotations

import struct

A, AAAA, OPT = 1, 28, 41
IN = 1
NOERROR, FORMERR, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 3, 4, 5, 16
_META = {0, OPT, *range(249, 256)}  # TKEY TSIG IXFR AXFR MAILB MAILA ANY
MAX_QUERY_BYTES = 4096
UDP_SIZE = 1232
"""What our OPT record says that we take."""
_HEADER = struct.Struct("!HHHHHH")
_QR, _OPCODE, _TC, _RD, _RA, _CD = 0x8000, 0x7800, 0x0200, 0x0100, 0x0080, 0x0010
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


class Ignored(Exception):
    """No query at all: too short to be answered, or an answer itself."""


class Malformed(Exception):
    """Refused with `answer`, which echoes id and flags alone."""

    def __init__(self, answer: bytes, what: str) -> None:
        super().__init__(what)
        self.answer = answer


class Question:
    """What is asked. `name` is lower case without the trailing dot, None where it can be no host's name."""

    __slots__ = ("_edns", "_flags", "_id", "_raw", "klass", "name", "type")

    def __init__(self, identifier: int, flags: int, raw: bytes, name: str | None, edns: bool) -> None:
        self._id, self._flags, self._raw, self._edns = identifier, flags, raw, edns
        self.name = name
        self.type, self.klass = struct.unpack_from("!HH", raw, len(raw) - 4)

    @property
    def is_plain(self) -> bool:
        """Asks for one type of record in the Internet's class, not for a transfer or everything."""
        return self.klass == IN and self.type not in _META

    def shown(self) -> str:
        """The name as text for an event, whatever bytes it has."""
        if self.name is not None:
            return self.name
        return _decoded(self._raw[:-4])

    def answer(self, code: int = NOERROR, *, address: bytes | None = None, ttl: int = 0) -> bytes:
        """With the question's own spelling of the name: programs compare it. `address`: 4 or 16 bytes."""
        flags = _QR | _RA | (self._flags & (_RD | _CD)) | (code & 0xF)
        body = self._raw
        if address is not None:
            # The name is the question's, at offset 12.
            body += struct.pack("!HHHIH", 0xC00C, AAAA if len(address) == 16 else A, IN, ttl, len(address)) + address
        if self._edns:
            body += struct.pack("!BHHBBHH", 0, OPT, UDP_SIZE, code >> 4, 0, 0, 0)
        return _HEADER.pack(self._id, flags, 1, int(address is not None), 0, int(self._edns)) + body


def parse(packet: bytes) -> Question:
    """Raises Malformed, Ignored."""
    if len(packet) < _HEADER.size:
        raise Ignored("shorter than a header")
    identifier, flags, questions, answers, authorities, additional = _HEADER.unpack_from(packet)
    if flags & _QR:
        raise Ignored("an answer")

    def refuse(code: int, what: str) -> Malformed:
        kept = _QR | _RA | (flags & (_OPCODE | _RD | _CD)) | code
        return Malformed(_HEADER.pack(identifier, kept, 0, 0, 0, 0), what)

    if len(packet) > MAX_QUERY_BYTES:
        raise refuse(FORMERR, "too long")
    if flags & _OPCODE:
        raise refuse(NOTIMP, "no standard query")
    if flags & _TC or questions != 1 or answers or authorities or additional > 1:
        raise refuse(FORMERR, "not one question alone")
    end = _name_end(packet, _HEADER.size)
    if end is None or len(packet) < end + 4:
        raise refuse(FORMERR, "no question")
    raw = packet[_HEADER.size : end + 4]
    question = Question(identifier, flags, raw, _name(raw[:-4]), edns=bool(additional))
    at = end + 4
    if additional:
        # OPT: the root's name, type, size, extended code and version and flags, length of the options.
        if len(packet) < at + 11 or packet[at] or struct.unpack_from("!H", packet, at + 1)[0] != OPT:
            raise refuse(FORMERR, "a record that is not OPT")
        version = packet[at + 6]
        at += 11 + struct.unpack_from("!H", packet, at + 9)[0]
        if len(packet) == at and version:
            raise Malformed(question.answer(BADVERS), "EDNS of another version")
    if len(packet) != at:
        raise refuse(FORMERR, "bytes behind the question")
    return question


def _name_end(packet: bytes, at: int) -> int | None:
    """Where the name ends, None if it doesn't or is compressed or too long."""
    begin = at
    while at < len(packet):
        length = packet[at]
        at += 1 + length
        if length > 63 or at - begin > 255:
            return None
        if length == 0:
            return at
    return None


def _labels(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while length := raw[at]:
        found.append(raw[at + 1 : at + 1 + length])
        at += 1 + length
    return found


def _name(raw: bytes) -> str | None:
    labels = _labels(raw.lower())
    if not labels or not all(_LETTERS.issuperset(label) for label in labels):
        return None
    return b".".join(labels).decode("ascii")


def _decoded(raw: bytes) -> str:
    shown = []
    for label in _labels(raw.lower()):
        shown.append("".join(chr(byte) if byte in _LETTERS else f"\\{byte:03d}" for byte in label))
    return ".".join(shown) or "."
