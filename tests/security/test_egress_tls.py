"""TLS under a rule by name, from inside a sandbox: what the client asks for must be the name that it dialled."""

from __future__ import annotations

import ssl

import pytest

from bellglass import Rule
from bellglass.testing.egress import DNS_SERVER
from bellglass.testing.internet import DATABASE, EVIL, GOOD, HTTPS, OTHER_TLS, SSH, Internet
from tests.security.client_hellos import encrypted, hello, in_records, server_name
from tests.security.inside import Inside, tcp

pytestmark = pytest.mark.root
RULES = ("good.test:443", f"good.test:{OTHER_TLS}")
SERVER_HELLO = "\x16\x03"
PORTS = pytest.mark.parametrize("port", [443, OTHER_TLS])


@pytest.fixture(autouse=True)
def good_alone(inside: Inside) -> None:
    inside.allow(*RULES)


def test_a_real_client_reaches_the_name_and_checks_its_certificate(inside: Inside, internet: Internet) -> None:
    with internet.silence():
        outcome = inside.https("good.test")
        assert outcome.passed and f'"at": "{GOOD}"' in outcome.data


HONEST = {
    "plain": [hello("good.test")],
    "mixed case": [hello("GooD.TeSt")],
    "TLS 1.2": [hello("good.test", version=ssl.TLSVersion.TLSv1_2)],
    "records": in_records(hello("good.test"), 40),
    "tiny records": [b"".join(in_records(hello("good.test"), 7))],
    "tiny segments": [bytes([byte]) for byte in hello("good.test")],
    "ECH with the same name outside": [hello("good.test", encrypted("good.test"))],
}


@PORTS
def test_honest_hellos_pass(inside: Inside, port: int) -> None:
    outcomes = inside.each({name: tcp("good.test", port, *pieces) for name, pieces in HONEST.items()})
    assert [name for name, outcome in outcomes.items() if not outcome.data.startswith(SERVER_HELLO)] == []


WARNING = b"\x15\x03\x01\0\2\1\x5a"
"""Servers of several libraries pass over it, and read the hello behind."""
SSL_2 = b"\x80\x1c\1\3\3\0\3\0\0\0\x10\0\xc0\x2f" + bytes(16)
ODD = {
    "another name": ([hello("evil.test")], "sni_mismatch", "evil.test"),
    "with a dot": ([hello("good.test.")], "sni_mismatch", "good.test."),
    "below it": ([hello("sub.good.test")], "sni_mismatch", "sub.good.test"),
    "ECH, another name outside": ([hello("evil2.test", encrypted("good.test"))], "sni_mismatch", "evil2.test"),
    "another name, in records": (in_records(hello("evil3.test"), 40), "sni_mismatch", "evil3.test"),
    "none": ([hello(None)], "no_sni", "good.test"),
    "none but ECH": ([hello(None, encrypted("good.test"))], "no_sni", "good.test"),
    "two names, good first": ([hello(None, server_name("good.test", "evil.test"))], "bad_hello", "good.test"),
    "two names, evil first": ([hello(None, server_name("evil.test", "good.test"))], "bad_hello", "good.test"),
    "the extension twice": ([hello("good.test", server_name("evil.test"))], "bad_hello", "good.test"),
    "too long": ([hello("good.test", (21, bytes(17_000)))], "bad_hello", "good.test"),
    "behind a warning": ([WARNING + hello("evil.test")], "bad_hello", "good.test"),
    "behind a change of cipher spec": ([b"\x14\x03\x03\0\1\1" + hello("evil.test")], "bad_hello", "good.test"),
    "in the form of SSL 2": ([SSL_2], "bad_hello", "good.test"),
    "no hello": ([b"\x16\x03\x01\x00\x05hello"], "bad_hello", "good.test"),
}
"""What is sent, and the reason and name in the event."""


@PORTS
def test_what_asks_for_anything_else_is_refused(inside: Inside, internet: Internet, port: int) -> None:
    assert inside.tcp("good.test", port, hello("good.test")).data.startswith(SERVER_HELLO)
    came = len(internet.server_names)
    told = {name: {"reason": reason, "host": host, "port": port} for name, (_, reason, host) in ODD.items()}
    with internet.silence(), inside.all_refused(told):
        outcomes = inside.each({name: tcp("good.test", port, *pieces) for name, (pieces, _, _) in ODD.items()})
    assert {name: outcome for name, outcome in outcomes.items() if not outcome.cut} == {}
    assert len(internet.server_names) == came, "no server saw one"


@PORTS
def test_a_second_hello_is_checked_like_the_first(inside: Inside, internet: Internet, port: int) -> None:
    """Whatever the server has answered to the first one by then."""
    assert inside.tcp("good.test", port, hello("good.test")).data.startswith(SERVER_HELLO)
    came = len(internet.server_names)
    with internet.silence(), inside.refused("sni_mismatch", host="evil.test", port=port):
        assert inside.tcp("good.test", port, hello("good.test") + hello("evil.test"), until="never comes").cut
    assert set(internet.server_names[came:]) <= {"good.test"}


