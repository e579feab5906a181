"""Sends packets of every kind that root with all capabilities over its network namespace can make, and prints as JSON
which were sent and which got an answer. Runs in a sandbox's namespace and, as its twin, in one without a gateway.

Usage: network_probes.py '{"addresses": [...], "port": 7777, "own": "10.200.0.2"}'. Every packet holds
`bgprobe-<name>;`, by which whoever sees it knows what it is. A connection sends it once it stands.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Any

LINK = "eth0"
OWN_MAC, OTHER_MAC = bytes.fromhex("026267000002"), bytes.fromhex("026267000099")
GATEWAY_MAC, BROADCAST = bytes.fromhex("026267000001"), b"\xff" * 6
PROTOCOLS = {"ipip": 4, "ipv6": 41, "gre": 47, "esp": 50, "ah": 51, "pim": 103, "l2tp": 115, "udplite": 136}
SPOOFED = ("10.200.0.1", "10.200.0.3", "127.0.0.1", "169.254.7.7", "8.8.4.4")
ANSWER_S = 1.5


def mark(name: str) -> bytes:
    return f"bgprobe-{name};".encode()


def at(address: str, port: int) -> tuple[Any, ...]:
    """As sockets take it: link-local ones with their link."""
    return (address, port, 0, socket.if_nametoindex(LINK)) if address.startswith("fe80:") else (address, port)


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def ipv4(protocol: int, source: str, destination: str, payload: bytes, *, options: bytes = b"", more: int = 0) -> bytes:
    size = 20 + len(options)
    head = struct.pack(
        *("!BBHHHBBH4s4s", 0x40 | size // 4, 0, size + len(payload), 7, more, 64, protocol, 0),
        *(socket.inet_aton(source), socket.inet_aton(destination)),
    )
    head += options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(payload: bytes, port: int) -> bytes:
    return struct.pack("!HHHH", 4001, port, 8 + len(payload), 0) + payload


def syn(source: str, destination: str, payload: bytes, port: int) -> bytes:
    head = struct.pack("!HHIIBBHHH", 4002, port, 1, 0, 0x50, 2, 65535, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(destination) + struct.pack("!HH", 6, len(head + payload))
    return head[:16] + struct.pack("!H", checksum(pseudo + head + payload)) + head[18:] + payload


def ipv6(following: int, source: str, destination: str, payload: bytes) -> bytes:
    head = struct.pack("!IHBB", 6 << 28, len(payload), following, 255)
    return head + socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination) + payload


class Probes:
    def __init__(self, addresses: list[str], port: int, own: str) -> None:
        self.addresses, self.port, self.own = addresses, port, own
        self.v4 = [address for address in addresses if ":" not in address]
        self.sent: list[str] = []
        self.failed: dict[str, str] = {}
        self.waiting: dict[socket.socket, str] = {}
        self.connecting: dict[socket.socket, str] = {}
        self.answered: list[str] = []

    def attempt(self, name: str, act: Any) -> None:
        try:
            act()
            self.sent.append(name)
        except OSError as error:
            self.failed[name] = str(error)

    def cooked(self, prefix: str) -> None:
        """As the kernel makes them, from the address that it has."""
        for address in self.addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            for port in (self.port, 123, 1053, 1080):
                self._to(f"{prefix}udp:{address}:{port}", socket.socket(family, socket.SOCK_DGRAM), at(address, port))
            for port in (self.port, 22, 1080, 1081):
                self._connect(f"{prefix}tcp:{address}:{port}", socket.socket(family, socket.SOCK_STREAM), address, port)
            if family == socket.AF_INET:
                icmp = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_ICMP)
                name = f"{prefix}icmp:{address}"
                body = struct.pack("!BBHHH", 8, 0, 0, 9, 1) + mark(name)
                body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
                self._to(name, icmp, (address, 0), body)
                name = f"{prefix}sctp:{address}"
                init = struct.pack("!HHII", 4003, self.port, 0, 0) + b"\x01\0\0\x14" + mark(name)
                self._to(name, socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_SCTP), (address, 0), init)
            else:
                icmp = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
                name = f"{prefix}icmp:{address}"
                self._to(name, icmp, at(address, 0), struct.pack("!BBHHH", 128, 0, 0, 9, 1) + mark(name))
        for name, protocol in PROTOCOLS.items():
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
            self._to(f"{prefix}raw:{name}", raw, (self.v4[0], 0))

    def spoofed(self) -> None:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        for source in SPOOFED:
            for address in self.v4:
                for port in (self.port, 53, 80):
                    name = f"spoofed:udp:{source}:{address}:{port}"
                    packet = ipv4(17, source, address, udp(mark(name), port))
                    self.attempt(name, lambda packet=packet, address=address: raw.sendto(packet, (address, 0)))
                    name = f"spoofed:tcp:{source}:{address}:{port}"
                    packet = ipv4(6, source, address, syn(source, address, mark(name), port))
                    self.attempt(name, lambda packet=packet, address=address: raw.sendto(packet, (address, 0)))

    def frames(self) -> None:
        link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        link.bind((LINK, 0))
        to = self.v4[0]
        own, gateway, host = (socket.inet_aton(address) for address in (self.own, "10.200.0.1", to))
        arp = struct.pack("!HHBB", 1, 0x800, 6, 4)
        source_route = b"\x83\x07\x04" + socket.inet_aton(to) + b"\0"
        v6 = ("fe80::62:67ff:fe00:2", "ff02::1")
        echo = struct.pack("!BBHHH", 128, 0, 0, 1, 1)
        bodies: dict[str, tuple[int, Any]] = {
            "arp-who-has": (0x806, lambda m: arp + b"\0\1" + OWN_MAC + own + bytes(6) + gateway + m),
            "arp-who-has-host": (0x806, lambda m: arp + b"\0\1" + OWN_MAC + own + bytes(6) + host + m),
            "arp-i-am-the-gateway": (0x806, lambda m: arp + b"\0\2" + OTHER_MAC + gateway + BROADCAST + own + m),
            "arp-i-am-the-host": (0x806, lambda m: arp + b"\0\1" + OTHER_MAC + host + bytes(6) + own + m),
            "rarp": (0x8035, lambda m: arp + b"\0\3" + OWN_MAC + own + OWN_MAC + own + m),
            "lldp": (0x88CC, lambda m: m),
            "mpls": (0x8847, lambda m: b"\0\1\1\x40" + ipv4(17, self.own, to, udp(m, self.port))),
            "pppoe": (0x8863, lambda m: m),
            "vlan": (0x8100, lambda m: b"\0\7\x08\0" + ipv4(17, self.own, to, udp(m, self.port))),
            "qinq": (0x88A8, lambda m: b"\0\7\x08\0" + ipv4(17, self.own, to, udp(m, self.port))),
            "stp": (0x0026, lambda m: b"\x42\x42\x03" + m),
            "ip-source-route": (0x800, lambda m: ipv4(17, self.own, to, udp(m, self.port), options=source_route)),
            "ip-fragment": (0x800, lambda m: ipv4(17, self.own, to, udp(m, self.port), more=0x2000)),
            "ip-broadcast": (0x800, lambda m: ipv4(17, self.own, "255.255.255.255", udp(m, self.port))),
            "ip-multicast": (0x800, lambda m: ipv4(17, self.own, "224.0.0.251", udp(m, 5353))),
            "ip-igmp": (0x800, lambda m: ipv4(2, self.own, "224.0.0.22", b"\x22\0\0\0" + m)),
            "ip-dhcp": (0x800, lambda m: ipv4(17, "0.0.0.0", "255.255.255.255", udp(m, 67))),
            "ip-in-udp-4500": (0x800, lambda m: ipv4(17, self.own, to, udp(m, 4500))),
            "ip6-echo": (0x86DD, lambda m: ipv6(58, *v6, echo + m)),
            "ip6-hop-by-hop": (0x86DD, lambda m: ipv6(0, *v6, b"\x3a\0\x01\x04\0\0\0\0" + echo + m)),
            "ip6-router-advertisement": (0x86DD, lambda m: ipv6(58, *v6, b"\x86\0\0\0\x40\0\x07\x08" + bytes(8) + m)),
            "ip6-in-ip4": (0x800, lambda m: ipv4(41, self.own, to, ipv6(58, "2002::1", "2002::2", echo + m))),
        }
        for name, (kind, body) in bodies.items():
            for way, target in (("", GATEWAY_MAC), ("all:", BROADCAST)):
                for sender, source in (("", OWN_MAC), ("other-mac:", OTHER_MAC)):
                    full = f"frame:{way}{sender}{name}"
                    frame = target + source + struct.pack("!H", kind) + body(mark(full))
                    self.attempt(full, lambda frame=frame: link.send(frame))

    def _to(self, name: str, sock: socket.socket, where: tuple[str, int], body: bytes | None = None) -> None:
        sock.setblocking(False)
        self.attempt(name, lambda: sock.sendto(body or mark(name), where))
        self.waiting[sock] = name

    def _connect(self, name: str, sock: socket.socket, address: str, port: int) -> None:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError, OSError):
            sock.connect(at(address, port))
        self.connecting[sock] = name

    def wait(self) -> None:
        """For whatever comes; a raw socket also hears what this namespace itself has sent, so marks are looked at."""
        deadline = time.monotonic() + ANSWER_S
        while (left := deadline - time.monotonic()) > 0:
            readable, writable, _ = select.select(
                [*self.waiting, *(s for s in self.connecting if s not in self.waiting)], list(self.connecting), [], left
            )
            for sock in writable:
                name = self.connecting.pop(sock)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    self.attempt(name, lambda sock=sock, name=name: sock.send(mark(name)))
                    self.waiting[sock] = name
            for sock in readable:
                if (name := self.waiting.get(sock)) is None:
                    continue
                try:
                    data = sock.recv(65536)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if b"answer-" in data or ("icmp" in name and self._is_reply(sock, data)):
                    self.answered.append(name)
                if not data or sock.type == socket.SOCK_STREAM:
                    del self.waiting[sock]

    def _is_reply(self, sock: socket.socket, data: bytes) -> bool:
        body = data[20:] if sock.family == socket.AF_INET else data
        return bool(body) and body[0] in (0, 129)


def move_about(addresses: list[str]) -> None:
    """Addresses, routes, a MAC, IPv6 and tunnels of its own choice. What this kernel refuses it refuses."""
    lines = [f"link set {LINK} down", f"link set {LINK} address {OTHER_MAC.hex(':')}", f"link set {LINK} up"]
    lines += [f"address add {SPOOFED[1]}/32 dev {LINK}", f"address add 192.168.77.2/24 dev {LINK}"]
    lines += ["route replace default via 10.200.0.1 dev eth0 onlink"]
    lines += [f"-6 address add {a}/64 dev {LINK} nodad" for a in ("fe80::77", "fd00::77", "2600:1::77")]
    lines += [f"-6 route replace default via fe80::1 dev {LINK}"]
    for address in addresses:
        six = ["-6"] if ":" in address else []
        lines += [" ".join([*six, "route replace", address, "dev", LINK])]
        lines += [" ".join([*six, "neighbour replace", address, "lladdr", GATEWAY_MAC.hex(":"), "dev", LINK])]
    lines += [f"-6 neighbour replace fe80::1 lladdr {GATEWAY_MAC.hex(':')} dev {LINK}"]
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w") as file:
        file.write("0")
    for line in lines:
        subprocess.run(["ip", *line.split()], check=False, stderr=subprocess.DEVNULL)


def main() -> None:
    wanted = json.loads(sys.argv[1])
    probes = Probes(wanted["addresses"], wanted["port"], wanted["own"])
    probes.cooked("")
    probes.spoofed()
    probes.frames()
    probes.wait()
    move_about(probes.addresses)
    probes.cooked("moved:")
    probes.frames()
    probes.wait()
    print(json.dumps({"sent": sorted(set(probes.sent)), "failed": probes.failed, "answered": sorted(probes.answered)}))


if __name__ == "__main__":
    main()
