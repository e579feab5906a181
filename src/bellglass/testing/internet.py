"""The internet of a `World`, as tests of the boundary need it: servers of each kind under an own authority, the same in
IPv6, and hosts behind the floor that answer whoever gets there.

    with Internet() as internet, internet.inside():
        stack = Stack.start(settings=internet.settings())
        with internet.watch(EVIL) as packets: ...
        assert packets == []

`good.test` is at GOOD and `evil.test` at EVIL. Both serve the same, so that what is refused at one was seen to pass at
the other, or at the same one under another policy.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bellglass.testing.egress import BEHIND_THE_FLOOR, DNS_SERVER, HOST_ADDRESSES, until
from bellglass.testing.sniffer import Packet, Sniffer
from bellglass.testing.world import ADDRESSES, World, echo

GOOD, EVIL = ADDRESSES[1], ADDRESSES[9]
PREFIX_V6 = "2dff:b31::"
"""Of a part of IPv6 that nobody has been given."""
HOST_V6, GOOD_V6, EVIL_V6 = PREFIX_V6 + "1", PREFIX_V6 + "11", PREFIX_V6 + "19"
METADATA = "169.254.169.254"
BEHIND_THE_FLOOR_V6 = ("fd00:ec2::254", "fd00:7::7")
HOST_SERVICE_PORT = 7070
"""A service of the host's own, on all its addresses and loopback."""
SETTLE_S = 2.0
TIME_WAIT, CLOSED, LISTEN = "06", "07", "0A"
HTTP, HTTPS, SSH, DATABASE, OTHER_HTTP, OTHER_TLS = 80, 443, 22, 5432, 8080, 8443
PORTS = (HTTP, HTTPS, SSH, DATABASE, OTHER_HTTP, OTHER_TLS)
NAMES = ("good.test", "evil.test", "*.example.com", "*.example.net")
"""Of the servers' certificate."""