def test_a_slow_hello_is_refused(inside: Inside, internet: Internet) -> None:
    whole = hello("good.test")
    pieces = [whole[:100], whole[100:200], whole[200:]]
    assert inside.tcp("good.test", 443, *pieces, pause=0.2).data.startswith(SERVER_HELLO)
    with internet.silence(EVIL, GOOD, DNS_SERVER), inside.refused("bad_hello"):
        outcome = inside.tcp("good.test", 443, *pieces, pause=3.0)
        assert outcome.word in ("ECONNRESET", "EPIPE")


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", b"SSH-2.0-x\r\n", b"\0\0\0\x08\x04\xd2\x16\x2f"]
)
def test_port_443_speaks_tls_alone(inside: Inside, internet: Internet, first: bytes) -> None:
    """By a rule of its name: one of its address does not look at it."""
    inside.allow(Rule(cidr=f"{GOOD}/32"))
    with internet.watch(GOOD) as packets:
        inside.tcp(GOOD, 443, first)
    assert packets
    inside.allow(*RULES)
    with internet.silence(EVIL, GOOD, DNS_SERVER), inside.refused("bad_hello"):
        assert inside.tcp("good.test", 443, first).cut


def test_a_literal_address_needs_a_rule_of_its_own_whatever_name_is_in_the_hello(
    inside: Inside, internet: Internet
) -> None:
    inside.allow(Rule(cidr=f"{EVIL}/32"), Rule(cidr=f"{GOOD}/32"))
    for address in (EVIL, GOOD):
        with internet.watch(address) as packets:
            assert inside.https(address, name="good.test").passed
        assert packets
    inside.allow(*RULES)
    with internet.silence(EVIL, GOOD, DNS_SERVER):
        for address in (EVIL, GOOD):
            for name in ("good.test", "evil.test"):
                with inside.refused("address_not_allowed", address=address):
                    assert inside.https(address, name=name).cut


def test_the_tools_of_an_attacker_get_nowhere(inside: Inside, internet: Internet) -> None:
    """The same by curl and openssl: each of them comes to a server under an open network."""
    inside.box.files.write_text("/tmp/authority.pem", inside.authority)
    curl = "curl -sS --cacert /tmp/authority.pem --max-time 20"
    client = "openssl s_client -CAfile /tmp/authority.pem -verify_return_error -brief </dev/null"
    attacks = (
        f"{curl} -k https://{EVIL}/",
        f"{curl} https://good.test/ --resolve good.test:443:{EVIL}",
        f"{curl} https://evil.test/ --connect-to evil.test:443:good.test:443",
        f"{curl} https://evil.test/",
        f"{curl} --proxy-cacert /tmp/authority.pem -x https://good.test:443 https://evil.test/",
        f"{client} -connect {EVIL}:443 -servername good.test",
        f"{client} -connect good.test:443 -servername evil.test",
        f"{client} -connect good.test:443 -noservername",
    )
    inside.open()
    for line in attacks:
        came = len(internet.server_names)
        done = inside.box.exec(line, timeout=30)
        assert len(internet.server_names) > came, (line, done.stderr)
        assert done.ok or " -x " in line, (line, done.stderr)
    inside.allow(*RULES)
    assert inside.box.exec(f"{curl} https://good.test/", timeout=30).ok
    assert inside.box.exec(f"{client} -connect good.test:443 -servername good.test", timeout=30).ok
    came = len(internet.server_names)
    with internet.silence():
        for line in attacks[:4] + attacks[5:]:
            assert not inside.box.exec(line, timeout=30).ok, line
        assert len(internet.server_names) == came, "no server saw one"
        # To the allowed server this is a visit like others; what it asks of it stays there.
        assert not inside.box.exec(attacks[4], timeout=30).ok
        assert set(internet.server_names[came:]) == {"good.test"}


def test_what_is_inside_of_the_encryption_goes_to_the_name_that_was_asked_for(
    inside: Inside, internet: Internet
) -> None:
    """What passing through can't see: another Host, another :authority. It ends at the allowed name's own address."""
    with internet.silence():
        outcome = inside.https("good.test", request=b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        assert f'"at": "{GOOD}", "host": "evil.test"' in outcome.data
        block = b"\x82\x87\x84\x01\x09evil.test"  # GET, https, /, and :authority as it stands
        request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4\0" + bytes(4)
        request += len(block).to_bytes(3, "big") + b"\1\5\0\0\0\1" + block
        outcome = inside.https("good.test", OTHER_TLS, request=request, protocol="h2")
        assert outcome.data.endswith(GOOD) and internet.h2[-1] == block


@pytest.mark.parametrize(
    ("port", "first"), [(SSH, b""), (DATABASE, b"\0\0\0\x08\x04\xd2\x16\x2f")], ids=["SSH", "PostgreSQL"]
)
def test_other_protocols_pass_by_name_and_port(inside: Inside, internet: Internet, port: int, first: bytes) -> None:
    """One whose server speaks first, and one whose client does, in no text."""
    inside.allow(f"good.test:{port}")
    with internet.silence():
        assert inside.tcp("good.test", port, first).data.startswith(("SSH-2.0-Test", "N"))
        with inside.refused("port_not_allowed", host="good.test", port=HTTPS):
            assert inside.tcp("good.test", HTTPS, first).cut
        for other in (SSH, DATABASE):
            with inside.refused("address_not_allowed", address=EVIL, port=other):
                assert inside.tcp(EVIL, other, first).cut
