"""What the kernel would do with a packet to an address, asked by rtnetlink: is it the host's own, is there a way.

An answer takes some microseconds and is never kept: addresses come and go while the proxy runs, and routes of type
local (whole ranges on the loopback interface) are in no list of addresses.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

_RTM_NEWROUTE, _RTM_GETROUTE, _NLM_F_REQUEST, _RTA_DST = 24, 26, 1, 1
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_UNICAST = 1
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EAGAIN)
"""What dialling would fail with as well: no route, or one of type unreachable, prohibit, blackhole, throw."""


class Routes:
    """Owns a netlink socket."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._count = 0

    def close(self) -> None:
        self._sock.close()

    def is_own(self, address: IPv4Address | IPv6Address) -> bool:
        """An address of the host's, a broadcast or anything else that isn't plainly another machine's. Where there is
        no way at all it isn't: dialling tells so."""
        kind = self._kind(address)
        return kind is not None and kind != _UNICAST

    def has_way(self, address: IPv4Address | IPv6Address) -> bool:
        return self._kind(address) == _UNICAST

    def _kind(self, address: IPv4Address | IPv6Address) -> int | None:
        """rtm_type of the route. Raises OSError when the kernel doesn't answer."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        packed = address.packed
        body = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _RTA_DST) + packed
        self._count = (self._count + 1) & 0xFFFFFFFF
        self._sock.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, self._count, 0) + body)
        while True:
            answer = self._sock.recv(8192)
            _, kind, _, number, _ = _HEADER.unpack_from(answer)
            if number != self._count:
                continue
            if kind == _RTM_NEWROUTE:
                return answer[_HEADER.size + 7]
            error = -int.from_bytes(answer[_HEADER.size : _HEADER.size + 4], "little", signed=True)
            if error in _NO_WAY:
                return None
            raise OSError(error, f"the route to {address}: {os.strerror(error)}")
