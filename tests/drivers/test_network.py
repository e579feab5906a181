"""A machine's network: its one link, the gateway behind it, and the listeners in there: the only things in reach."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_rig import MIB

from bellglass.errors import InternalError, NotFound
from bellglass.node.drivers.base import LISTENERS
from bellglass.node.helper.net import gateway, nft
from bellglass.testing import kernel

SO_ORIGINAL_DST = 80
AT_ONCE_S = 0.5
TRY = """
import json, socket, sys, time
out = []
for kind, host, port, *own in json.loads(sys.argv[1]):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(float(sys.argv[2]))
    began = time.monotonic()
    try:
        if own:
            sock.bind(("", own[0]))
        sock.connect((host, port))
        if kind == "udp":
            sock.send(b"question")
        told = sock.recv(99).decode()
    except OSError as error:
        told = type(error).__name__ + (f" {error.errno}" if error.errno else "")
    out.append([told, time.monotonic() - began])
    keep = sock if own else sock.close()
    globals().setdefault("kept", []).append(keep)
print(json.dumps(out))
"""


def attempts(machine: Any, *tries: tuple[Any, ...], patience_s: float = 5) -> list[tuple[str, float]]:
    """What each got, and after how many seconds."""
    result = machine.agent.run("python3", "-c", TRY, json.dumps(tries), str(patience_s))
    assert result.exit_code == 0, result
    return [(told, seconds) for told, seconds in json.loads(result.stdout)]


def told(machine: Any, *tries: tuple[Any, ...]) -> list[str]:
    return [outcome for outcome, _ in attempts(machine, *tries)]


def in_gateway(machine: Any, *argv: str) -> str:
    pin = machine.rig.data.gateways_dir / machine.handle.sandbox_id
    done = subprocess.run(["nsenter", f"--net={pin}", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def served(listeners: dict[str, socket.socket]) -> Iterator[None]:
    """Each tells a client which listener it is and what the client dialled."""

    def tell(name: str, listener: socket.socket) -> None:
        listener.setblocking(True)
        while True:
            try:
                if listener.type == socket.SOCK_DGRAM:
                    _, client = listener.recvfrom(512)
                    if not client:
                        return
                    listener.sendto(name.encode(), client)
                    continue
                link, _ = listener.accept()
            except OSError:
                return
            _, port, address = struct.unpack("!HH4s8x", link.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
            link.sendall(f"{name} {socket.inet_ntoa(address)}:{port}".encode())
            link.close()

    threads = [threading.Thread(target=tell, args=item, daemon=True) for item in listeners.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for listener in listeners.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in it
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def listeners(machine: Any) -> Iterator[dict[str, socket.socket]]:
    made = machine.rig.run(machine.handle.listeners())
    assert tuple(made) == LISTENERS
    yield made
    for listener in made.values():
        listener.close()


def test_one_link_and_no_ipv6(machine: Any) -> None:
    shell: Callable[[str], str] = machine.agent.shell
    assert shell("ls /sys/class/net").split() == ["eth0", "lo"]
    assert shell("cat /proc/net/if_inet6").split() == ["0" * 31 + "1", "01", "80", "10", "80", "lo"], "::1 alone"
    routes = [line.split()[:3] for line in shell("cat /proc/net/route").splitlines()[1:]]
    assert routes == [["eth0", "00000000", "0100C80A"], ["eth0", "0000C80A", "00000000"]]
    assert "\nnameserver 10.200.0.1\n" in shell("cat /etc/resolv.conf")
    program = (
        "import socket as s\n"
        "for family, host in ((s.AF_INET, '127.0.0.1'), (s.AF_INET6, '::1')):\n"
        "  a = s.create_server((host, 80), family=family); b = s.create_connection((host, 80)); print('loopback')\n"
        "for host in ('2001:4860::1', 'fe80::1%eth0', 'ff02::1%eth0'):\n"
        "  c = s.socket(s.AF_INET6, s.SOCK_STREAM); c.settimeout(3)\n"
        "  try: c.connect(s.getaddrinfo(host, 80, s.AF_INET6, s.SOCK_STREAM)[0][4]); print('connected')\n"
        "  except OSError as e: print(e.errno)\n"
    )
    answers = machine.agent.run("python3", "-c", program).stdout.split()
    assert answers[:2] == ["loopback", "loopback"]
    # ENETUNREACH, EADDRNOTAVAIL
    assert len(answers) == 5 and set(answers[2:]) <= {"101", "99"}


def test_users_may_listen_on_low_ports_and_ping(machine: Any) -> None:
    program = (
        "import os, socket as s\n"
        "s.create_server(('127.0.0.1', 81))\n"
        "p = s.socket(s.AF_INET, s.SOCK_DGRAM, s.IPPROTO_ICMP); p.settimeout(3)\n"
        "p.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]) + b'echo', ('127.0.0.1', 0))\n"
        "print(os.getuid(), p.recv(99)[:1])\n"
    )
    assert machine.agent.run("python3", "-c", program, user="user").stdout == "1000 b'\\x00'\n"
    assert machine.agent.shell("cat /proc/sys/net/ipv4/ping_group_range").split() == ["0", "65535"]


def test_the_gateway_leads_nowhere(machine: Any) -> None:
    links = json.loads(in_gateway(machine, "ip", "-json", "address"))
    up = {link["ifname"]: [entry["local"] for entry in link["addr_info"]] for link in links if "UP" in link["flags"]}
    assert up == {"g0": ["10.200.0.1"]}
    routes = json.loads(in_gateway(machine, "ip", "-json", "route", "show", "table", "all"))
    assert {route.get("dev") for route in routes} == {"g0"}
    assert {route["dst"] for route in routes} == {"10.200.0.0/30", "10.200.0.1", "10.200.0.3"}
    assert json.loads(in_gateway(machine, "ip", "-json", "-6", "route", "show", "table", "all")) == []
    assert in_gateway(machine, "sysctl", "-n", "net.ipv4.ip_forward", "net.ipv6.conf.g0.disable_ipv6") == "0\n1\n"
    assert in_gateway(machine, "ip", "-json", "rule").count('"table"') == 3, "local, main, default"
    assert "g0" not in subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def test_the_rules_are_those_that_are_written_down(machine: Any) -> None:
    def lines(text: str) -> list[str]:
        stripped = (line.split(" #")[0].strip() for line in text.splitlines())
        # nft leaves out what a reset implies.
        return [line.removeprefix("meta l4proto tcp ") if "reset" in line else line for line in stripped if line]

    written = (nft.__doc__ or "").partition("table netdev")[2].partition("A dial of")[0]
    assert lines(in_gateway(machine, "nft", "list", "ruleset")) == lines("table netdev" + written)


def test_all_that_it_dials_ends_at_a_listener(machine: Any, listeners: dict[str, socket.socket]) -> None:
    with served(listeners):
        assert told(
            machine,
            ("tcp", "1.2.3.4", 443),
            ("tcp", "169.254.169.254", 80),
            ("tcp", "::ffff:1.2.3.4", 443),
            ("tcp", "10.200.0.1", 22),
            ("tcp", "10.200.0.1", gateway.IDENTITY_PORT),
            ("tcp", "198.18.0.1", 443),
            ("tcp", "198.18.0.1", 80),
            ("tcp", "9.9.9.9", 53),
            ("udp", "9.9.9.9", 53),
            ("udp", "10.200.0.1", 53),
        ) == [
            "proxy 1.2.3.4:443",
            "proxy 169.254.169.254:80",
            "proxy 1.2.3.4:443",
            "proxy 10.200.0.1:22",
            f"proxy 10.200.0.1:{gateway.IDENTITY_PORT}",
            "proxy 198.18.0.1:443",
            "identity 198.18.0.1:80",
            "dns_tcp 9.9.9.9:53",
            "dns_udp",
            "dns_udp",
        ]


def test_all_else_is_refused_at_once(machine: Any, listeners: dict[str, socket.socket]) -> None:
    tries = [
        *(("tcp", "10.200.0.1", port) for port in (gateway.PROXY_PORT,)),
        *(("udp", "1.2.3.4", port) for port in (443, 123, 5353)),
        *(("udp", "10.200.0.1", port) for port in (gateway.DNS_PORT, gateway.PROXY_PORT, 1)),
    ]
    with served(listeners):
        assert told(machine, ("tcp", "1.2.3.4", 1), ("udp", "1.2.3.4", 53)) == ["proxy 1.2.3.4:1", "dns_udp"]
        for outcome, seconds in attempts(machine, *tries):
            assert outcome in ("ConnectionRefusedError 111", "OSError 113"), outcome
            assert seconds < AT_ONCE_S


def test_one_port_of_its_own_for_two_destinations(machine: Any, listeners: dict[str, socket.socket]) -> None:
    """Both are the same two addresses and ports in the gateway, where one of them has to give way."""
    with served(listeners):
        assert told(machine, ("tcp", "1.2.3.4", 443, 40123), ("tcp", "1.2.3.5", 443, 40123)) == [
            "proxy 1.2.3.4:443",
            "proxy 1.2.3.5:443",
        ]


def test_without_listeners_it_is_refused_at_once(machine: Any) -> None:
    for listener in machine.rig.run(machine.handle.listeners()).values():
        listener.close()
    tries = ("tcp", "1.2.3.4", 443), ("tcp", "198.18.0.1", 80), ("tcp", "9.9.9.9", 53), ("udp", "9.9.9.9", 53)
    for outcome, seconds in attempts(machine, *tries):
        assert outcome == "ConnectionRefusedError 111"
        assert seconds < AT_ONCE_S
    again = machine.rig.run(machine.handle.listeners(["proxy"]))
    with served(again):
        assert told(machine, tries[0], tries[1]) == ["proxy 1.2.3.4:443", "ConnectionRefusedError 111"]
    again["proxy"].close()


def test_a_listener_that_is_held_is_not_made_twice(machine: Any) -> None:
    first = machine.rig.run(machine.handle.listeners(["proxy"]))
    with pytest.raises(InternalError, match="Address already in use"):
        machine.rig.run(machine.handle.listeners(["proxy"]))
    with served(first):
        assert told(machine, ("tcp", "1.2.3.4", 443)) == ["proxy 1.2.3.4:443"]
    first["proxy"].close()


def test_a_listener_whose_holder_is_just_dying(machine: Any) -> None:
    first = machine.rig.run(machine.handle.listeners(["proxy"]))["proxy"]
    timer = threading.Timer(0.3, first.close)
    timer.start()
    machine.rig.run(machine.handle.listeners(["proxy"]))["proxy"].close()
    timer.join()


def test_tracked_connections_are_counted(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps them in memory that nobody is charged for; with a limit of 5 here."""
    rules = nft.gateway_rules(
        device="g0",
        sandbox="10.200.0.2",
        identity="198.18.0.1",
        proxy_port=1080,
        dns_port=1053,
        identity_port=1081,
        connections=5,
    )

    def limited() -> None:
        with gateway.entered(machine.rig.data, machine.handle.sandbox_id):
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            nft.apply(rules)

    in_child(limited)
    held = machine.rig.run(machine.handle.listeners(["proxy"]))
    outcomes = attempts(machine, *(("tcp", "1.2.3.4", port, 40000 + port) for port in range(1, 9)), patience_s=0.3)
    held["proxy"].close()
    assert [outcome for outcome, _ in outcomes] == ["TimeoutError"] * 5 + ["OSError 113"] * 3


