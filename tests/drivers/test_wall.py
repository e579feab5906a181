"""The wall: what a process under the uid of proxy or resolver can send, whatever program it has become.

In a network namespace of the test's own that plays the host; another one, at the other end of its only link, has
addresses of all kinds and answers to everything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from driver_rig import EGRESS_GID, PROXY_UID, RESOLVER_UID

from bellglass.node.helper import kernel
from bellglass.node.helper.net.wall import Confined, wall_rules

SOMEBODY_UID = 64126
PUBLIC, PRIVATE, METADATA, PUBLIC_V6, PRIVATE_V6 = "11.0.0.2", "10.9.9.2", "169.254.169.254", "2600::2", "fd00::2"
EVERYTHING = [
    (kind, host, port)
    for kind in ("STREAM", "DGRAM")
    for host in (PUBLIC, PRIVATE, METADATA, PUBLIC_V6, PRIVATE_V6, "127.0.0.1", "::1", "11.0.0.1", "2600::1")
    for port in (53, 80)
]
HOST_LINES = """
ip link set lo up
ip link add host type veth peer name far netns {far}
ip addr add 11.0.0.1/24 dev host; ip addr add 10.9.9.1/24 dev host; ip addr add 169.254.1.1/16 dev host
ip addr add 2600::1/64 dev host nodad; ip addr add fd00::1/64 dev host nodad
ip link set host up
"""
FAR_LINES = """
ip addr add 11.0.0.2/24 dev far; ip addr add 10.9.9.2/24 dev far; ip addr add 169.254.169.254/16 dev far
ip addr add 2600::2/64 dev far nodad; ip addr add fd00::2/64 dev far nodad
ip link set far up
"""
ANSWER = """
import socket, threading
def echo(s):
    while True:
        data, who = s.recvfrom(99); s.sendto(data, who)
def accept(s):
    while True:
        c, _ = s.accept(); c.sendall(b"hello"); c.close()
for family in (socket.AF_INET, socket.AF_INET6):
    for port in (53, 80):
        u = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6: u.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        u.bind(("", port)); threading.Thread(target=echo, args=(u,)).start()
        t = socket.create_server(("", port), family=family); threading.Thread(target=accept, args=(t,)).start()
print("ready", flush=True)
"""
TRY = """
import json, os, socket, sys
from concurrent.futures import ThreadPoolExecutor
os.setgroups([]); os.setresgid(*[int(sys.argv[3])] * 3); os.setresuid(*[int(sys.argv[1])] * 3)
def through(one):
    kind, host, port = one
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, getattr(socket, "SOCK_" + kind))
    s.settimeout(2)
    try:
        s.connect((host, port))
        if kind == "DGRAM": s.send(b"hello")
        return s.recv(9) == b"hello"
    except OSError as error:
        return False
print(json.dumps(list(ThreadPoolExecutor(40).map(through, json.loads(sys.argv[2])))))
"""


def new_namespace() -> tuple[int, str]:
    """A process that is in a network namespace of its own, and the path of that."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.unshare(kernel.CLONE_NEWNET)
        os.write(write, b".")
        signal.pause()
        os._exit(0)
    assert os.read(read, 1) == b"."
    os.close(read)
    os.close(write)
    return pid, f"/proc/{pid}/ns/net"


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """The network namespace that plays the host."""
    assert os.geteuid() == 0
    (near_pid, near), (far_pid, far) = new_namespace(), new_namespace()
    servers = []
    try:
        for place, lines in ((near, HOST_LINES.format(far=far_pid)), (far, FAR_LINES)):
            subprocess.run(["nsenter", f"--net={place}", "sh", "-ec", lines], check=True)
        for place in (near, far):
            argv = ["nsenter", f"--net={place}", sys.executable, "-c", ANSWER]
            servers.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
            assert servers[-1].stdout is not None and servers[-1].stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 20
        while not all(gets_through(near, SOMEBODY_UID, *EVERYTHING)):  # new links say nothing when they carry
            assert time.monotonic() < deadline
        yield near
    finally:
        for server in servers:
            server.kill()
            server.communicate()
        for pid in (near_pid, far_pid):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def raise_wall(
    host: str,
    *,
    exceptions: list[str] | None = None,
    dns: list[str] | None = None,
    gid: int = EGRESS_GID,
    table: str = "bellglass_test",
) -> None:
    text = wall_rules(table, Confined(PROXY_UID, gid), Confined(RESOLVER_UID, gid), exceptions or [], dns or [])
    subprocess.run(["nsenter", f"--net={host}", "nft", "--file", "-"], input=text, text=True, check=True)


