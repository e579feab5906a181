"""Proxy and resolver as real confined processes in a namespace that plays the host, between sandboxes' namespaces with
real redirection and a small world with a DNS server. Nothing leaves the machine.

    S (a sandbox) - veth - G (its gateway)        H (the host: proxy, resolver) - veth - W (the world)

The listeners are opened inside G and handed over by the control protocol, as the node does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bellglass.egress.control_client import ControlClient
from bellglass.egress.proxy import dns
from bellglass.testing.namespaces import Namespace
from bellglass.testing.sniffer import SO_TIMESTAMPNS, stamp

PROXY_UID, RESOLVER_UID = 4_000_000_001, 4_000_000_002  # no uids of sandboxes: leak checks beside would count them
WORLD = "203.0.114."
DNS_SERVER = WORLD + "53"
HOST_ADDRESSES = (WORLD + "1", WORLD + "2")
BEHIND_THE_FLOOR = ("10.0.0.1", "169.254.169.254", "192.168.7.7")
GATEWAY_RULES = """
table ip gateway {
  chain pre {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "g0" meta l4proto tcp redirect to :1080
    iifname "g0" udp dport 53 redirect to :1053
  }
  chain inward {
    type filter hook input priority 0; policy drop;
    iifname "g0" ct status dnat accept
    iifname "g0" reject with icmp type admin-prohibited
  }
}
"""


class DnsServer:
    """`zone`: name to a list of addresses, or a function that makes one at each question. TTL 0. Logs each question."""

    def __init__(self, namespace: Namespace) -> None:
        self.zone: dict[str, list[str] | Callable[[], list[str]]] = {}
        self.asked: list[str] = []
        self.asked_at: list[tuple[str, float]] = []
        """The same with the kernel's time of arrival."""
        self._sock = namespace.call(self._open)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @staticmethod
    def _open() -> socket.socket:
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.bind((DNS_SERVER, 53))
        return sock

    def _serve(self) -> None:
        while True:
            query, controls, _, client = self._sock.recvmsg(4096, 64)
            if not query:
                return
            name, end = dns._name(query, 12)
            kind = int.from_bytes(query[end : end + 2], "big")
            self.asked.append(name)
            self.asked_at.append((name, stamp(controls)))
            found = self.zone.get(name)
            addresses = found() if callable(found) else found
            self._sock.sendto(_answer(query, end, kind, addresses), client)

    def close(self) -> None:
        self._sock.sendto(b"", (DNS_SERVER, 53))  # ends the thread
        self._thread.join(20)
        self._sock.close()


def _answer(query: bytes, end: int, kind: int, addresses: list[str] | None) -> bytes:
    family = {dns.A: socket.AF_INET, dns.AAAA: socket.AF_INET6}.get(kind)
    records = [
        socket.inet_pton(family, text)
        for text in addresses or ()
        if family is not None and (":" in text) == (kind == dns.AAAA)
    ]
    head = query[:2] + bytes([0x81, 0x80 if addresses is not None else 0x83]) + b"\0\1"
    head += len(records).to_bytes(2, "big") + b"\0\0\0\0" + query[12 : end + 4]
    return head + b"".join(
        b"\xc0\x0c" + kind.to_bytes(2, "big") + b"\0\1\0\0\0\0" + len(record).to_bytes(2, "big") + record
        for record in records
    )


