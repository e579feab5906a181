"""Proxy and resolver as an attacker has them who runs code in them: nothing of the host, of the installation and of
other processes is within reach, nor any address of the floor.

The attacker's program is the daemon's own up to the moment at which it would serve (`egress_attacker.py`). The host is
a network namespace; what lies beyond it, the metadata service among it, is another one that answers to everything.
"""

from __future__ import annotations

import ctypes
import json
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from bellglass import settings
from bellglass.datadir import DataDir
from bellglass.egress import confine
from bellglass.node.helper.net.wall import Confined, wall_rules
from bellglass.supervise import egress, launch
from bellglass.supervise.install import Installation, prepare
from bellglass.testing.namespaces import Namespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacker's calls are x86_64's"),
]
ATTACKER = Path(__file__).with_name("egress_attacker.py")
SEQPACKET = socket.SOCK_SEQPACKET
METADATA, PRIVATE, PUBLIC, PUBLIC_V6 = "169.254.169.254", "10.9.9.2", "11.0.0.2", "2600::2"
HOST_LINES = """
ip link add host type veth peer name far netns {far}
ip addr add 11.0.0.1/24 dev host; ip addr add 10.9.9.1/24 dev host; ip addr add 169.254.1.1/16 dev host
ip addr add 2600::1/64 dev host nodad
ip link set host up
"""
FAR_LINES = """
ip addr add 11.0.0.2/24 dev far; ip addr add 10.9.9.2/24 dev far; ip addr add 169.254.169.254/16 dev far
ip addr add 2600::2/64 dev far nodad
ip link set far up
"""
SERVE = r"""
import os, socket, threading
def accept(sock):
    while True:
        peer, _ = sock.accept()
        peer.sendall(b"secret")
        peer.close()
def answer(sock):
    while True:
        _, peer = sock.recvfrom(99)
        sock.sendto(b"secret", peer)
for family in (socket.AF_INET, socket.AF_INET6):
    sock = socket.create_server(("", 80), family=family)
    threading.Thread(target=accept, args=(sock,)).start()
abstract = []  # these belong to a network namespace
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    abstract.append(socket.socket(socket.AF_UNIX, kind))
    abstract[-1].bind(f"\0bellglass-test-{int(kind)}")
    abstract[-1].listen(64)
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 53))
threading.Thread(target=answer, args=(sock,)).start()
print("ready", flush=True)
"""


@pytest.fixture(scope="module")
def host() -> Iterator[Namespace]:
    """A network namespace that plays the host, with servers of its own and beyond its link."""
    near, far = Namespace(), Namespace()
    servers = []
    try:
        near.run("sh", "-ec", HOST_LINES.format(far=far.path))
        far.run("sh", "-ec", FAR_LINES)
        for place in (near, far):
            argv = [sys.executable, "-c", SERVE]
            server = place.call(lambda argv=argv: subprocess.Popen(argv, stdout=subprocess.PIPE))
            servers.append(server)
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield near
    finally:
        for server in servers:
            server.kill()
            server.communicate()
        near.close()
        far.close()


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """A data folder as `up` prepares it, with what an attacker would look for."""
    with tempfile.TemporaryDirectory(prefix="bellglass-test-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o711)
        made = prepare(DataDir(Path(folder)))
        egress.copy_host_files(made.data, settings.load(None))
        yield made


@pytest.fixture(scope="module")
def targets(installation: Installation) -> Iterator[dict[str, Any]]:
    """What is tried. Files and sockets are open to everybody where a mode would be all that refuses."""
    data = installation.data
    open_to_all = data.run_dir / "open-to-all"
    open_to_all.write_text("secret")
    open_to_all.chmod(0o666)
    inside = data.egress_dir / "test/open-to-all"
    inside.parent.mkdir()
    inside.parent.chmod(0o777)
    inside.write_text("secret")
    inside.chmod(0o666)
    sockets = {}
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        path = f"{data.run_dir}/{kind}.sock"
        sockets[path] = socket.socket(socket.AF_UNIX, kind)
        sockets[path].bind(path)
        Path(path).chmod(0o666)
        sockets[path].listen(64)
    node = sockets[str(data.node_socket)] = socket.socket(socket.AF_UNIX)
    node.bind(str(data.node_socket))
    node.listen(64)
    victim = subprocess.Popen(["sleep", "600"], user=installation.proxy.uid, group=installation.proxy.gid)
    try:
        yield {
            "data_dir": str(data.root),
            "files": [
                *("/etc/passwd", "/etc/shadow", "/proc/self/environ", str(open_to_all)),
                *(str(data.admin_key_file), str(data.node_secret_file), str(data.settings_file), sys.executable),
            ],
            "writable": [str(open_to_all), str(inside), "/test/open-to-all"],
            "sockets": [*sockets, *(f"@bellglass-test-{int(kind)}" for kind in (socket.SOCK_STREAM, SEQPACKET))],
            "tcp": [(METADATA, 80), (PRIVATE, 80), ("127.0.0.1", 80), ("11.0.0.1", 80), ("::1", 80), ("2600::1", 80),
                    (f"::ffff:{METADATA}", 80), (PUBLIC, 80), (PUBLIC_V6, 80)],
            "udp": [(PUBLIC, 53), (METADATA, 53), ("127.0.0.1", 53)],
            "victim": victim.pid,
        }  # fmt: skip
    finally:
        victim.kill()
        victim.wait()
        for listening in sockets.values():
            listening.close()


def tried(host: Namespace, installation: Installation, name: str, targets: dict[str, Any]) -> dict[str, str]:
    """How each attempt ended. Without the wall where the network refuses nothing."""
    config = targets if name == "control" else egress.configuration(installation, settings.load(None), name) | targets
    argv = [sys.executable, "-P", str(ATTACKER), name]
    argv += ["--data-dir", str(installation.data.root), "--config", json.dumps(config)]
    with host.inside():
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, env=launch.environment())
    for line in done.stderr.splitlines():
        if line.startswith('{"attempts"'):
            return dict(json.loads(line)["attempts"])
    raise AssertionError(f"it ended with {done.returncode}:\n{done.stderr}")