def gets_through(host: str, uid: int, *tries: tuple[str, str, int], gid: int = EGRESS_GID) -> list[bool]:
    argv = ["nsenter", f"--net={host}", "/usr/bin/python3", "-c", TRY, str(uid), json.dumps(tries), str(gid)]
    return list(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, cwd="/").stdout))


def test_the_proxy_opens_connections_to_public_addresses_alone(host: str) -> None:
    raise_wall(host)
    assert all(gets_through(host, SOMEBODY_UID, *EVERYTHING)), "everything answers everybody else"
    through = dict(zip(EVERYTHING, gets_through(host, PROXY_UID, *EVERYTHING), strict=True))
    assert {what for what, did in through.items() if did} == {
        ("STREAM", host, port) for host in (PUBLIC, PUBLIC_V6) for port in (53, 80)
    }


def test_the_resolver_sends_nothing(host: str) -> None:
    raise_wall(host, exceptions=["10.9.9.0/24"], dns=[PRIVATE])
    assert all(gets_through(host, SOMEBODY_UID, *EVERYTHING))
    assert not any(gets_through(host, RESOLVER_UID, *EVERYTHING))


def test_exceptions_and_dns_servers_open_what_they_say(host: str) -> None:
    tries = [
        ("STREAM", PRIVATE, 80),
        ("DGRAM", PRIVATE, 80),
        ("DGRAM", PRIVATE, 53),
        ("STREAM", PRIVATE, 53),
        ("DGRAM", "127.0.0.1", 53),
        ("STREAM", "127.0.0.1", 80),
        ("STREAM", PRIVATE_V6, 80),
    ]
    raise_wall(host)
    assert gets_through(host, PROXY_UID, *tries) == [False] * len(tries)
    raise_wall(host, exceptions=["10.9.9.0/24"])
    assert gets_through(host, PROXY_UID, *tries) == [True, False, False, True, False, False, False]
    raise_wall(host, dns=[PRIVATE, "127.0.0.1"])
    assert gets_through(host, PROXY_UID, *tries) == [False, False, True, True, True, False, False]
    raise_wall(host, exceptions=["fd00::/8"])
    assert gets_through(host, PROXY_UID, *tries) == [False] * 6 + [True]


def test_two_installations_have_walls_of_their_own(host: str) -> None:
    """The uids are the same; what one operator excepts or forgets is nothing to the other."""
    other_gid, tries = EGRESS_GID + 1, (("STREAM", PRIVATE, 80), ("DGRAM", PRIVATE, 53), ("STREAM", PUBLIC, 80))
    raise_wall(host, exceptions=["10.9.9.0/24"])
    raise_wall(host, dns=[PRIVATE], gid=other_gid, table="bellglass_other")
    try:
        assert gets_through(host, PROXY_UID, *tries) == [True, False, True]
        assert gets_through(host, PROXY_UID, *tries, gid=other_gid) == [False, True, True]
    finally:
        subprocess.run(["nsenter", f"--net={host}", "nft", "delete", "table", "inet", "bellglass_other"], check=True)


def test_refusals_come_at_once(host: str) -> None:
    raise_wall(host)
    code = TRY.replace("settimeout(2)", "settimeout(20)")
    argv = ["nsenter", f"--net={host}", "/usr/bin/python3", "-c", code, str(PROXY_UID)]
    tries = json.dumps([("STREAM", METADATA, 80), ("DGRAM", PUBLIC, 80), ("STREAM", "::1", 80)])
    subprocess.run([*argv, tries, str(EGRESS_GID)], check=True, timeout=15, cwd="/", stdout=subprocess.DEVNULL)


def test_the_helper_raises_it(rig: Any) -> None:
    table = f"bellglass_{rig.installation}"
    try:
        for exceptions in ([], ["10.0.0.0/8"]):
            rig.run(rig.driver.raise_wall(exceptions=exceptions, dns=["192.0.2.53"]))
            rules = subprocess.run(["nft", "list", "table", "inet", table], capture_output=True, text=True, check=True)
            assert f"meta skuid {PROXY_UID} meta skgid {EGRESS_GID} jump proxy" in rules.stdout
            assert ("ip daddr 10.0.0.0/8 meta l4proto tcp accept" in rules.stdout) is bool(exceptions)
    finally:
        subprocess.run(["nft", "delete", "table", "inet", table], check=True)
