"""Netlink messages (rtnetlink, nfnetlink) as bytes, and sending them: what making a network needs, and no more.

A netlink socket belongs to the network namespace in which it was opened, whatever namespace its user is in later.
All requests of one call go by one system call; the kernel answers each with an acknowledgement or an errno.
"""

from __future__ import annotations

import os
import socket
import struct

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH = 16, 20, 24, 28

NLM_F_REQUEST = 1
NLM_F_ACK = 4
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800

_NLMSG_ERROR = 2
_NLA_F_NESTED = 0x8000
_HEADER = struct.Struct("=IHHII")
_ERROR = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")


def attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NLA_F_NESTED, b"".join(attributes))


def string(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def u32(kind: int, value: int) -> bytes:
    """In the host's byte order, as rtnetlink has its numbers."""
    return attribute(kind, struct.pack("=I", value))


def message(kind: int, flags: int, body: bytes, sequence: int = 1) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def open_socket(protocol: int) -> socket.socket:
    """In this process's network namespace."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    made.settimeout(10)
    return made


def request(channel: socket.socket, what: str, *messages: bytes, expected: int | None = None) -> None:
    """Send the messages and wait for as many acknowledgements as there are messages (or `expected`).

    Raises OSError with the kernel's errno of the first that is refused; `what` is named in it.
    """
    channel.send(b"".join(messages))
    missing = len(messages) if expected is None else expected
    while missing > 0:
        answer = channel.recv(65536)
        while len(answer) >= _HEADER.size:
            length, kind, *_ = _HEADER.unpack_from(answer)
            if kind == _NLMSG_ERROR:
                number = -_ERROR.unpack_from(answer, _HEADER.size)[0]
                if number:
                    raise OSError(number, f"{what}: {os.strerror(number)}")
                missing -= 1
            answer = answer[(length + 3) & ~3 :]