class Internet(World):
    """`requests`: of every HTTP request that came, where it came to, its Host, and its target; `server_names`: what TLS
    clients asked for; `h2`: the header blocks that came by HTTP/2."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str, str]] = []
        self.server_names: list[str | None] = []
        self.h2: list[bytes] = []

    def __enter__(self) -> Internet:
        super().__enter__()
        with contextlib.ExitStack() as undo:
            undo.callback(self._undo.close)
            folder = Path(tempfile.mkdtemp(prefix="internet-"))
            self._undo.callback(shutil.rmtree, folder)
            self.authority, pair = certificates(folder)
            self._contexts = {protocol: self._context(pair, protocol) for protocol in ("http/1.1", "h2")}
            self._join_v6()
            self._know_neighbours()
            self.dns.zone |= {"good.test": [GOOD], "evil.test": [EVIL]}
            for address in (GOOD, EVIL):
                self._serve_all(address)
            for address in (GOOD_V6, EVIL_V6):
                self.serve(address, HTTP, self._http)
            for address in (*BEHIND_THE_FLOOR, *BEHIND_THE_FLOOR_V6):
                self.serve(address, HTTP, self._http)
            for address in ("0.0.0.0", "::"):
                self.serve(address, HOST_SERVICE_PORT, self._http, where=self.host)
            undo.pop_all()
        return self

    def _context(self, pair: Path, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        context.set_alpn_protocols([protocol])
        context.sni_callback = lambda sock, name, context: self.server_names.append(name)
        return context

    def _join_v6(self) -> None:
        self.host.run("ip", "addr", "add", f"{HOST_V6}/64", "dev", "h0", "nodad")
        for address in (GOOD_V6, EVIL_V6):
            self.internet.run("ip", "addr", "add", f"{address}/64", "dev", "w0", "nodad")
        for address in BEHIND_THE_FLOOR_V6:
            self.internet.run("ip", "addr", "add", f"{address}/128", "dev", "lo", "nodad")
        self.host.run("ip", "-6", "route", "add", "default", "via", GOOD_V6)

    def _know_neighbours(self) -> None:
        """For good: a kernel that asks again for one would be a packet that nobody sent."""
        for namespace, device, there, peer, addresses in (
            (self.host, "h0", self.internet, "w0", (DNS_SERVER, *ADDRESSES, GOOD_V6, EVIL_V6)),
            (self.internet, "w0", self.host, "h0", (*HOST_ADDRESSES, HOST_V6)),
        ):
            link = json.loads(there.run("ip", "-json", "link", "show", peer))[0]["address"]
            for address in addresses:
                namespace.run("ip", "neigh", "replace", address, "lladdr", link, "dev", device, "nud", "permanent")

    def _serve_all(self, address: str) -> None:
        for port in (HTTP, OTHER_HTTP):
            self.serve(address, port, self._http)
        self.serve(address, HTTPS, self._https)
        self.serve(address, OTHER_TLS, self._h2)
        self.serve(address, SSH, ssh)
        self.serve(address, DATABASE, database)

    # --- what serves -------------------------------------------------------------------------------------

    def _http(self, client: socket.socket) -> None:
        """HTTP/1.1: answers who it is and what was asked. CONNECT and upgrades are granted, and then echo."""
        where = client.getsockname()[0]
        with client.makefile("rb") as reader:
            while (line := reader.readline()).count(b" ") >= 2:  # what begins HTTP/2 has one line of this form
                method, target, _ = line.decode("latin-1").split(" ", 2)
                head = {}
                while (field := reader.readline().strip()) != b"":
                    name, _, value = field.decode("latin-1").partition(":")
                    head[name.lower()] = value.strip()
                self.requests.append((where, head.get("host", ""), target))
                reader.read(int(head.get("content-length", 0)))
                if method == "CONNECT" or "upgrade" in head:
                    status = "200 OK" if method == "CONNECT" else "101 Switching Protocols\r\nUpgrade: echo"
                    client.sendall(f"HTTP/1.1 {status}\r\nConnection: upgrade\r\n\r\n".encode())
                    echo(client)
                    return
                body = json.dumps({"at": where, "host": head.get("host"), "target": target}).encode()
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def _tls(self, client: socket.socket, protocol: str) -> ssl.SSLSocket:
        client.recv(1, socket.MSG_PEEK)  # raises where it was reset: of such a socket `wrap_socket` leaks one
        return self._contexts[protocol].wrap_socket(client, server_side=True)

    def _https(self, client: socket.socket) -> None:
        with self._tls(client, "http/1.1") as tls:
            self._http(tls)

    def _h2(self, client: socket.socket) -> None:
        """HTTP/2, as much as one request needs: its header block is kept as it came, and answered with 200."""
        with self._tls(client, "h2") as tls, tls.makefile("rb") as reader:
            reader.read(24)
            tls.sendall(_frame(4, 0, 0))
            while len(start := reader.read(9)) == 9:
                body = reader.read(int.from_bytes(start[:3], "big"))
                if start[3] == 4 and not start[4] & 1:
                    tls.sendall(_frame(4, 1, 0))
                elif start[3] == 1:
                    self.h2.append(body)
                    stream = int.from_bytes(start[5:9], "big")
                    tls.sendall(_frame(1, 4, stream, b"\x88") + _frame(0, 1, stream, tls.getsockname()[0].encode()))

    # --- what tests ask ----------------------------------------------------------------------------------

    def datagram(self, address: str, port: int) -> None:
        """One UDP packet from the host."""

        def send() -> None:
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.sendto(b"from the host", (address, port))

        self.host.call(send)

    @contextlib.contextmanager
    def watch(self, *addresses: str) -> Iterator[list[Packet]]:
        """Every packet of any protocol that came for one of the addresses meanwhile; the list is filled at the end."""
        seen: list[Packet] = []
        with Sniffer(self.internet, "w0", addresses) as sniffer:
            yield seen
            seen += sniffer.packets()

    @contextlib.contextmanager
    def silence(self, *addresses: str) -> Iterator[None]:
        """Nothing comes for the addresses (by default EVIL's) meanwhile. DNS_SERVER's is one like the others. What was
        open before has SETTLE_S to end first: its last packets would be taken for new ones."""
        addresses = addresses or (EVIL, EVIL_V6)
        with contextlib.suppress(AssertionError):  # a connection that the test keeps
            until(lambda: self.host.call(open_connections).isdisjoint(addresses), SETTLE_S)
        with self.watch(*addresses) as packets:
            yield
        assert packets == []


def open_connections() -> set[str]:
    """The peers of this thread's network namespace whose connections may still send something: tcp(7)'s states."""
    peers = set()
    for version, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/thread-self/net/{version}").read_text().splitlines()[1:]:
            _, _, peer, state, *_ = line.split()
            if state not in (TIME_WAIT, CLOSED, LISTEN):
                words = bytes.fromhex(peer.partition(":")[0])
                # The kernel prints words of four bytes in the machine's order.
                swapped = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                peers.add(socket.inet_ntop(family, swapped if sys.byteorder == "little" else words))
    return peers


def ssh(client: socket.socket) -> None:
    """Speaks first."""
    client.sendall(b"SSH-2.0-Test\r\n")
    echo(client)


def database(client: socket.socket) -> None:
    """The client speaks first, and no text: a PostgreSQL client's question for TLS, answered with no."""
    if client.recv(8) == b"\x00\x00\x00\x08\x04\xd2\x16\x2f":
        client.sendall(b"N")
        client.recv(1)


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def certificates(folder: Path) -> tuple[Path, Path]:
    """An authority's certificate, and certificate and key in one file of a server that has all NAMES."""
    authority, key, pair = folder / "authority.pem", folder / "authority.key", folder / "server.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    _openssl("req", "-x509", *curve, "-subj", "/CN=Test authority", "-out", authority, "-keyout", key)
    names = ",".join(f"DNS:{name}" for name in NAMES)
    issuer = ("-CA", authority, "-CAkey", key, "-subj", "/CN=server", "-addext", f"subjectAltName={names}")
    _openssl("req", "-x509", *curve, *issuer, "-addext", "basicConstraints=critical,CA:FALSE", "-out", pair,
             "-keyout", folder / "server.key")  # fmt: skip
    pair.write_text(pair.read_text() + (folder / "server.key").read_text())
    return authority, pair


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
