"""HTTP under a rule by name, from inside a sandbox: every request's Host is checked, and nothing becomes a tunnel."""

from __future__ import annotations

import pytest

from bellglass.testing.internet import EVIL, GOOD, OTHER_HTTP, Internet
from tests.security.inside import Inside, get, tcp

pytestmark = pytest.mark.root
PORTS = pytest.mark.parametrize("port", [80, OTHER_HTTP])
GOOD_GET = b"GET /first HTTP/1.1\r\nHost: good.test\r\n\r\n"


@pytest.fixture(autouse=True)
def good_alone(inside: Inside) -> None:
    inside.allow("good.test:80", f"good.test:{OTHER_HTTP}")


def honest(port: int) -> dict[str, bytes]:
    return {
        "plain": get("good.test"),
        "mixed case": get("GOOD.test"),
        "with the port": get(f"good.test:{port}"),
        "absolute": get("good.test", "http://good.test/"),
        "two": GOOD_GET + get("good.test", "/second"),
        "another in a body": b"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 60\r\n\r\n"
        + get("evil.test").ljust(60),
        "an upgrade": GOOD_GET[:-2] + b"Connection: upgrade\r\nUpgrade: echo\r\n\r\n",
    }


@PORTS
def test_honest_requests_pass(inside: Inside, internet: Internet, port: int) -> None:
    with internet.silence():
        outcomes = inside.each({name: tcp("good.test", port, request) for name, request in honest(port).items()})
    assert [name for name, outcome in outcomes.items() if not outcome.data.startswith("HTTP/1.1 ")] == []


LINE = b"GET / HTTP/1.1\r\n"
OTHER_HOST = {
    "other": get("evil.test"),
    "other that begins alike": get("good.test.evil.test"),
    "other port": get("good.test:22"),
    "other behind an absolute target": get("evil.test", "http://good.test/"),
    "absolute": get("good.test", "http://evil.test/"),
    "user in the target": get("good.test", "http://good.test@evil.test/"),
}
BAD = {
    "two, good first": LINE + b"Host: good.test\r\nHost: evil.test\r\n\r\n",
    "two, evil first": LINE + b"Host: evil.test\r\nHost: good.test\r\n\r\n",
    "none": LINE + b"\r\n",
    "folded": LINE + b"Host: good.test\r\n Host: evil.test\r\n\r\n",
    "bare newlines": b"GET / HTTP/1.1\nHost: good.test\n\n",
    "bare return": LINE + b"Host: good.test\rHost: evil.test\r\n\r\n",
    "space before the colon": LINE + b"Host : evil.test\r\nHost: good.test\r\n\r\n",
    "CONNECT": b"CONNECT evil.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n",
    "CONNECT to itself": b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n",
    "h2c": GOOD_GET[:-2] + b"Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "behind a line of the PROXY protocol": b"PROXY TCP4 203.0.114.1 203.0.114.2 1 80\r\n" + get("evil.test"),
    "behind its second form": b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0" + get("evil.test"),
    "two lengths": GOOD_GET[:-2] + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@PORTS
@pytest.mark.parametrize(("reason", "requests"), [("host_mismatch", OTHER_HOST), ("bad_request", BAD)])
def test_what_means_another_host_or_could_be_read_otherwise_is_refused(
    inside: Inside, internet: Internet, port: int, reason: str, requests: dict[str, bytes]
) -> None:
    assert inside.http("good.test", port).passed
    came = len(internet.requests)
    with internet.silence(), inside.refused(reason, port=port):
        outcomes = inside.each({name: tcp("good.test", port, request) for name, request in requests.items()})
    assert {name: outcome for name, outcome in outcomes.items() if not outcome.cut} == {}
    assert len(internet.requests) == came, "no server saw one"


@PORTS
@pytest.mark.parametrize(
    "second",
    [get("evil.test", "/second"), b"CONNECT evil.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n",
     b"\x16\x03\x01\x00\x05hello"],
    ids=["other", "CONNECT", "TLS"],
)  # fmt: skip
def test_the_second_request_is_checked_like_the_first(
    inside: Inside, internet: Internet, port: int, second: bytes
) -> None:
    for pieces in ([GOOD_GET, second], [GOOD_GET + second]):
        came = len(internet.requests)
        with internet.silence(), inside.refused("host_mismatch" if second.startswith(b"GET") else "bad_request"):
            outcome = inside.tcp("good.test", port, *pieces, pause=0.2, until="never comes")
            assert outcome.cut
        assert {found[2] for found in internet.requests[came:]} <= {"/first"}


ATTACKS = (
    ["-x", "http://good.test:80", "http://evil.test/"],
    ["-x", "http://good.test:80", "-p", "http://evil.test/"],
    ["--connect-to", "evil.test:80:good.test:80", "http://evil.test/"],
    ["-H", "Host: evil.test", "http://good.test/"],
    ["--http2-prior-knowledge", "http://good.test/"],
    [f"http://{EVIL}/"],
    ["-H", "Host: good.test", f"http://{EVIL}/"],
)


def test_a_proxy_of_the_attackers_choice_is_none(inside: Inside, internet: Internet) -> None:
    """An allowed web server is not made a way on by whatever a client asks of it. Under an open network it is asked."""

    def sent(argv: list[str]) -> tuple[bool, int]:
        """Whether the client is content, and how many requests came to a server."""
        came = len(internet.requests)
        done = inside.box.exec(["curl", "-sS", "--max-time", "20", *argv], timeout=30)
        return done.ok, len(internet.requests) - came

    inside.open()
    assert [argv for argv in ATTACKS if not sent(argv)[1]] == []
    inside.allow("good.test:80", f"good.test:{OTHER_HTTP}")
    assert sent(["http://good.test/"]) == (True, 1)
    with internet.silence():
        assert [argv for argv in ATTACKS if sent(argv) != (False, 0)] == []
    done = inside.box.exec(["curl", "-sS", "http://good.test/"], timeout=30)
    assert f'"at": "{GOOD}"' in done.stdout
