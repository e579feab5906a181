"""Published ports behind a proxy that the guide shows, with the guide's own configuration of it."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from preview_rig import WAIT_S, Site, Visitor
from server_harness import Harness, make_data_dir

from bellglass.datadir import cache_dir
from bellglass.supervise import preview_ca

GUIDE = Path(__file__).parents[3] / "docs/guides/previews.md"
TOOLS = cache_dir() / "tools"
DOMAIN = "preview.example.net"


class Front:
    """Bellglass as the guide sets it, and what a proxy in front of it needs: a port, a certificate, a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        made = preview_ca.make(make_data_dir(root / "data"), DOMAIN)
        self.ca, self.cert, self.key = made.ca, made.cert, made.key
        self.harness = Harness(
            root / "data",
            {
                "previews.domain": DOMAIN, "previews.scheme": "https", "previews.public_port": 443,
                "previews.trusted_proxies": "127.0.0.1",
            },
        ).start()  # fmt: skip
        self.port = free_port()

    def block(self, language: str, *replaced: tuple[str, str]) -> str:
        """The guide's block, but for names of files and ports."""
        (shown,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
        for ours, theirs in (("127.0.0.1:7380", f"127.0.0.1:{self.harness.previews_port}"), *replaced):
            assert shown.count(ours) == 1, ours
            shown = shown.replace(ours, theirs)
        return str(shown)

    @contextmanager
    def proxy(self, *command: str | Path, env: dict[str, str] | None = None) -> Iterator[None]:
        with (
            open(self.root / "log", "w") as log,
            subprocess.Popen(command, stdout=log, stderr=log, cwd=self.root, env=env) as proxy,
        ):
            try:
                self.harness.until(lambda: proxy.poll() is not None or listens(self.port))
                assert proxy.poll() is None, self.log()
                yield
            finally:
                proxy.terminate()

    def log(self) -> str:
        return (self.root / "log").read_text()

    def site(self, port: int, **options: object) -> Site:
        site = Site(self.harness, self.harness.project("p1"), port, **options)
        site.host = f"{site.sandbox_id}-{port}.{DOMAIN}"
        assert site.record["url"] == f"https://{site.host}"
        return site

    def tls(self, host: str, *protocols: str) -> ssl.SSLSocket:
        """A connection to the proxy, by name; `protocols` are offered."""
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols(protocols)
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        return context.wrap_socket(plain, server_hostname=host)

    def visitor(self, site: Site) -> Visitor:
        """Through the proxy."""
        return Visitor(self.port, site.host, connection=self.tls(site.host, "http/1.1"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def streaming(go: threading.Event) -> Callable[[socket.socket, bytes], None]:
    """A program with a WebSocket that echoes, uploads of ten bytes, which set `go` at the first five, and events, whose
    second waits for `go`."""

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

    return serve


def passes_streams(front: Front, site: Site, go: threading.Event) -> None:
    """WebSocket, upload and events of a `streaming` program go through piece by piece."""
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
