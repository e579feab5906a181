"""The same bytes sent to a program and through its published port: it reads the same, and so does the visitor.

Both are read by a parser that is not ours (h11). What a proxy has to change is left out: Connection, X-Forwarded-*, and
the framing of answers that end with their connection.
"""

from __future__ import annotations

import gzip
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import h11
import httpx2
import pytest
from preview_rig import WAIT_S, public
from server_harness import Harness

HOPS = {b"connection", b"keep-alive", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"}
PACKED = gzip.compress(b"packed once" * 1000, mtime=0)
NOISE = bytes(range(256)) * 40
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"


def sized(head: bytes, body: bytes) -> bytes:
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


TARGETS = [
    "/a%2Fb?x=%20", "/%C3%A4%2e%2E/../b", "//a//b/", "/a;v=1/b?x;y", "/?", "/?&&a=&=b&a", "/a?b?c=/d",
    "/a%00b%0d%0aX:1",
    "/a+b?c+d=%2B", "/~!$&'()*,=:@", "/a|b[]{}^`\"<>", "/" + "long/" * 1500, "/?x=http://other.test/&token=a%26b",
    "/a?bellglass_token=1&_bellglass=2",
]  # fmt: skip
REQUESTS = {
    **{f"GET {target[:40]}": (f"GET {target} HTTP/1.1\r\nHost: HOST\r\n\r\n".encode(), OK) for target in TARGETS},
    "delete with a body": (sized(b"DELETE /x HTTP/1.1\r\nHost: HOST", NOISE), OK),
    "get with a body": (sized(b"GET /x HTTP/1.1\r\nHost: HOST", b"query"), OK),
    "post of nothing": (sized(b"POST /x HTTP/1.1\r\nHost: HOST", b""), OK),
    "post without a length": (b"POST /x HTTP/1.1\r\nHost: HOST\r\n\r\n", OK),
    "a packed body": (sized(b"PUT / HTTP/1.1\r\nHost: HOST\r\nContent-Encoding: gzip", PACKED), OK),
    "chunks and trailers": (
        b"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"3\r\nabc\r\n00000A;q=1\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n",
        CHUNKED + b"5;a=b\r\nparts\r\n1\r\n!\r\n0\r\nX-Sum: 2\r\n\r\n",
    ),
    "odd methods": (b"PROPFIND /dav HTTP/1.1\r\nHost: HOST\r\nDepth: 1\r\n\r\n", OK),
    "options": (b"OPTIONS /x HTTP/1.1\r\nHost: HOST\r\nOrigin: https://a.test\r\n\r\n", b"HTTP/1.1 204 \r\n\r\n"),
    "odd headers": (
        b"GET / HTTP/1.1\r\nhOsT: HOST\r\nX-Empty:\r\nX-A: 1\r\nx-a:2\r\nX-Tab: a\tb\r\nX-Latin: \xe4\r\n"
        b"Cookie: a=1; b=\"2;3\"; c\r\nCookie: =x; d=bellglass\r\nAuthorization: Basic eDp5\r\n\r\n",
        OK,
    ),
    "a hundred headers": (
        b"GET / HTTP/1.1\r\nHost: HOST\r\n" + b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(90)) + b"\r\n", OK,
    ),
    "range": (
        b"GET / HTTP/1.1\r\nHost: HOST\r\nRange: bytes=0-1\r\nIf-Range: \"x\"\r\n\r\n",
        sized(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/9", b"ab"),
    ),
}  # fmt: skip
GET = b"GET / HTTP/1.1\r\nHost: HOST\r\n\r\n"
ANSWERS = {
    "absolute redirect": sized(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:8000/there?a=%2F", b""),
    "relative redirect": sized(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: ../b;c", b"moved"),
    "no content": b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n",
    "not modified": b'HTTP/1.1 304 Not Modified\r\nETag: W/"x"\r\nContent-Length: 1000\r\n\r\n',
    "packed": sized(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nVary: Accept-Encoding", PACKED),
    "packed in chunks": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n0\r\n\r\n" % (len(PACKED), PACKED),
    "any bytes": sized(b"HTTP/1.1 200 Fine \xe4\r\nContent-Type: application/octet-stream", NOISE),
    "cookies": sized(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Domain=app.test; Path=/x\r\nset-cookie: b=2; Secure; HttpOnly\r\n"
        b"Set-Cookie: c=; Max-Age=0", b"",
    ),
    "policies": sized(
        b"HTTP/1.1 200 OK\r\nX-Frame-Options: DENY\r\nContent-Security-Policy: default-src 'none'\r\n"
        b"Strict-Transport-Security: max-age=1\r\nReferrer-Policy: unsafe-url\r\nServer: theirs\r\nDate: never", b"x",
    ),
    "events": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n: ping\n\ndata: 2\r\n\r\n",
    "old": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nup to the end",
    "no reason": b"HTTP/1.1 599\r\nContent-Length: 2\r\n\r\nno",
    "failed": sized(b"HTTP/1.1 500 Oh No\r\nRetry-After: 5\r\nWWW-Authenticate: Basic realm=\"theirs\"", b"trace"),
    "unauthorized": sized(b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Digest a", b"theirs"),
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" + OK,
}  # fmt: skip
CASES = {
    **REQUESTS,
    **{name: (GET, said) for name, said in ANSWERS.items()},
    "head": (GET.replace(b"GET", b"HEAD"), b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
    "head of chunks": (GET.replace(b"GET", b"HEAD"), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "continue": (
        sized(b"PUT / HTTP/1.1\r\nHost: HOST\r\nExpect: 100-continue", b"wanted"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ),
    "old client": (b"GET /old HTTP/1.0\r\nHost: HOST\r\n\r\n", OK),
}  # fmt: skip


class Recorder:
    """A program that reads one request of each connection with h11, tells it to `read`, and says its bytes."""

    def __init__(self) -> None:
        self.says = b""
        self.read: queue.Queue[Any] = queue.Queue()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                connection.settimeout(WAIT_S)
                try:
                    found = events_of(connection, h11.Connection(h11.SERVER))
                except (OSError, h11.RemoteProtocolError) as error:
                    self.read.put(error)
                    continue
                if found is None:
                    return
                self.read.put(found)
                connection.sendall(self.says)

    def close(self) -> None:
        socket.create_connection(("127.0.0.1", self.port)).close()  # an empty connection ends it
        self.thread.join()
        self.listener.close()


def events_of(connection: socket.socket, parser: h11.Connection) -> list[Any] | None:
    """One message: its parts without what belongs to a hop. None if there was nothing at all."""
    found: list[Any] = []
    body = b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            data = connection.recv(65536)
            if not data and not found:
                return None
            parser.receive_data(data)
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return [*found, body, event.headers.raw_items()]
        elif isinstance(event, h11.Request):
            found += [event.method, event.target, end_to_end(event)]
        else:
            found += [event.status_code, event.reason, end_to_end(event)]


def end_to_end(event: Any) -> list[tuple[bytes, bytes]]:
    items = event.headers.raw_items()
    framed = any(name.lower() == b"content-length" for name, _ in items)
    left_out = HOPS if framed or isinstance(event, h11.Request) else HOPS | {b"transfer-encoding"}
    return sorted((name, value) for name, value in items if name.lower() not in left_out)


def ask(port: int, request: bytes) -> list[Any] | None:
    """What the visitor reads."""
    parser = h11.Connection(h11.CLIENT)
    method = request.partition(b" ")[0]
    # It has to know what was asked to know how long the answer is.
    parser.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    parser.send(h11.EndOfMessage())
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(request)
        return events_of(connection, parser)


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.close()


@pytest.fixture(scope="module")
def host(harness: Harness, api: httpx2.Client, recorder: Recorder) -> str:
    return public(harness, api, recorder.port).host


@pytest.mark.parametrize("name", CASES)
def test_as_if_it_were_direct(harness: Harness, recorder: Recorder, host: str, name: str) -> None:
    request, recorder.says = CASES[name]
    request = request.replace(b"HOST", host.encode())
    direct = ask(recorder.port, request), recorder.read.get(timeout=WAIT_S)
    assert isinstance(direct[1], list), direct[1]
    through = ask(harness.previews_port, request), recorder.read.get(timeout=WAIT_S)
    assert through[1] == direct[1], "what the program read"
    assert through[0] == direct[0], "what the visitor read"


def test_what_differs_is_seen(recorder: Recorder) -> None:
    recorder.says = OK
    request = GET.replace(b"HOST", b"x")
    heads = []
    for changed in (request, request.replace(b"GET /", b"GET /a"), request.replace(b"\r\n\r\n", b"\r\nX-A: b\r\n\r\n")):
        assert ask(recorder.port, changed) is not None
        heads.append(recorder.read.get(timeout=WAIT_S))
    assert heads[0] != heads[1] and heads[0] != heads[2]
    recorder.says = OK.replace(b"OK", b"Ok")
    answers = [ask(recorder.port, request)]
    recorder.says = OK
    answers.append(ask(recorder.port, request))
    assert answers[0] != answers[1]
