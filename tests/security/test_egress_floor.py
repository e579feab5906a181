"""The floor: no name and no rule leads to private, special or metadata addresses, nor to the host itself or another
sandbox. What answers there does so whoever comes: what refuses is the boundary alone."""

from __future__ import annotations

import itertools
import socket
from urllib.parse import urlsplit

import pytest

from bellglass import Rule
from bellglass.testing.egress import BEHIND_THE_FLOOR, DNS_SERVER, HOST_ADDRESSES
from bellglass.testing.internet import (
    BEHIND_THE_FLOOR_V6,
    EVIL,
    EVIL_V6,
    GOOD,
    GOOD_V6,
    HOST_SERVICE_PORT,
    HOST_V6,
    METADATA,
    Internet,
)
from bellglass.testing.stack import Stack
from tests.security.conftest import EXCEPTION
from tests.security.inside import AT_ONCE_S, CUT, Inside, get, tcp

pytestmark = pytest.mark.root
NODE = "198.18.0.1"
"""Where the node answers for the API: dialled as such it is no way out, and has tests of its own."""
FLOOR_V4 = ("127.0.0.1", "10.0.0.1", METADATA, "0.0.0.0", "169.254.170.2", "168.63.129.16", "100.100.100.200",
            "172.16.0.1", "224.0.0.1", "255.255.255.255", NODE, "192.0.0.192", *HOST_ADDRESSES)  # fmt: skip
FLOOR_V6 = ("::", "::1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1",
            "::169.254.169.254", "fe80::1", "fd00:ec2::254", "ff02::1", HOST_V6)  # fmt: skip