class Sandbox:
    """A pair of namespaces as the helper makes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outer, self.inner = Namespace(), Namespace()
        self.outer.run("ip", "link", "add", "g0", "type", "veth", "peer", "name", "eth0", "netns", self.inner.path)
        for namespace, device, address in ((self.outer, "g0", "10.200.0.1"), (self.inner, "eth0", "10.200.0.2")):
            namespace.run("ip", "addr", "add", f"{address}/30", "dev", device)
            namespace.run("ip", "link", "set", device, "up")
        self.inner.run("ip", "route", "add", "default", "via", "10.200.0.1")
        self.outer.run("nft", "-f", "-", text=GATEWAY_RULES)
        self.tcp, self.udp, self.dns_tcp = self.outer.call(self._listeners)

    @staticmethod
    def _listeners() -> tuple[socket.socket, socket.socket, socket.socket]:
        udp = socket.socket(type=socket.SOCK_DGRAM)
        udp.bind(("0.0.0.0", 1053))
        return (
            socket.create_server(("0.0.0.0", 1080), backlog=512),
            udp,
            socket.create_server(("0.0.0.0", 1053), backlog=16),
        )

    def resolve(self, name: str) -> str | None:
        """By the resolver, as a program inside would."""

        def ask() -> str | None:
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.settimeout(20)
                sock.connect(("10.200.0.1", 53))
                sock.send(dns.question(4711, name, dns.A))
                found = dns.answer(sock.recv(4096), 4711, name, dns.A).addresses
                return str(found[0]) if found else None

        return self.inner.call(ask)

    def dial(self, target: str, port: int) -> socket.socket:
        """To an address, or to a name that is resolved first. Raises OSError."""
        address = target if target[0].isdigit() else self.resolve(target)
        assert address is not None, f"{target} has no address inside"

        def connect() -> socket.socket:
            sock = socket.socket()
            try:
                sock.settimeout(20)
                sock.connect((address, port))
            except BaseException:
                sock.close()
                raise
            return sock

        return self.inner.call(connect)

    def is_reset(self, target: str, port: int, data: bytes = b"") -> bool:
        """Dials, sends, and is ended by RST before a byte came back; an orderly end is none."""
        try:
            with self.dial(target, port) as client:
                client.sendall(data)
                client.recv(1)
        except (ConnectionResetError, BrokenPipeError):
            return True
        return False

    def close(self) -> None:
        for one in (self.tcp, self.udp, self.dns_tcp, self.outer, self.inner):
            one.close()


class Rig:
    """Use as a context manager. `policy` and `attach` return when both processes have applied it."""

    def __init__(self, **config: Any) -> None:
        self.config = {"exceptions": [], "upstream_dns": [DNS_SERVER], "max_connections": 512, **config}
        self.events: list[dict[str, Any]] = []
        self.sandboxes: dict[str, Sandbox] = {}
        self._generations: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Rig:
        with contextlib.ExitStack() as undo:
            self.data = Path(tempfile.mkdtemp(prefix="egress-rig-"))
            undo.callback(shutil.rmtree, self.data)
            self._folders()
            self.host, self.world = Namespace(), Namespace()
            undo.callback(self.host.close)
            undo.callback(self.world.close)
            self._join()
            self.dns = DnsServer(self.world)
            undo.callback(self.dns.close)
            self.processes: dict[str, subprocess.Popen[bytes]] = {}
            undo.callback(self._end)
            for name, uid in (("resolver", RESOLVER_UID), ("proxy", PROXY_UID)):
                self.start(name, uid)
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever)
            self._thread.start()
            undo.callback(self._stop_loop)
            self.clients = {name: self._client(name) for name in ("proxy", "resolver")}
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        for sandbox in self.sandboxes.values():
            sandbox.close()
        self._undo.close()

    def _folders(self) -> None:
        root = self.data / "run/egress"
        for folder, uid in (("etc", 0), ("proxy", PROXY_UID), ("resolver", RESOLVER_UID), ("names", RESOLVER_UID)):
            (root / folder).mkdir(parents=True)
            os.chown(root / folder, uid, uid)
        self.data.chmod(0o755)
        self.hosts = root / "etc/hosts"
        self.hosts.write_text("")
        (root / "etc/resolv.conf").write_text("")

    def _join(self) -> None:
        self.host.run("ip", "link", "add", "h0", "type", "veth", "peer", "name", "w0", "netns", self.world.path)
        for address in HOST_ADDRESSES:
            self.host.run("ip", "addr", "add", f"{address}/24", "dev", "h0")
        for address in (DNS_SERVER, WORLD + "10", WORLD + "11", WORLD + "12"):
            self.world.run("ip", "addr", "add", f"{address}/24", "dev", "w0")
        for address in BEHIND_THE_FLOOR:
            self.world.run("ip", "addr", "add", f"{address}/32", "dev", "lo")
        self.host.run("ip", "link", "set", "h0", "up")
        self.world.run("ip", "link", "set", "w0", "up")
        self.host.run("ip", "route", "add", "default", "via", WORLD + "10")

    def start(self, name: str, uid: int) -> None:
        config = {**self.config, "uid": uid, "gid": uid, "node_uid": os.getuid(), "proxy_uid": PROXY_UID}
        argv = [sys.executable, "-P", "-m", f"bellglass.egress.{name}"]
        argv += ["--data-dir", str(self.data), "--config", json.dumps(config)]
        log = self.data / f"{name}.log"

        def spawn() -> subprocess.Popen[bytes]:
            with open(log, "ab") as errors:
                return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors)

        process = self.processes[name] = self.host.call(spawn)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert json.loads(line or b"{}").get("ready"), log.read_text()

    def _end(self) -> None:
        for name in list(self.processes):
            self.close_process(name)

    def close_process(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        text = (self.data / f"{name}.log").read_text()
        assert "Traceback" not in text, text

    def _client(self, name: str) -> ControlClient:
        async def connected(client: ControlClient) -> None:
            return

        async def make() -> ControlClient:
            client = ControlClient(
                self.data / f"run/egress/{name}/{name}.sock", on_connected=connected, on_event=self.events.append
            )
            self._tasks.append(asyncio.create_task(client.run()))
            await client.wait_connected()
            return client

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(20)

    def _stop_loop(self) -> None:
        async def end() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    def call(self, process: str, op: str, **fields: Any) -> dict[str, Any]:
        """Raises ControlError."""
        return asyncio.run_coroutine_threadsafe(self.clients[process].call(op, **fields), self._loop).result(20)

    # --- what tests do -----------------------------------------------------------------------------------

    def attach(self, name: str, *rules: dict[str, Any], **more: Any) -> Sandbox:
        sandbox = self.sandboxes[name] = Sandbox(name)
        document = policy(*rules, **more)
        self._generations[name] = 1
        for process, sockets in (("proxy", [sandbox.tcp]), ("resolver", [sandbox.udp, sandbox.dns_tcp])):
            descriptors = [sock.fileno() for sock in sockets]
            self.call(process, "attach", sandbox=name, generation=1, policy=document, descriptors=descriptors)
        for sock in (sandbox.tcp, sandbox.udp, sandbox.dns_tcp):
            sock.close()  # theirs alone now
        return sandbox

    def crowd(self, count: int, *rules: dict[str, Any]) -> None:
        """So many more sandboxes with these rules, that nobody dials from."""

        def listeners() -> list[list[socket.socket]]:
            return [
                [socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM),
                 socket.create_server(("127.0.0.1", 0))]
                for _ in range(count)
            ]  # fmt: skip

        for index, sockets in enumerate(self.host.call(listeners)):
            for process, own in (("proxy", sockets[:1]), ("resolver", sockets[1:])):
                fields = {"sandbox": f"crowd{index}", "generation": 1, "policy": policy(*rules)}
                self.call(process, "attach", descriptors=[sock.fileno() for sock in own], **fields)
            for sock in sockets:
                sock.close()

    def disperse(self, count: int) -> None:
        for index in range(count):
            for process in ("proxy", "resolver"):
                self.call(process, "detach", sandbox=f"crowd{index}")

    def policy(self, name: str, *rules: dict[str, Any], **more: Any) -> None:
        self._generations[name] += 1
        fields = {"sandbox": name, "generation": self._generations[name], "policy": policy(*rules, **more)}
        for process in ("proxy", "resolver"):
            self.call(process, "policy", **fields)

    def counters(self, name: str) -> dict[str, Any]:
        return self.call("proxy", "counters")["sandboxes"][name]

    def listen(self, address: str, port: int) -> socket.socket:
        """In the world."""
        return self.world.call(lambda: socket.create_server((address, port), backlog=512))

    def event(self, count: int = 1) -> dict[str, Any]:
        """The next one; it is taken off. Waits for it."""
        until(lambda: len(self.events) >= count)
        return self.events.pop(0)


def policy(*rules: dict[str, Any], mode: str = "rules", deny: Iterable[str] = ()) -> dict[str, Any]:
    whole = [{"ports": [443], "protocol": "tcp", "origin": "allow", **rule} for rule in rules]
    return {"mode": mode, "rules": whole, "deny": list(deny)}


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        pause.wait(0.005)


@contextlib.contextmanager
def refused(rig: Rig, reason: str) -> Iterator[list[dict[str, Any]]]:
    """The one refusal of the body has that reason, and its event (that can't be left out) tells so."""
    rig.events.clear()
    seen: list[dict[str, Any]] = []
    yield seen
    until(lambda: len(rig.events) > 0)
    seen += rig.events
    assert [event["reason"] for event in rig.events] == [reason]


@contextlib.contextmanager
def counted(rig: Rig, reason: str, sandbox: str = "sb1") -> Iterator[None]:
    """The same by the counters, for tests that refuse more often than events are told."""
    before = rig.counters(sandbox)["refused"]
    yield
    wanted = {**before, reason: before.get(reason, 0) + 1}
    until(lambda: rig.counters(sandbox)["refused"] != before)
    assert rig.counters(sandbox)["refused"] == wanted
