"""What comes in by a link, packet for packet: of any protocol, as the kernel gets it and before any rule sees it."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import time
from ipaddress import ip_address
from typing import NamedTuple

from bellglass.testing.namespaces import Namespace

ETH_P_ALL, SO_ATTACH_FILTER, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 3, 26, 33, 35
SOL_PACKET, PACKET_STATISTICS = 263, 6
IPV4, ARP, IPV6 = 0x0800, 0x0806, 0x86DD
TCP, UDP = 6, 17
BUFFER_BYTES = 64 << 20
RST = 0x04
BPF_LOAD_HALF, BPF_LOAD, BPF_JEQ, BPF_RETURN = 0x28, 0x20, 0x15, 0x06


class Packet(NamedTuple):
    """`protocol` is the IP protocol's number, or "arp"; `at` is the kernel's time of its arrival (as `time.time`)."""

    at: float
    source: str
    target: str
    protocol: int | str
    port: int | None
    flags: int
    length: int

    @property
    def only_ends(self) -> bool:
        """A RST without data: the kernel's answer to what came late."""
        return self.protocol == TCP and bool(self.flags & RST)


class Sniffer:
    """Keeps, from when it is made, what comes for one of the addresses; ARP and neighbour discovery for it as well."""

    def __init__(self, namespace: Namespace, device: str, addresses: tuple[str, ...]) -> None:
        self._addresses = frozenset(addresses)
        self._sock = namespace.call(self._open, device)

    def _open(self, device: str) -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        program = _program([ip_address(text).packed for text in self._addresses if ":" not in text])
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        holder = ctypes.create_string_buffer(program)
        sock.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(holder))
        )
        sock.bind((device, ETH_P_ALL))
        sock.setblocking(False)
        return sock

    def packets(self) -> list[Packet]:
        """What has come since the last call. A veth hands over inside the sender's call, so all of it is there."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data, controls, _, sender = self._sock.recvmsg(256, 64)
                if sender[2] != socket.PACKET_OUTGOING:
                    found += self._read(data, stamp(controls))
        _, lost = struct.unpack("II", self._sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        assert lost == 0, f"{lost} packets came too fast to be seen"
        return found

    def _read(self, data: bytes, at: float) -> list[Packet]:
        kind = int.from_bytes(data[12:14], "big")
        if kind == ARP:
            return [Packet(at, socket.inet_ntoa(data[28:32]), socket.inet_ntoa(data[38:42]), "arp", None, 0, 0)]
        if kind == IPV4:
            start, protocol = 14 + (data[14] & 15) * 4, data[23]
            source, target = socket.inet_ntoa(data[26:30]), socket.inet_ntoa(data[30:34])
        elif kind == IPV6:
            start, protocol = 54, data[20]
            source = socket.inet_ntop(socket.AF_INET6, data[22:38])
            target = socket.inet_ntop(socket.AF_INET6, data[38:54])
            if protocol == socket.IPPROTO_ICMPV6 and data[start : start + 1] == b"\x87":
                target = socket.inet_ntop(socket.AF_INET6, data[start + 8 : start + 24])
            if target not in self._addresses:
                return []
        else:
            return []
        port = int.from_bytes(data[start + 2 : start + 4], "big") if protocol in (TCP, UDP) else None
        flags = data[start + 13] if protocol == TCP and len(data) > start + 13 else 0
        return [Packet(at, source, target, protocol, port, flags, len(data))]

    def __enter__(self) -> Sniffer:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()


def stamp(controls: list[tuple[int, int, bytes]]) -> float:
    """When the kernel got it, as `time.time`, of a socket with SO_TIMESTAMPNS."""
    for level, kind, data in controls:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            return float(seconds) + nanoseconds / 1e9
    return time.time()


def _program(addresses: list[bytes]) -> bytes:
    """Classic BPF: IPv4 and ARP for one of the addresses, and all IPv6."""
    count = len(addresses)
    arp, reject, accept = 5 + count, 6 + 2 * count, 7 + 2 * count
    lines: list[bytes] = []

    def line(code: int, value: int, yes: int = 0, no: int = 0) -> None:
        lines.append(struct.pack("=HBBI", code, yes, no, value))

    def equal(value: int, yes: int, no: int | None = None) -> None:
        after = len(lines) + 1
        line(BPF_JEQ, value, yes - after, 0 if no is None else no - after)

    line(BPF_LOAD_HALF, 12)
    equal(IPV6, accept)
    equal(ARP, arp)
    equal(IPV4, len(lines) + 1, reject)
    for offset in (30, 38):
        line(BPF_LOAD, offset)
        for index, address in enumerate(addresses):
            last = index == count - 1
            equal(int.from_bytes(address, "big"), accept, reject if last else None)
    line(BPF_RETURN, 0)
    line(BPF_RETURN, 1 << 16)
    return b"".join(lines)
