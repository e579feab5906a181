"""A sandbox whose root was given every capability over its network gets out by no packet.

The installation runs in a network namespace that plays the host, whose only link leads to another one, the world. Both
have a server of every kind on all their addresses, and sniffers. The same probes are sent in a namespace whose link
leads to the world without a gateway between: there each of them arrives.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bellglass.testing import kernel
from bellglass.testing.leaks import assert_no_leak, snapshot_of_nothing
from bellglass.testing.namespaces import Namespace
from bellglass.testing.stack import Stack
from tests.conftest import SANDBOX_OPTIONS

PROBES = Path(__file__).with_name("network_probes.py").read_text()
PORT = 7777
ETH_P_ALL, SO_RCVBUFFORCE = 3, 33
HOST = ("203.0.114.1", "10.77.0.1", "2600:1::1")
WORLD = ("203.0.114.9", "169.254.169.254", "10.77.0.9", "2600:1::9")
GATEWAY = ("10.200.0.1", "fe80::62:67ff:fe00:1")
"""Also what its MAC would make of it in IPv6."""
ADDRESSES = [*WORLD, *HOST, *GATEWAY]
MARK = re.compile(rb"bgprobe-([a-z0-9:.-]+);")
PASSES = {f"tcp:{WORLD[0]}:{port}" for port in (PORT, 22)}
"""What an open network lets out: bytes of a TCP connection to a public address."""


class Sniffer:
    """Which probes pass any link of a namespace, by their marks."""

    def __init__(self, namespace: Namespace) -> None:
        self.seen: set[str] = set()
        self._ended = False
        self._sock = namespace.call(self._open)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    @staticmethod
    def _open() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        made.settimeout(0.2)
        return made

    def _listen(self) -> None:
        while True:
            try:
                self.seen |= {found.decode() for found in MARK.findall(self._sock.recv(65536))}
            except TimeoutError:
                if self._ended:
                    return

    def close(self) -> set[str]:
        """What it has seen, once nothing more comes."""
        self._ended = True
        self._thread.join()
        self._sock.close()
        return self.seen


class Servers:
    """TCP and UDP on all addresses of a namespace: they answer whoever reaches them."""

    def __init__(self, namespace: Namespace) -> None:
        self._sockets = namespace.call(self._open)
        self._ended = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @staticmethod
    def _open() -> list[socket.socket]:
        made = []
        for family in (socket.AF_INET, socket.AF_INET6):
            for port in (PORT, 123, 22):
                datagrams = socket.socket(family, socket.SOCK_DGRAM)
                if family == socket.AF_INET6:
                    datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                datagrams.bind(("", port))
                made += [datagrams, socket.create_server(("", port), family=family)]
        return made

    def _serve(self) -> None:
        while not self._ended:
            for ready in select.select(self._sockets, [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # who has asked is gone, or can't be reached by the address it gave
                    if ready.type == socket.SOCK_DGRAM:
                        data, who = ready.recvfrom(2048)
                        ready.sendto(b"answer-" + data, who)
                    else:
                        link, _ = ready.accept()
                        with link:
                            link.sendall(b"answer-")
                            link.settimeout(0.5)
                            link.recv(2048)

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        for sock in self._sockets:
            sock.close()


class Place(NamedTuple):
    """The host with its installation, and the world."""

    host: Namespace
    world: Namespace
    stack: Stack

    def sandbox(self, **options: Any) -> Any:
        return self.host.call(lambda: self.stack.sandbox(**SANDBOX_OPTIONS | options))


def joined(near: Namespace, far: Namespace, link: str, mac: str, near_addresses: Any, far_addresses: Any) -> None:
    near.run("ip", "link", "add", link, "type", "veth", "peer", "name", "far", "netns", far.path)
    far.run("ip", "link", "set", "far", "address", mac)
    for space, name, addresses in ((near, link, near_addresses), (far, "far", far_addresses)):
        for address in addresses:
            size = "/64" if ":" in address else "/16" if address.startswith("169.254") else "/24"
            space.run("ip", "address", "add", address + size, "dev", name, *(["nodad"] if ":" in address else []))
        space.run("ip", "link", "set", name, "up")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with contextlib.ExitStack() as undo:
        host, world = Namespace(), Namespace()
        undo.callback(host.close)
        undo.callback(world.close)
        joined(host, world, "up0", "02:62:67:00:00:77", HOST, WORLD)
        host.run("ip", "route", "add", "default", "via", WORLD[0])
        host.run("ip", "-6", "route", "add", "default", "via", WORLD[-1])
        for space in (host, world):
            undo.callback(Servers(space).close)
        stack = host.call(Stack.start)
        scope = stack.scope
        undo.callback(lambda: assert_no_leak(snapshot_of_nothing(scope), deadline_s=10))
        undo.callback(host.call, stack.close)
        yield Place(host, world, stack)


def probed(enter: list[str], run: Any) -> tuple[set[str], set[str]]:
    """What could be sent, and what was answered."""
    wanted = json.dumps({"addresses": ADDRESSES, "port": PORT, "own": "10.200.0.2"})
    done = run([*enter, "/usr/bin/python3", "-c", PROBES, wanted])
    told = json.loads(done)
    return set(told["sent"]), set(told["answered"])


def first_process(stack: Stack, sandbox_id: str) -> int:
    group = f"bellglass-{stack.scope.installation}/{sandbox_id}"
    return min(process.pid for process in kernel.processes() if group in process.cgroups)


ANSWERED = (
    "tcp:",
    "udp:",
    "icmp:",
    *(f"moved:{kind}:{net}" for net in ("2600", "fe80") for kind in ("tcp", "udp", "icmp")),
)


@pytest.fixture(scope="module")
def without_gateway() -> set[str]:
    """What is sent where nothing is between: each of it arrives, and there are answers of each kind."""
    for _ in range(5):
        sent, answered, seen = probed_directly()
        missing = [kind for kind in ANSWERED if not any(name.startswith(kind) for name in answered)]
        if sent <= seen and not missing:
            break  # else the host was too busy for the time that an answer has
    assert sent <= seen, sorted(sent - seen)
    assert not missing
    return sent


def probed_directly() -> tuple[set[str], set[str], set[str]]:
    """As `probed`, and what arrived, over a link between two namespaces."""
    with contextlib.closing(Namespace()) as near, contextlib.closing(Namespace()) as far:
        near.run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        joined(near, far, "eth0", "02:62:67:00:00:01", ["10.200.0.2"], ADDRESSES)
        near.run("ip", "link", "set", "eth0", "address", "02:62:67:00:00:02")
        near.run("ip", "route", "add", "default", "via", GATEWAY[0])
        servers, sniffer = Servers(far), Sniffer(far)
        sent, answered = probed([], lambda argv: near.run(*argv))
        servers.close()
        return sent, answered, sniffer.close()


@pytest.mark.parametrize("network", ["deny", "open"])
def test_no_packet_gets_out(place: Place, without_gateway: set[str], network: str) -> None:
    attacker, other = place.sandbox(network=network), place.sandbox(network="open")
    with contextlib.ExitStack() as undo:
        for box in (attacker, other):
            undo.callback(place.host.call, box.delete)
        pid, other_pid = (first_process(place.stack, box.id) for box in (attacker, other))
        spaces = {"host": place.host, "world": place.world}
        for name, path in (
            ("other sandbox", f"/proc/{other_pid}/ns/net"),
            ("other gateway", place.stack.data.gateways_dir / other.id),
            ("own gateway", place.stack.data.gateways_dir / attacker.id),
        ):
            spaces[name] = Namespace.of(path)
            undo.callback(spaces[name].close)
        sniffers = {name: Sniffer(space) for name, space in spaces.items()}
        enter = ["nsenter", f"--target={pid}", "--user", "--net", "--setuid=0", "--setgid=0"]
        status = ["sh", "-c", "grep CapEff /proc/self/status; cat /proc/self/uid_map"]
        capabilities, uids = subprocess.run([*enter, *status], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )[:2]
        assert int(capabilities.split()[1], 16) & (1 << 12 | 1 << 13) == 1 << 12 | 1 << 13, "NET_ADMIN and NET_RAW"
        assert int(uids.split()[1]) >= 0x70000000, "root of its own user namespace alone"
        sent, answered = probed(
            enter, lambda argv: subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/").stdout
        )
        seen = {name: sniffer.close() for name, sniffer in sniffers.items()}
    unsent = {name for name in without_gateway - sent if "tcp:" not in name}
    assert not unsent, f"could not be tried: {sorted(unsent)}"
    raw = {name for name in sent if "tcp:" not in name or "spoofed" in name}
    assert raw <= seen["own gateway"], "it was sent"
    passes = PASSES if network == "open" else set()
    assert answered == passes
    assert seen["world"] == passes
    assert seen["host"] == passes
    assert seen["other sandbox"] == seen["other gateway"] == set()