def in_child(act: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_gateway_goes_with_the_machine(rig: Any, clean: None) -> None:
    folder: Path = rig.data.gateways_dir
    others = set(folder.iterdir())
    with rig.machine() as machine:
        pin = folder / machine.handle.sandbox_id
        assert set(folder.iterdir()) == others | {pin}
        assert str(pin) in {mount.point for mount in kernel.mounts()}
    assert set(folder.iterdir()) == others
    assert {mount.point for mount in kernel.mounts() if str(folder) in mount.point} == (
        {str(folder), *map(str, others)} if others else set()
    )
    with pytest.raises(NotFound):
        rig.run(rig.driver.listeners(machine.handle.sandbox_id, ["proxy"]))


def test_a_machine_without_a_network(rig: Any, clean: None) -> None:
    with rig.machine(has_network=False) as machine:
        assert machine.agent.shell("ls /sys/class/net").split() == ["lo"]
        assert "nameserver" not in machine.agent.shell("cat /etc/resolv.conf")
        program = "import socket as s; a = s.create_server(('127.0.0.1', 80)); s.create_connection(('127.0.0.1', 80))"
        assert machine.agent.run("python3", "-c", program).exit_code == 0
        assert told(machine, ("tcp", "1.2.3.4", 443)) == ["OSError 101"]
        with pytest.raises(NotFound):
            rig.run(machine.handle.listeners())


def test_a_pin_from_before_a_restart_of_the_host(rig: Any, clean: None) -> None:
    """The file is there, nothing is mounted on it: there is no network, and it can be made anew."""
    spec = rig.spec(disk_bytes=64 * MIB)
    rig.data.gateways_dir.mkdir(exist_ok=True)
    (rig.data.gateways_dir / spec.sandbox_id).touch()
    with pytest.raises(NotFound):
        rig.run(rig.driver.listeners(spec.sandbox_id, ["proxy"]))
    with rig.machine(sandbox_id=spec.sandbox_id) as machine:
        held = machine.rig.run(machine.handle.listeners())
        with served(held):
            assert told(machine, ("tcp", "1.2.3.4", 443)) == ["proxy 1.2.3.4:443"]
        for listener in held.values():
            listener.close()


def test_a_restarted_node_has_the_listeners_again(rig: Any, clean: None) -> None:
    with rig.machine() as machine:
        for listener in rig.run(machine.handle.listeners()).values():
            listener.close()
        recovered = rig.run(rig.driver.recover(machine.handle.sandbox_id, machine.handle.state()))
        began = time.monotonic()
        again = rig.run(recovered.listeners())
        assert time.monotonic() - began < 5
        with served(again):
            assert told(machine, ("tcp", "1.2.3.4", 443)) == ["proxy 1.2.3.4:443"]
        for listener in again.values():
            listener.close()
