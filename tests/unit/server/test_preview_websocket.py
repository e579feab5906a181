"""WebSocket through a published port against the same direct: what a strict peer says to good and bad frames is the
same to the byte. The cases are those of the usual conformance suites: framing, fragments, control frames, reserved bits
and opcodes, UTF-8, close codes, limits, compression.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import websockets.sync.client
import websockets.sync.server
from preview_rig import WAIT_S, Site, public
from server_harness import Harness
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Subprotocol

MASK = b"\x01\x02\x03\x04"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
KEY = base64.b64encode(bytes(16)).decode()


def frame(
    opcode: int, data: bytes = b"", *, last: bool = True, bits: int = 0, masked: bool = True, wide: int = 0
) -> bytes:
    """`wide`: 126 or 127 takes that form of the length, needed or not."""
    head = bytes([(0x80 if last else 0) | bits << 4 | opcode])
    form = wide or (len(data) if len(data) < 126 else 126 if len(data) < 65536 else 127)
    head += bytes([(0x80 if masked else 0) | form])
    head += len(data).to_bytes({126: 2, 127: 8}.get(form, 0), "big") if form > 125 else b""
    if not masked:
        return head + data
    mask = (MASK * (len(data) // 4 + 1))[: len(data)]
    masking = int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")
    return head + MASK + masking.to_bytes(len(data), "big")


def close(code: int | None, reason: bytes = b"") -> bytes:
    return frame(CLOSE, b"" if code is None else struct.pack("!H", code) + reason)


BYE = close(1000)
SIZES = (0, 1, 125, 126, 127, 128, 65535, 65536, 65537, 1_000_000)
UTF8 = "κόσμε \U0010ffff \ud7ff".encode()
BAD_UTF8 = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xce\xba\xe1\xbd", b"\xf8\x88\x80\x80\x80")
GOOD = {
    **{f"text of {size}": frame(TEXT, b"*" * size) for size in SIZES},
    "lengths that are longer than needed": frame(TEXT, b"x", wide=126) + frame(TEXT, b"x" * 126, wide=127),
    **{f"binary of {size}": frame(BINARY, b"\xfe" * size) for size in SIZES},
    "text": frame(TEXT, UTF8),
    **{f"ping of {size}": frame(PING, b"p" * size) for size in (0, 1, 125)},
    "ten pings": b"".join(frame(PING, b"%d" % n) for n in range(10)),
    "unasked pong": frame(PONG, b"?") + frame(PING, b"!"),
    "fragments": frame(TEXT, b"a", last=False) + frame(0, b"b", last=False) + frame(0, b"c"),
    "empty fragments": frame(TEXT, last=False) + frame(0, last=False) + frame(0),
    "a ping between fragments": frame(BINARY, b"a", last=False) + frame(PING, b"in") + frame(0, b"b"),
    "a character over fragments": frame(TEXT, UTF8[:3], last=False) + frame(0, UTF8[3:]),
    "many messages": b"".join(frame(TEXT, b"%d" % n) for n in range(300)),
}
BAD = {
    **{f"reserved bits {bits}": frame(TEXT, b"x", bits=bits) for bits in range(1, 8)},
    **{f"opcode {opcode}": frame(opcode, b"x") for opcode in (3, 4, 7, 11, 15)},
    **{f"bad text {text!r}": frame(TEXT, text) for text in BAD_UTF8},
    "bad text in fragments": frame(TEXT, b"\xce", last=False) + frame(0, b"\xff"),
    "a long ping": frame(PING, b"x" * 126),
    "a ping in fragments": frame(PING, b"x", last=False),
    "a close in fragments": frame(CLOSE, b"", last=False),
    "a continuation of nothing": frame(0, b"x"),
    "a new message within one": frame(TEXT, b"x", last=False) + frame(TEXT, b"y"),
    "not masked": frame(TEXT, b"x", masked=False),
    **{f"close {code}": close(code) for code in (1000, 1001, 1002, 1003, 1007, 1011, 3000, 3999, 4000, 4999)},
    **{f"close {code}": close(code) for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)},
    "close without a code": close(None),
    "close of one byte": frame(CLOSE, b"\x03"),
    "close with a reason": close(1000, b"r" * 123),
    "close with a long reason": close(1000, b"r" * 124),
    "close with a bad reason": close(1000, b"\xff"),
    "a ping after the close": close(1000) + frame(PING, b"late"),
}
# Its echo says that those of all messages before it are under way: a close behind them would race with them.
MARK = b"all said"
CASES = {name: sent + frame(TEXT, MARK) for name, sent in GOOD.items()} | BAD


@pytest.fixture(scope="module")
def peer() -> Iterator[int]:
    """A strict echo; its port."""

    def echo(connection: websockets.sync.server.ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with websockets.sync.server.serve(
        echo, "127.0.0.1", 0, max_size=None, close_timeout=5, ping_interval=None, server_header=None,
        subprotocols=[Subprotocol("second")],
    ) as server:  # fmt: skip
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield int(server.socket.getsockname()[1])
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def site(harness: Harness, api: httpx2.Client, peer: int) -> Site:
    return public(harness, api, peer)


def said_to(port: int, host: str, sent: bytes, *, at_once: int = 1 << 20) -> bytes:
    """All that the peer says after the handshake, up to its end; the echo of a MARK is answered with a close."""
    request = (
        f"GET /echo HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: second\r\n"
        "Origin: https://app.test\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection.makefile("rb") as file:
            connection.sendall(request.encode())
            assert file.readline().startswith(b"HTTP/1.1 101 ")
            while file.readline() != b"\r\n":
                pass
            sending = threading.Thread(target=send, args=(connection, sent, at_once))
            sending.start()
            said, mark = b"", frame(TEXT, MARK, masked=False)
            try:
                while more := file.read1():
                    said += more
                    if said.endswith(mark):
                        sending.join()
                        connection.sendall(BYE)
                return said
            finally:
                sending.join()


def send(connection: socket.socket, data: bytes, at_once: int) -> None:
    for start in range(0, len(data), at_once):
        connection.sendall(data[start : start + at_once])


@pytest.mark.parametrize("name", CASES)
def test_as_if_it_were_direct(harness: Harness, site: Site, peer: int, name: str) -> None:
    direct = said_to(peer, site.host, CASES[name])
    assert direct, "a peer that says nothing proves nothing"
    assert said_to(harness.previews_port, site.host, CASES[name]) == direct


def test_byte_by_byte(harness: Harness, site: Site, peer: int) -> None:
    sent = frame(TEXT, UTF8, last=False) + frame(PING, b"in") + frame(0, b"b" * 126) + frame(TEXT, MARK)
    direct = said_to(peer, site.host, sent)
    assert frame(PONG, b"in", masked=False) in direct
    assert said_to(harness.previews_port, site.host, sent, at_once=1) == direct


@pytest.mark.parametrize("compression", [None, "deflate"])
def test_big_messages_and_protocols(harness: Harness, site: Site, peer: int, compression: str | None) -> None:
    noise = os.urandom(8_000_000)
    connection = websockets.sync.client.connect(
        f"ws://{site.host}/echo", sock=socket.create_connection(("127.0.0.1", harness.previews_port)),
        compression=compression, max_size=None, subprotocols=[Subprotocol("first"), Subprotocol("second")],
        proxy=None,
    )  # fmt: skip
    with connection:
        assert connection.subprotocol == "second"
        offered = connection.response.headers.get("Sec-WebSocket-Extensions", "")
        assert ("permessage-deflate" in offered) == (compression is not None)
        for message in (noise, "text " * 500_000, b"", "ä"):
            connection.send(message)
            assert connection.recv(WAIT_S) == message
        assert connection.ping(b"are you there").wait(WAIT_S)
        connection.close(4321, "enough")
    assert (connection.close_code, connection.close_reason) == (4321, "enough")


def test_a_private_port_needs_the_token_and_what_is_open_is_cut_with_it(
    harness: Harness, site: Site, peer: int
) -> None:
    private = Site(harness, site.api, peer)
    url = f"ws://{private.host}/echo"

    def dial(headers: dict[str, str]) -> websockets.sync.client.ClientConnection:
        sock = socket.create_connection(("127.0.0.1", harness.previews_port))
        options: Any = {"subprotocols": [Subprotocol("second")], "proxy": None}
        return websockets.sync.client.connect(url, sock=sock, additional_headers=headers, **options)

    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        dial({})
    assert refused.value.response.status_code == 401
    with dial({"X-Bellglass-Token": private.token()["token"]}) as connection:
        connection.send("x")
        assert connection.recv(WAIT_S) == "x"
        assert private.api.delete(private.path).status_code == 204
        with pytest.raises(ConnectionClosedError):
            connection.recv(WAIT_S)
