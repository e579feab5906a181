"""Published ports behind Caddy, with the configuration that the guide shows."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest
from preview_front_rig import TOOLS, Front, free_port, passes_streams, streaming
from preview_http2_rig import Raw
from preview_rig import WAIT_S, program

CADDY = TOOLS / "caddy/usr/bin/caddy"
ABSENT = TOOLS / "caddy/absent"
AROUND = """
{{
    admin off
    default_bind 127.0.0.1
    http_port {http_port}
    https_port {port}
    grace_period 1s
    servers {{
        protocols h1 h2
    }}
}}
{shown}
"""
LARGE = 64 * 2**20
PIECE = bytes(2**16)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    if not CADDY.exists() and ABSENT.exists():
        pytest.skip(f"no mirror of this host gives Caddy: {ABSENT.read_text().strip()}")
    assert CADDY.exists(), "make setup-test"
    front = Front(tmp_path_factory.mktemp("caddy"))
    shown = front.block(
        "caddyfile", ("/etc/caddy/preview.pem", str(front.cert)), ("/etc/caddy/preview.key", str(front.key))
    )
    config = front.root / "Caddyfile"
    config.write_text(AROUND.format(http_port=free_port(), port=front.port, shown=shown))
    # It keeps its state and its configuration below these.
    env = {**os.environ, "HOME": str(front.root), "XDG_DATA_HOME": str(front.root), "XDG_CONFIG_HOME": str(front.root)}
    with front.proxy(CADDY, "run", "--config", config, "--adapter", "caddyfile", env=env):
        assert "skipping automatic certificate management" in front.log(), front.log()
        yield front
    front.harness.stop()


def test_a_link_a_cookie_and_who_visits(front: Front) -> None:
    with program() as shown:
        site = front.site(shown.port)
        token = site.token()["token"]
        with front.visitor(site) as visitor:
            assert visitor.ask("/").status == 401 and not shown.heads
            handed = visitor.ask(f"/a%2Fb//?x=%20;&_bellglass_token={token}")
            assert handed.status == 302 and handed.header("location") == f"https://{site.host}/a%2Fb//?x=%20;"
            cookie = (handed.header("set-cookie") or "").partition(";")[0]
            assert cookie.startswith("__Host-bellglass=")
            answered = visitor.ask("/a%2Fb//?x=%20;", f"Cookie: {cookie}; mine=1", "X-Forwarded-For: 6.6.6.6")
            assert answered.status == 200
            assert visitor.ask("/").status == 401  # on a connection that has had the cookie
            assert visitor.ask("/", f"X-Bellglass-Token: {token}").status == 200
            assert visitor.ask(f"/?_bellglass_token={token}", "Content-Length: 0", method="POST").status == 200
        said = answered.body.decode()
        assert said.startswith("GET /a%2Fb//?x=%20; HTTP/1.1\r\n") and f"\r\nHost: {site.host}\r\n" in said
        assert "\r\nX-Forwarded-For: 127.0.0.1, 127.0.0.1\r\n" in said and "6.6.6.6" not in said
        assert "\r\nX-Forwarded-Proto: https\r\n" in said and f"\r\nX-Forwarded-Host: {site.host}\r\n" in said
        assert "\r\nCookie: mine=1\r\n" in said
        # Go's client adds this one unless told otherwise, and unpacks the answer.
        assert "Accept-Encoding" not in said, said
        heard = b"".join(shown.heads).decode()
        assert len(shown.heads) == 3
        for secret in (token, cookie.partition("=")[2], "_bellglass_token", "X-Bellglass-Token", "__Host-"):
            assert secret not in heard


def test_http2_as_browsers_speak_it(front: Front) -> None:
    with program() as shown:
        site = front.site(shown.port)
        with front.tls(site.host, "h2") as connection:
            assert connection.selected_alpn_protocol() == "h2"
            visitor = Raw(connection)
            assert visitor.status(visitor.ask(site.host, "/"))[0] == 401 and not shown.heads
            status, headers = visitor.status(visitor.ask(site.host, f"/?_bellglass_token={site.token()['token']}"))
            assert status == 302 and headers["location"] == f"https://{site.host}/"
            cookie = headers["set-cookie"].partition(";")[0]
            # Browsers send a field for each cookie.
            asked = visitor.ask(site.host, "/page", ("cookie", "mine=1"), ("cookie", cookie), ("cookie", "mine=2"))
            assert visitor.status(asked)[0] == 200
        (said,) = (head.decode() for head in shown.heads)
        assert said.startswith("GET /page HTTP/1.1\r\n") and f"\r\nHost: {site.host}\r\n" in said
        assert "\r\nCookie: mine=1; mine=2\r\n" in said and cookie.partition("=")[2] not in said


def test_two_ports_on_one_connection_to_bellglass(front: Front) -> None:
    """Caddy keeps its connections and sends the requests of all visitors on them."""
    with program() as shown, program() as other:
        mine, theirs = front.site(shown.port), front.site(other.port)
        token = mine.token()["token"]
        for _ in range(3):
            with front.visitor(mine) as visitor:
                answered = visitor.ask("/mine", f"X-Bellglass-Token: {token}")
                assert answered.status == 200 and f"\r\nHost: {mine.host}\r\n" in answered.body.decode()
            with front.visitor(theirs) as visitor:
                assert visitor.ask("/theirs").status == 401
                assert visitor.ask("/theirs", f"X-Bellglass-Token: {token}").status == 401
        assert len(shown.heads) == 3 and not other.heads


def test_websocket_events_and_uploads_stream(front: Front) -> None:
    go = threading.Event()
    with program(streaming(go)) as shown:
        passes_streams(front, front.site(shown.port, visibility="public"), go)


def test_an_answer_of_known_length_comes_as_it_is_sent(front: Front) -> None:
    go = threading.Event()

    def serve(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        assert go.wait(WAIT_S)
        connection.sendall(b"later")

    with program(serve) as shown, front.visitor(front.site(shown.port, visibility="public")) as visitor:
        visitor.send(visitor.request("/"))
        assert visitor.read_head()[0] == 200
        assert visitor.file.read(5) == b"first"
        go.set()
        assert visitor.file.read(5) == b"later"


def test_who_leaves_a_silent_stream_leaves_the_program(front: Front) -> None:
    left = threading.Event()

    def serve(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        with contextlib.suppress(ConnectionResetError):
            connection.recv(1)
        left.set()

    with program(serve) as shown:
        with front.visitor(front.site(shown.port, visibility="public")) as visitor:
            visitor.send(visitor.request("/"))
            assert visitor.read_head()[0] == 200
            assert next(visitor.chunks()) == b"data: 1\n\n"
            assert not left.is_set()
        assert left.wait(WAIT_S)


def test_a_large_upload(front: Front) -> None:
    """One that is refused is answered before it has been sent, and the program hears nothing of it."""

    def serve(connection: socket.socket, head: bytes) -> None:
        got = len(head.partition(b"\r\n\r\n")[2])
        while got < LARGE and (data := connection.recv(2**20)):
            got += len(data)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d" % (len(str(got)), got))

    with program(serve) as shown:
        site = front.site(shown.port)
        length = f"Content-Length: {LARGE}"
        with front.visitor(site) as visitor:
            visitor.send(visitor.request("/", length, f"X-Bellglass-Token: {site.token()['token']}", method="PUT"))
            for _ in range(LARGE // len(PIECE)):
                visitor.send(PIECE)
            answered = visitor.read()
            assert answered.status == 200 and answered.body == str(LARGE).encode()
        with front.visitor(site) as visitor:
            visitor.send(visitor.request("/", length, method="PUT") + PIECE)
            assert visitor.read().status == 401
        assert len(shown.heads) == 1