@pytest.fixture(scope="module")
def control(host: Namespace, installation: Installation, targets: dict[str, Any]) -> dict[str, str]:
    return tried(host, installation, "control", targets)


def test_each_attempt_works_for_who_may(control: dict[str, str], targets: dict[str, Any]) -> None:
    """Calls with wrong arguments end by those, which shows that nothing stood before them."""
    other_kind = {f"dial {path} {kind}" for path in targets["sockets"] for kind in ("STREAM", "SEQPACKET")}
    right_kind = {f"dial {path} {'SEQPACKET' if '5' in path[-6:] else 'STREAM'}" for path in targets["sockets"]}
    in_the_chroot = {"write /test/open-to-all", "create beside /test/open-to-all"}
    not_in_each_kernel = {"socket sctp", "socket alg"}
    failed = {name: how for name, how in control.items() if how != "ok" and not name.startswith("call ")}
    assert set(failed) - not_in_each_kernel == (other_kind - right_kind) | in_the_chroot, failed
    stopped = {name for name, how in control.items() if name.startswith("call ") and how == "EPERM"}
    assert not stopped, stopped


def refused(found: dict[str, str], *, allowed: set[str]) -> None:
    through = {name for name, how in found.items() if how == "ok"}
    assert through == allowed
    calls = {name: how for name, how in found.items() if name.startswith("call ")}
    assert set(calls.values()) == {"EPERM"}, calls
    for name in ("fork", "thread", "executable memory", "signal another process", "trace another process"):
        assert found[name] in ("EPERM", "EAGAIN", "ENOMEM"), f"{name}: {found[name]}"


def raise_wall(host: Namespace, installation: Installation) -> None:
    walled = [Confined(*astuple(identity)) for identity in (installation.proxy, installation.resolver)]
    host.run(
        *("nft", "-f", "-"),
        text=wall_rules("bellglass_test", *walled, [], []),
    )


def test_the_resolver_reaches_nothing(
    host: Namespace, installation: Installation, targets: dict[str, Any], control: dict[str, str]
) -> None:
    raise_wall(host, installation)
    found = tried(host, installation, "resolver", targets)
    assert set(found) == set(control)
    refused(found, allowed=set())


def test_the_proxy_reaches_public_addresses_alone(
    host: Namespace, installation: Installation, targets: dict[str, Any], control: dict[str, str]
) -> None:
    raise_wall(host, installation)
    found = tried(host, installation, "proxy", targets)
    assert set(found) == set(control)
    # Its chroot has nothing but what both daemons may see, and a kind of socket that only the resolver's is.
    # That one only where the kernel's Landlock is too old to see abstract addresses, which know no chroot.
    scoped = confine.landlock_version(ctypes.CDLL(None)) >= confine.SCOPING_LANDLOCK
    abstract = set() if scoped else {f"dial @bellglass-test-{int(SEQPACKET)} SEQPACKET"}
    refused(found, allowed={f"tcp {PUBLIC}:80", f"tcp {PUBLIC_V6}:80"} | abstract)


def test_the_proxy_does_not_get_at_the_controls(installation: Installation) -> None:
    """Each folder of a socket lets in one uid; tried from outside of the chroot, where all paths are in sight."""
    data = installation.data
    for path in (data.resolver_socket, data.proxy_socket, data.names_socket):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o666)
        listening.listen()
        program = (
            "import os, socket, sys\nidentity = int(sys.argv[1]), int(sys.argv[2])\n"
            "os.setgroups([]); os.setresgid(*[identity[1]] * 3); os.setresuid(*[identity[0]] * 3)\n"
            "try: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[3]); print('in')\n"
            "except PermissionError: print('out')\n"
        )
        found = {}
        for name in ("node", "proxy", "resolver", "server"):
            identity = getattr(installation, name)
            argv = ["/usr/bin/python3", "-c", program, str(identity.uid), str(identity.gid), str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/")
            found[name] = done.stdout.strip()
        may = "proxy" if path == data.names_socket else "node"
        assert found == {name: "in" if name == may else "out" for name in found}, path
        listening.close()
        path.unlink()