OWN = ("127.0.0.1", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", *HOST_ADDRESSES, HOST_V6)
NEVER_SENT = ("127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255")
"""By TCP from inside: they mean itself, or many."""


def reachable_from_the_host(internet: Internet, address: str, port: int = 80) -> bool:
    def dial() -> bool:
        with socket.create_connection((address, port), timeout=10) as sock:
            sock.sendall(get("x"))
            return sock.recv(4096).startswith(b"HTTP/1.1 200")

    return internet.host.call(dial)


def said(address: str, port: int, request: bytes) -> bytes:
    with socket.create_connection((address, port), timeout=20) as sock:
        sock.sendall(request)
        return sock.recv(4096)


def test_what_is_behind_the_floor_answers_the_host(internet: Internet) -> None:
    """So that what follows means something."""
    for address in (*BEHIND_THE_FLOOR, *BEHIND_THE_FLOOR_V6, GOOD_V6):
        with internet.watch(address) as packets:
            assert reachable_from_the_host(internet, address)
        assert packets
    for address in (*HOST_ADDRESSES, HOST_V6, "127.0.0.1", "::1"):
        assert reachable_from_the_host(internet, address, HOST_SERVICE_PORT)


@pytest.mark.parametrize("policy", ["open", "rules"])
def test_a_name_that_answers_with_it_leads_nowhere(inside: Inside, internet: Internet, policy: str) -> None:
    """Each name was public a moment before."""
    floor, came = (*FLOOR_V4, *FLOOR_V6), len(internet.dialled)
    inside.open() if policy == "open" else inside.allow(Rule(host="*.rebind.test", ports=[80, HOST_SERVICE_PORT]))
    requests = {}
    for number, address in enumerate(floor):
        name = f"name{number}.rebind.test"
        internet.dns.zone[name] = [GOOD_V6 if ":" in address else GOOD]
        requests[name] = tcp(name, 80, get(name), until="}")
    assert all(outcome.passed for outcome in inside.each(requests).values())
    for name, address in zip(requests, floor, strict=True):
        internet.dns.zone[name] = [address]
    told = {name: {"reason": "floor", "host": name} for name in requests}
    with internet.silence(EVIL, EVIL_V6, GOOD, GOOD_V6, *BEHIND_THE_FLOOR, *BEHIND_THE_FLOOR_V6):
        with inside.all_refused(told):
            outcomes = inside.each(requests)
        own = [name for name, address in zip(requests, floor, strict=True) if address in OWN]
        outcomes |= inside.each({f"service {name}": tcp(name, HOST_SERVICE_PORT, get(name)) for name in own})
    assert {name: outcome for name, outcome in outcomes.items() if not outcome.cut} == {}
    assert not any(where == HOST_SERVICE_PORT for _, where, _ in internet.dialled[came:])


def test_the_address_that_was_checked_is_the_one_that_is_dialled(inside: Inside, internet: Internet) -> None:
    """A name that flips with every question: each connection goes to the public one, or is refused."""
    flip = itertools.cycle([[GOOD], [METADATA], [GOOD, "10.0.0.1"], ["10.0.0.1", GOOD], ["127.0.0.1"]])
    internet.dns.zone["rb.test"] = lambda: next(flip)
    inside.allow("rb.test:80")
    with internet.silence(EVIL, *BEHIND_THE_FLOOR), internet.watch(GOOD) as packets:
        outcomes = inside.all(*[tcp("rb.test", 80, get("rb.test"), until="}")] * 60)
    assert {outcome.word for outcome in outcomes} <= {"data"} | CUT
    passed = [outcome for outcome in outcomes if outcome.passed]
    assert len(passed) > 10 and packets and all(f'"at": "{GOOD}"' in outcome.data for outcome in passed)
    assert len(passed) < 60


@pytest.mark.parametrize("policy", ["open", "rules"])
def test_no_address_of_the_floor_is_dialled_as_such(inside: Inside, internet: Internet, policy: str) -> None:
    inside.open() if policy == "open" else inside.allow(Rule(cidr="0.0.0.0/0", ports=[80, HOST_SERVICE_PORT]))
    with internet.watch(EVIL) as packets:
        assert inside.http(EVIL).passed
    assert packets
    told = {
        address: {"reason": "floor", "address": address} for address in FLOOR_V4 if address not in (*NEVER_SENT, NODE)
    }
    with internet.silence(EVIL, GOOD, *BEHIND_THE_FLOOR), inside.all_refused(told):
        outcomes = inside.each({address: tcp(address, 80, get("x")) for address in FLOOR_V4 if address != NODE})
        outcomes |= inside.each({f"{own}, 2": tcp(own, HOST_SERVICE_PORT, get("x")) for own in HOST_ADDRESSES})
    assert [outcome for outcome in outcomes.values() if outcome.passed or outcome.seconds > AT_ONCE_S] == []
    assert {name: outcome for name, outcome in outcomes.items() if not outcome.cut and name not in NEVER_SENT} == {}


def test_the_operators_exceptions_alone_open_it(inside: Inside, internet: Internet) -> None:
    internet.dns.zone["private.test"] = [EXCEPTION]
    inside.allow("private.test:80", Rule(cidr=f"{EXCEPTION}/32", ports=[80]))
    with internet.watch(EXCEPTION) as packets:
        assert inside.http("private.test").passed and inside.http(EXCEPTION).passed
    assert packets
    inside.allow()
    with internet.silence(EXCEPTION):
        assert inside.http(EXCEPTION).cut


@pytest.mark.parametrize("address", [METADATA, "10.0.0.1", EVIL])
def test_mapped_ipv6_is_ipv4(inside: Inside, internet: Internet, address: str) -> None:
    inside.allow(Rule(cidr=f"{GOOD}/32", ports=[80]))
    assert inside.http(f"::ffff:{GOOD}", family="AF_INET6").passed
    with internet.silence(EVIL, *BEHIND_THE_FLOOR), inside.refused("address_not_allowed", address=address):
        assert inside.http(f"::ffff:{address}", family="AF_INET6").cut


def test_inside_there_is_no_ipv6_but_loopback(inside: Inside, internet: Internet) -> None:
    """Names that have nothing else are reached through the proxy, which is on the host."""
    inside.open()
    internet.dns.zone["six.test"] = [GOOD_V6]
    with internet.watch(GOOD_V6) as packets:
        assert inside.http("six.test").passed
    assert packets
    addresses = (GOOD_V6, EVIL_V6, HOST_V6, "fd00:ec2::254", "fe80::1%eth0", "fe80::1%lo")
    with internet.silence(EVIL, GOOD_V6, EVIL_V6, *BEHIND_THE_FLOOR_V6):
        streams = inside.all(*(tcp(address, 80, get("x"), family="AF_INET6") for address in addresses))
        datagrams = inside.all(
            *({"op": "udp", "host": address, "port": 53, "data": "x", "family": "AF_INET6"} for address in addresses)
        )
    unreachable = ("ENETUNREACH", "EADDRNOTAVAIL", "EINVAL", "EHOSTUNREACH", "EAI_NONAME")
    assert [outcome for outcome in (*streams, *datagrams) if outcome.word not in unreachable] == []
    assert inside.http("::1", family="AF_INET6").word == "ECONNREFUSED", "its own loopback"


def test_neither_the_gateway_nor_the_host_nor_its_daemons_are_there(
    inside: Inside, internet_stack: tuple[Internet, Stack]
) -> None:
    internet, stack = internet_stack
    inside.open()
    server = int(stack.api_url.rpartition(":")[2])
    assert reachable_from_the_host(internet, "127.0.0.1", HOST_SERVICE_PORT)
    health = get(HOST_ADDRESSES[0], "/v1/health")
    assert internet.host.call(said, HOST_ADDRESSES[0], server, health).startswith(b"HTTP/1.1 200")
    outcomes = inside.each(
        {
            f"{address}:{port}": tcp(address, port, get("x"))
            for address in ("10.200.0.1", *HOST_ADDRESSES, "10.200.0.5", "10.200.0.6")
            for port in (22, 80, 1053, 1080, 1081, server, HOST_SERVICE_PORT)
        }
    )
    refused = (*CUT, "EHOSTUNREACH", "ECONNREFUSED")
    assert {name: outcome for name, outcome in outcomes.items() if outcome.word not in refused} == {}
    assert inside.http("127.0.0.1", HOST_SERVICE_PORT).word == "ECONNREFUSED", "its own loopback"
    internet.dns.zone["api.test"] = [HOST_ADDRESSES[0]]
    with inside.refused("floor", address=HOST_ADDRESSES[0], host="api.test", port=server):
        assert inside.tcp("api.test", server, health).cut


def test_no_other_sandbox_is_there(inside: Inside, internet_stack: tuple[Internet, Stack]) -> None:
    """They have the same addresses: what one dials is itself."""
    serve = ["python3", "-m", "http.server", "8000", "--bind", "0.0.0.0"]
    with internet_stack[1].sandbox(cpus=1, memory="256MiB", disk="512MiB", network="open") as other:
        running = other.start(serve)
        ready = "until curl -s -o /dev/null http://10.200.0.2:8000/; do :; done"
        assert other.exec(ready, timeout=60).ok, "it reaches itself"
        inside.open()
        assert inside.http("10.200.0.2", 8000).word == "ECONNREFUSED"
        for address in ("10.200.0.1", "10.200.0.3", "10.200.0.6", "10.200.1.2"):
            assert not inside.http(address, 8000).passed
        # Nor by way of the host, where anybody else may visit it.
        internet = internet_stack[0]
        url = urlsplit(other.publish(8000, visibility="public").url)
        assert url.port is not None
        visit = get(url.netloc)
        assert internet.host.call(said, HOST_ADDRESSES[0], url.port, visit).startswith(b"HTTP/1.1 200")
        internet.dns.zone["sibling.test"] = [HOST_ADDRESSES[0]]
        for host in (HOST_ADDRESSES[0], "sibling.test"):
            with inside.refused("floor", address=HOST_ADDRESSES[0], port=url.port):
                assert inside.tcp(host, url.port, visit).cut
        running.signal("KILL")
        running.wait()


def test_dns_server_is_no_target(inside: Inside, internet: Internet) -> None:
    """What the proxy may ask, a sandbox may not: not even by a rule that names the server."""
    inside.allow("good.test:80", Rule(cidr=f"{DNS_SERVER}/32", ports=[53, 80]))
    with internet.watch(DNS_SERVER) as packets:
        assert inside.http("good.test").passed
    assert packets, "the proxy asks it"
    with internet.watch(DNS_SERVER) as packets:
        assert inside.tcp(DNS_SERVER, 80, b"x").cut, "nobody listens"
    assert [packet.port for packet in packets if packet.port == 80]
    with internet.silence(DNS_SERVER):
        for stream in (True, False):
            asked = inside.probe("dns", server=DNS_SERVER, host="evil.test", kind=1, stream=stream)
            assert asked.data.startswith("3"), "of its own resolver"
    inside.allow("good.test:80")
    with internet.silence(DNS_SERVER):
        assert inside.tcp(DNS_SERVER, 80, b"x").cut
        assert inside.probe("dns", server=DNS_SERVER, host="evil.test", kind=1, stream=True).data.startswith("3")
        assert inside.probe("dns", server=DNS_SERVER, host="evil.test", kind=1).data.startswith("3")
