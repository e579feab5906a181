"""Odd heads, and which of our readers take them: the proxy of sandboxes' connections, published ports (visits), the API
inside of sandboxes, the API. What one takes and another doesn't has a reason."""

from __future__ import annotations

import socket

import pytest
from server_harness import Harness, dial

from bellglass import http1
from bellglass.egress.proxy import head as proxy
from bellglass.errors import BellglassError
from bellglass.node.net import visit as inside
from bellglass.server.previews import head as ports
from bellglass.server.previews.origins import Origins

GET, POST, HOST = b"GET /v1/me HTTP/1.1\r\n", b"POST /v1/me HTTP/1.1\r\n", b"Host: {h}\r\n"
PORT = "sb" + "a" * 20 + "-8000.localhost"
ORIGINS = Origins("http", "localhost", 80, 80)


def get(*fields: bytes, first: bytes = GET, host: bytes = HOST) -> bytes:
    """{h} is the reader's own host."""
    return first + host + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def post(*fields: bytes) -> bytes:
    return get(*fields, first=POST)


ALL = {
    "plain": get(), "length": post(b"Content-Length: 5"), "empty value": get(b"X:"),
    "underscore": get(b"Content_Length: 5"), "8-bit": get(b"X: \xe9\xff"), "UTF-8": get("X: é".encode()),
    "tab in a value": get(b"X: a\tb"), "length 05": post(b"Content-Length: 05"),
    "length of 18 digits": post(b"Content-Length: " + b"9" * 18), "length in tabs": post(b"Content-Length:\t5\t"),
    "length of a GET": get(b"Content-Length: 5"), "TE: chunked": get(b"TE: chunked"),
    "fragment": get(first=b"GET /v1/me?a#b HTTP/1.1\r\n"), "HTTP/1.0": get(first=b"GET /v1/me HTTP/1.0\r\n"),
    "Host 80": get(host=b"Host: {h}:80\r\n"), "Host in upper case": get(host=b"Host: {H}\r\n"),
    "HOST": get(host=b"HOST: {h}\r\n"), "X-Forwarded-Host": get(b"X-Forwarded-Host: evil.test"),
    "Connection Authorization": get(b"Connection: Authorization"), "Connection empty": get(b"Connection: ,"),
    "Connection quoted": get(b'Connection: "Host"'), "Expect": post(b"Expect: 100-continue", b"Content-Length: 5"),
    "Expect of another": post(b"Expect: x", b"Content-Length: 5"),
    "Expect without a body": get(b"Expect: 100-continue"),
    "Expect in 1.0": get(b"Expect: 100-continue", b"Content-Length: 5", first=b"POST /v1/me HTTP/1.0\r\n"),
    "Keep-Alive": get(b"Keep-Alive: timeout=5"), "Proxy-Connection": get(b"Proxy-Connection: keep-alive"),
    "199 fields": get(*[b"X: a"] * 198), "200 fields": get(*[b"X: a"] * 199), "201 fields": get(*[b"X: a"] * 200),
    "255 fields": get(*[b"X: a"] * 254), "256 fields": get(*[b"X: a"] * 255),
    "Upgrade to x": get(b"Connection: Upgrade", b"Upgrade: x"),
}  # fmt: skip
NONE = {
    "bare LF after a field": get(b"X: a\nY: b"), "bare LF everywhere": b"GET /v1/me HTTP/1.1\nHost: {h}\n\n\r\n\r\n",
    "bare LF after the line": b"GET /v1/me HTTP/1.1\nHost: {h}\r\n\r\n",
    "bare LF then Host": b"GET /v1/me HTTP/1.1\r\nX: a\nHost: {h}\r\n\r\n", "bare CR in a value": get(b"X: a\rY: b"),
    "CR at a value's end": get(b"X: a\r"), "bare CR in the line": get(first=b"GET /v1/me HTTP/1.1\r\r\n"),
    "LF CR": get(b"X: a\n\rY: b"), "end LF": b"GET /v1/me HTTP/1.1\r\nHost: {h}\r\n\n\r\n\r\n",
    "obs-fold": get(b"X: a\r\n b"), "obs-fold tab": get(b"X: a\r\n\tb"),
    "obs-fold of Host": get(host=b"Host:\r\n {h}\r\n"), "obs-fold of a length": post(b"Content-Length:\r\n 5"),
    "obs-fold of a coding": post(b"Transfer-Encoding:\r\n chunked"),
    "obs-fold of the first": GET + b" X: a\r\n" + HOST + b"\r\n", "space before colon": get(b"X : a"),
    "tab before colon": get(b"X\t: a"), "space before colon of a length": post(b"Content-Length : 5"),
    "space before colon of a coding": post(b"Transfer-Encoding : chunked"),
    "space before colon of Host": get(host=b"Host : {h}\r\n"), "empty name": get(b": a"), "no colon": get(b"X"),
    "name with a space": get(b"X Y: a"), "name 8-bit": get(b"X\xe9: a"), "name NUL": get(b"X\0: a"),
    "name with /": get(b"X/Y: a"), "name with (": get(b"X(Y: a"), "NUL": get(b"X: \0"),
    "NUL in a length": post(b"Content-Length: 5\0"), "DEL": get(b"X: \x7f"), "control": get(b"X: \x01"),
    "VT": get(b"X: \x0ba"), "lengths alike": post(b"Content-Length: 5", b"Content-Length: 5"),
    "lengths differ": post(b"Content-Length: 5", b"Content-Length: 6"),
    "list of lengths": post(b"Content-Length: 5, 5"), "length +5": post(b"Content-Length: +5"),
    "length -5": post(b"Content-Length: -5"), "length 0x5": post(b"Content-Length: 0x5"),
    "length 5.0": post(b"Content-Length: 5.0"), "length 5 5": post(b"Content-Length: 5 5"),
    "length 1_0": post(b"Content-Length: 1_0"), "length empty": post(b"Content-Length:"),
    "length of another script": post("Content-Length: \u0665".encode()),
    "length of 19 digits": post(b"Content-Length: " + b"9" * 19),
    "length 2^64+5": post(b"Content-Length: 18446744073709551621"),
    "length of 100 zeros": post(b"Content-Length: " + b"0" * 100 + b"5"),
    "length 0 twice": get(b"Content-Length: 0", b"Content-Length: 0"),
    "coding identity": post(b"Transfer-Encoding: identity"), "coding gzip": post(b"Transfer-Encoding: gzip"),
    "coding gzip, chunked": post(b"Transfer-Encoding: gzip, chunked"),
    "coding chunked, gzip": post(b"Transfer-Encoding: chunked, gzip"),
    "coding chunked, chunked": post(b"Transfer-Encoding: chunked, chunked"),
    "codings chunked twice": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "codings chunked and identity": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    "coding xchunked": post(b"Transfer-Encoding: xchunked"),
    "coding chunked;q": post(b"Transfer-Encoding: chunked;q=1"),
    "coding , chunked": post(b"Transfer-Encoding: , chunked"),
    "coding quoted": post(b'Transfer-Encoding: "chunked"'), "coding VT": post(b"Transfer-Encoding: \x0bchunked"),
    "coding empty": post(b"Transfer-Encoding:"),
    "CL and TE": post(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "TE and CL": post(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "CL 0 and TE": post(b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    "CL and identity": post(b"Content-Length: 5", b"Transfer-Encoding: identity"),
    "chunks in 1.0": get(b"Transfer-Encoding: chunked", first=b"POST /v1/me HTTP/1.0\r\n"),
    "CL and TE in 1.0": get(b"Content-Length: 5", b"Transfer-Encoding: chunked", first=b"POST /v1/me HTTP/1.0\r\n"),
    "authority-form": get(first=b"GET {h}:80 HTTP/1.1\r\n"), "CONNECT": get(first=b"CONNECT {h}:80 HTTP/1.1\r\n"),
    "CONNECT of a path": get(first=b"CONNECT /v1/me HTTP/1.1\r\n"),
    "connect of a path": get(first=b"connect /v1/me HTTP/1.1\r\n"),
    "PRI of a path": get(first=b"PRI /v1/me HTTP/1.1\r\n"), "method with @": get(first=b"G@T /v1/me HTTP/1.1\r\n"),
    "target NUL": get(first=b"GET /v1/me?\0 HTTP/1.1\r\n"),
    "target backslash": get(first=b"GET \\v1\\me HTTP/1.1\r\n"), "no slash": get(first=b"GET v1/me HTTP/1.1\r\n"),
    "tabs": get(first=b"GET\t/v1/me\tHTTP/1.1\r\n"),
    "space at the line's end": get(first=b"GET /v1/me HTTP/1.1 \r\n"),
    "space in front": get(first=b" GET /v1/me HTTP/1.1\r\n"),
    "space in the target": get(first=b"GET /v1/me a HTTP/1.1\r\n"), "HTTP/0.9": b"GET /v1/me\r\n\r\n",
    "HTTP/0.9 told": get(first=b"GET /v1/me HTTP/0.9\r\n"), "0.9 with fields": get(first=b"GET /v1/me\r\n"),
    "HTTP/1.2": get(first=b"GET /v1/me HTTP/1.2\r\n"), "HTTP/2.0": get(first=b"GET /v1/me HTTP/2.0\r\n"),
    "HTTP/1.10": get(first=b"GET /v1/me HTTP/1.10\r\n"), "HTTP/01.1": get(first=b"GET /v1/me HTTP/01.1\r\n"),
    "http/1.1": get(first=b"GET /v1/me http/1.1\r\n"), "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\x05hello\r\n\r\n", "no Host": get(host=b""), "Host twice": get(host=HOST * 2),
    "Host and another": get(host=HOST + b"Host: evil.test\r\n"),
    "another and Host": get(host=b"Host: evil.test\r\n" + HOST), "Host NUL": get(host=b"Host: {h}\0\r\n"),
    "Connection Host": get(b"Connection: close, Host"),
    "Connection Content-Length": post(b"Connection: content-length", b"Content-Length: 5"),
    "Connection Transfer-Encoding": post(b"Connection: Transfer-Encoding", b"Transfer-Encoding: chunked"),
    "257 fields": get(*[b"X: a"] * 256), "70,000 bytes": get(b"X: " + b"a" * 70000),
}  # fmt: skip
SOME = {
    "upgrades: the API's handshakes have more fields, and are WebSockets'": ("PVI", {
        "Upgrade websocket": get(b"Connection: Upgrade", b"Upgrade: websocket"),
        "Upgrade in 1.0": get(b"Connection: Upgrade", b"Upgrade: websocket", first=b"GET /v1/me HTTP/1.0\r\n"),
    }),
    "upgrades: published ports go on without it where there is a body": ("V", {
        "length with an upgrade": post(b"Connection: Upgrade", b"Upgrade: x", b"Content-Length: 5"),
        "chunks with an upgrade": post(b"Connection: Upgrade", b"Upgrade: x", b"Transfer-Encoding: chunked"),
    }),
    "chunks: all that a sandbox may send to the API inside is a small document, with its length": ("PVA", {
        "chunks": post(b"Transfer-Encoding: chunked"), "coding CHUNKED": post(b"Transfer-Encoding: CHUNKED"),
        "coding tab": post(b"Transfer-Encoding:\tchunked"),
        "Trailer: Host": post(b"Trailer: Host", b"Transfer-Encoding: chunked"),
    }),
    "size: heads of sandboxes to the API are held in memory": ("PVA", {
        "60,000 bytes": get(b"X: " + b"a" * 60000), "a name of 60,000": get(b"X" * 60000 + b": a"),
    }),
    "targets: clients write them so to what they take for a proxy, no published port": ("PIA", {
        "absolute": get(first=b"GET http://{h}/v1/me HTTP/1.1\r\n"),
    }),
    "targets: the API has none but paths of its own": ("P", {
        "absolute, no path": get(first=b"GET http://{h} HTTP/1.1\r\n"),
    }),
    "targets: programs have paths that the API has not": ("PVA", {
        "OPTIONS *": get(first=b"OPTIONS * HTTP/1.1\r\n"), "//": get(first=b"GET //evil.test/ HTTP/1.1\r\n"),
        "fragment in the path": get(first=b"GET /v1/me#b HTTP/1.1\r\n"),
    }),
    "targets: llhttp takes no more than ASCII": ("PV", {
        "target 8-bit": get(first=b"GET /v1/me?\xe9 HTTP/1.1\r\n"),
    }),
    "methods: a program's own; the API has seven": ("PV", {
        "lower-case method": get(first=b"get /v1/me HTTP/1.1\r\n"),
        "unknown method": get(first=b"BREW /v1/me HTTP/1.1\r\n"),
    }),
    "hosts: the API's has no meaning, whoever asks shows a key; a load balancer's check may have none": ("A", {
        "absolute of another": get(first=b"GET http://evil.test/v1/me HTTP/1.1\r\n"),
        "absolute https": get(first=b"GET https://{h}/v1/me HTTP/1.1\r\n"),
        "absolute with a user": get(first=b"GET http://u@{h}/v1/me HTTP/1.1\r\n"),
        "absolute, another Host": get(first=b"GET http://{h}/v1/me HTTP/1.1\r\n", host=b"Host: evil.test\r\n"),
        "HTTP/1.0 without Host": get(first=b"GET /v1/me HTTP/1.0\r\n", host=b""),
        "Host empty": get(host=b"Host:\r\n"), "Host 99999": get(host=b"Host: {h}:99999\r\n"),
        "Host with empty port": get(host=b"Host: {h}:\r\n"), "Host with a user": get(host=b"Host: u@{h}\r\n"),
        "Host with another user": get(host=b"Host: {h}@evil.test\r\n"), "Host IPv6": get(host=b"Host: [::1]\r\n"),
        "Host dot": get(host=b"Host: {h}.\r\n"), "Host list": get(host=b"Host: {h}, evil.test\r\n"),
        "Host with a path": get(host=b"Host: {h}/x\r\n"), "Host escaped": get(host=b"Host: {h}%00\r\n"),
        "Host 8-bit": get(host=b"Host: {h}\xe9\r\n"),
    }),
    "hosts: behind a proxy the port of a published name is that proxy's": ("VA", {
        "Host 81": get(host=b"Host: {h}:81\r\n"), "Host 080": get(host=b"Host: {h}:080\r\n"),
    }),
    "upgrades: published ports and the API go on without; the proxy sends what came, or nothing": ("VA", {
        "Upgrade h2c": get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"),
        "Upgrade h2c alone": get(b"Connection: Upgrade", b"Upgrade: h2c"),
        "Upgrade h2": get(b"Connection: Upgrade", b"Upgrade: h2"),
        "Upgrade HTTP/2.0": get(b"Connection: Upgrade", b"Upgrade: HTTP/2.0"),
        "Upgrade HTTP/3": get(b"Connection: Upgrade", b"Upgrade: HTTP/3"),
        "Upgrade TLS": get(b"Connection: Upgrade", b"Upgrade: TLS/1.0"),
        "Upgrade list": get(b"Connection: Upgrade", b"Upgrade: websocket, h2c"),
        "Upgrade twice": get(b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c"),
        "Upgrade without Connection": get(b"Upgrade: h2c"), "HTTP2-Settings": get(b"HTTP2-Settings: AAMAAABk"),
    }),
    "lines: llhttp's, the borders between requests are where all others see them": ("A", {
        "GET *": get(first=b"GET * HTTP/1.1\r\n"), "two spaces": get(first=b"GET  /v1/me HTTP/1.1\r\n"),
        "empty line in front": b"\r\n" + get(), "ICE/1.0": get(first=b"SOURCE /v1/me ICE/1.0\r\n"),
        "RTSP": get(first=b"OPTIONS /v1/me RTSP/1.0\r\n"),
    }),
}  # fmt: skip
"""Reason: who takes them (P proxy, V visits, I inside, A the API)."""
CASES = {name: ("PVIA", head) for name, head in ALL.items()} | {name: ("", head) for name, head in NONE.items()}
CASES |= {name: (who, head) for who, heads in SOME.values() for name, head in heads.items()}


def own(head: bytes, host: str) -> bytes:
    return head.replace(b"{h}", host.encode()).replace(b"{H}", host.upper().encode())


def by_proxy(head: bytes) -> int | None:
    """Of the body that it reads behind the head: its length; None for a refusal."""
    head = own(head, "a.test")
    try:
        return proxy.request(head, "a.test", 80).length if len(head) <= http1.MAX_HEAD_BYTES else None
    except http1.BadHead:
        return None


def by_ports(head: bytes) -> int | None:
    head = own(head, PORT)
    try:
        request = ports.parse_request(head)
        length = http1.request_length(request)
    except http1.BadHead:
        return None
    named = ORIGINS.parse((request.get(b"host") or b"").decode("latin-1"))
    return length if named is not None and len(head) <= http1.MAX_HEAD_BYTES else None


def by_inside(head: bytes) -> int | None:
    head = own(head, inside.HOST)
    try:
        call = inside.parse(head)
        inside.check(call)
    except BellglassError:
        return None
    return call.length if len(head) <= inside.MAX_HEAD_BYTES else None


def api_takes(harness: Harness, head: bytes) -> bool:
    with dial(harness) as connection:
        try:
            connection.sendall(own(head, "a.test"))
            connection.shutdown(socket.SHUT_WR)
            said = connection.recv(65536)
        except ConnectionResetError:
            said = b""
    assert said[:13] in (b"", *(b"HTTP/1.1 %d " % status for status in (400, 401, 404, 405))), said
    return said != b"" and not said.startswith(b"HTTP/1.1 400 ")


def test_the_table_has_every_head_once() -> None:
    assert len(CASES) == len(ALL) + len(NONE) + sum(len(heads) for _, heads in SOME.values())
    assert len({head for _, head in CASES.values()}) == len(CASES)


@pytest.mark.parametrize("name", CASES)
def test_who_takes_it(harness: Harness, name: str) -> None:
    who, head = CASES[name]
    read = {"P": by_proxy(head), "V": by_ports(head), "I": by_inside(head)}
    taken = "".join(letter for letter, length in read.items() if length is not None)
    assert taken + "A" * api_takes(harness, head) == who
    assert len({length for length in read.values() if length is not None}) <= 1, "one length, whoever reads it"
