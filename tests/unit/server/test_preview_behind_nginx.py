"""Published ports behind nginx, with the configuration that the guide shows."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from preview_rig import WAIT_S, Site, Visitor, program
from server_harness import Harness, make_data_dir

from bellglass.datadir import cache_dir
from bellglass.supervise import preview_ca

GUIDE = Path(__file__).parents[3] / "docs/guides/previews.md"
DOMAIN = "preview.example.net"
NGINX = cache_dir() / "tools/nginx/usr/sbin/nginx"
AROUND = """
daemon off; master_process off; error_log stderr; pid {folder}/pid; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {shown}
}}
"""


class Front(NamedTuple):
    harness: Harness
    port: int
    ca: Path

    def site(self, port: int, **options: object) -> Site:
        site = Site(self.harness, self.harness.project("p1"), port, **options)
        site.host = f"{site.sandbox_id}-{port}.{DOMAIN}"
        assert site.record["url"] == f"https://{site.host}"
        return site

    def visitor(self, site: Site) -> Visitor:
        """Through nginx."""
        visitor = Visitor(self.port, site.host)
        context = ssl.create_default_context(cafile=self.ca)
        visitor.connection = context.wrap_socket(visitor.connection, server_hostname=site.host)
        visitor.file = visitor.connection.makefile("rb")
        return visitor


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    assert NGINX.exists(), "make setup-test"
    root = tmp_path_factory.mktemp("nginx")
    made = preview_ca.make(make_data_dir(root / "data"), DOMAIN)
    harness = Harness(
        root / "data",
        {
            "previews.domain": DOMAIN, "previews.scheme": "https", "previews.public_port": 443,
            "previews.trusted_proxies": "127.0.0.1",
        },
    ).start()  # fmt: skip
    (shown,) = re.findall(r"^```nginx\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for ours, theirs in (
        ("listen 443 ", f"listen 127.0.0.1:{port} "),
        ("127.0.0.1:7380", f"127.0.0.1:{harness.previews_port}"),
        ("/etc/nginx/preview.pem", str(made.cert)),
        ("/etc/nginx/preview.key", str(made.key)),
    ):
        assert shown.count(ours) == 1, ours
        shown = shown.replace(ours, theirs)
    config = root / "nginx.conf"
    config.write_text(AROUND.format(folder=root, shown=shown))
    with (
        open(root / "log", "w") as log,
        subprocess.Popen([NGINX, "-p", root, "-c", config], stderr=log) as nginx,
    ):
        try:
            harness.until(lambda: nginx.poll() is not None or listens(port))
            assert nginx.poll() is None, (root / "log").read_text()
            yield Front(harness, port, made.ca)
        finally:
            nginx.terminate()
    harness.stop()


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_link_a_cookie_and_who_visits(front: Front) -> None:
    with program() as shown:
        site = front.site(shown.port)
        with front.visitor(site) as visitor:
            assert visitor.ask("/").status == 401
            handed = visitor.ask(f"/a%2Fb//?x=%20&_bellglass_token={site.token()['token']}")
            assert handed.status == 302 and handed.header("location") == f"https://{site.host}/a%2Fb//?x=%20"
            cookie = (handed.header("set-cookie") or "").partition(";")[0]
            assert cookie.startswith("__Host-bellglass=")
            answered = visitor.ask("/a%2Fb//?x=%20", f"Cookie: {cookie}", "X-Forwarded-For: 6.6.6.6")
        assert answered.status == 200
        said = answered.body.decode()
        assert said.startswith("GET /a%2Fb//?x=%20 HTTP/1.1\r\n") and f"\r\nHost: {site.host}\r\n" in said
        assert "\r\nX-Forwarded-For: 127.0.0.1, 127.0.0.1\r\n" in said and "6.6.6.6" not in said
        assert "\r\nX-Forwarded-Proto: https\r\n" in said and "__Host-" not in said


def test_websocket_events_and_uploads_stream(front: Front) -> None:
    go = threading.Event()

    def serve(connection: socket.socket, head: bytes) -> None:
        if b"\r\nUpgrade: websocket" in head:
            connection.sendall(b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            while data := connection.recv(65536):
                connection.sendall(data)
            return
        if head.startswith(b"PUT"):
            body = head.partition(b"\r\n\r\n")[2]
            while len(body) < 5:
                body += connection.recv(65536)
            go.set()  # before the rest was sent
            while len(body) < 10:
                body += connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + body)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        assert go.wait(WAIT_S)
        connection.sendall(b"data: 2\n\n")

    with program(serve) as shown:
        site = front.site(shown.port, visibility="public")
        with front.visitor(site) as visitor:
            visitor.send(visitor.request("/ws", "Upgrade: websocket", "Connection: Upgrade"))
            assert visitor.read_head()[0] == 101
            for size in (1, *[100_000] * 20):
                data = os.urandom(size)
                visitor.send(data)
                assert visitor.file.read(size) == data
        with front.visitor(site) as visitor:
            visitor.send(visitor.request("/", "Content-Length: 10", method="PUT") + b"first")
            assert go.wait(WAIT_S)
            visitor.send(b"later")
            assert visitor.read().body == b"firstlater"
        go.clear()
        with front.visitor(site) as visitor:
            visitor.send(visitor.request("/events"))
            assert visitor.read_head()[0] == 200
            chunks = visitor.chunks()
            assert next(chunks) == b"data: 1\n\n"
            go.set()
            assert next(chunks) == b"data: 2\n\n"
