"""Published ports for tests: a program that says what it is told, and a visitor that sends bytes as they are."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
from server_harness import Harness, make

WAIT_S = 15.0
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Serve = Callable[[socket.socket, bytes], None]


class Program:
    """Listens on a port of this host, where the peer's sandboxes are. Each connection is one call of `serve(connection,
    head)` in a thread; the heads that came are kept."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.heads: list[bytes] = []
        self.tls = tls
        self.serve = serve
        self.listener = socket.create_server(("127.0.0.1", port), backlog=100)
        self.port = int(self.listener.getsockname()[1])
        self.threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._one, args=(connection,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _one(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_S)
        with contextlib.ExitStack() as undo, contextlib.suppress(OSError):
            undo.callback(connection.close)
            if self.tls is not None:
                connection = undo.enter_context(self.tls.wrap_socket(connection, server_side=True))
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            self.heads.append(head)
            self.serve(connection, head)

    def close(self) -> None:
        self.listener.close()


def echo(connection: socket.socket, head: bytes) -> None:
    """Answers with the head that came, as it came."""
    head = head.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


def silent(connection: socket.socket, head: bytes) -> None:
    """Takes everything and says nothing."""
    while connection.recv(65536):
        continue


def answer(text: bytes) -> Serve:
    return lambda connection, head: connection.sendall(text)


@contextlib.contextmanager
def program(serve: Serve = echo, tls: ssl.SSLContext | None = None) -> Iterator[Program]:
    made = Program(serve, tls)
    try:
        yield made
    finally:
        made.close()


class Site:
    """A published port and how to visit it."""

    def __init__(self, harness: Harness, api: httpx2.Client, port: int, **options: Any) -> None:
        self.harness = harness
        self.api = api
        self.port = port
        self.sandbox_id = str(make(api)["id"])
        self.path = f"/v1/sandboxes/{self.sandbox_id}/ports/{port}"
        self.host = f"{self.sandbox_id}-{port}.localhost"
        self.record = self.publish(**options)

    def publish(self, **options: Any) -> dict[str, Any]:
        answered = self.api.put(self.path, json=options)
        assert answered.status_code == 200, answered.text
        return dict(answered.json())

    def token(self, **options: Any) -> dict[str, Any]:
        answered = self.api.post(self.path + "/tokens", json=options)
        assert answered.status_code == 201, answered.text
        return dict(answered.json())

    def visitor(self) -> Visitor:
        return Visitor(self.harness.previews_port, self.host)

    def get(self, target: str = "/", *headers: str, method: str = "GET", host: str | None = None) -> Answer:
        with self.visitor() as visitor:
            return visitor.ask(target, *headers, method=method, host=host)


def public(harness: Harness, api: httpx2.Client, port: int, **options: Any) -> Site:
    return Site(harness, api, port, visibility="public", **options)


class Answer:
    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


class Visitor:
    """One connection, spoken by hand; `connection` is taken where it is there already."""

    def __init__(
        self, port: int, host: str, address: str = "127.0.0.1", connection: socket.socket | None = None
    ) -> None:
        self.host = host
        self.connection = connection or socket.create_connection((address, port), timeout=WAIT_S)
        self.file = self.connection.makefile("rb")

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.connection.close()

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def request(self, target: str, *headers: str, method: str = "GET", host: str | None = None) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host or self.host}", *headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def ask(self, target: str = "/", *headers: str, method: str = "GET", host: str | None = None) -> Answer:
        self.send(self.request(target, *headers, method=method, host=host))
        return self.read(has_body=method != "HEAD")

    def read(self, *, has_body: bool = True) -> Answer:
        """The next answer. Raises EOFError when the other side hung up."""
        status, headers = self.read_head()
        known = {name.lower(): value for name, value in headers}
        if not has_body or status in (204, 304) or status < 200:
            body = b""
        elif known.get("transfer-encoding") == "chunked":
            body = b"".join(self.chunks())
        elif "content-length" in known:
            body = self.file.read(int(known["content-length"]))
            if len(body) < int(known["content-length"]):
                raise EOFError
        else:
            body = self.file.read()
        return Answer(status, headers, body)

    def read_head(self) -> tuple[int, list[tuple[str, str]]]:
        first = self.file.readline()
        if not first:
            raise EOFError
        headers = []
        while line := self.file.readline().decode("latin-1").rstrip("\r\n"):
            name, _, value = line.partition(": ")
            headers.append((name, value))
        return int(first.split()[1]), headers

    def chunks(self) -> Iterator[bytes]:
        while size := int(self.file.readline().split(b";")[0], 16):
            yield self.file.read(size)
            assert self.file.readline() == b"\r\n"
        self.trailers = []
        while line := self.file.readline().rstrip(b"\r\n"):
            self.trailers.append(line)

    def ended(self) -> bool:
        """Whether the other side ends the connection, and says nothing more."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True
