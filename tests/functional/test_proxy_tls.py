"""TLS through the proxy: the name in the hello must be the one that was dialled."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass.testing.egress import WORLD, Rig, refused, until


class TlsServer:
    """Echoes, in a thread a connection. `curve`: one that clients send no key share of."""

    def __init__(self, rig: Rig, address: str, port: int, certificate: Path, *, curve: str | None = None) -> None:
        self.names: list[str | None] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._context.set_alpn_protocols(["http/1.1"])
        self._context.sni_callback = lambda sock, name, context: self.names.append(name)
        if curve is not None:
            self._context.set_ecdh_curve(curve)
        self._listener = rig.listen(address, port)
        threading.Thread(target=self._accept).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,)).start()

    def _serve(self, sock: socket.socket) -> None:
        # wrap_socket leaves a socket open that is reset already, or whose handshake fails inside it.
        try:
            sock.recv(1, socket.MSG_PEEK)
        except OSError:
            sock.close()
            return
        tls = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with tls, contextlib.suppress(OSError):
            tls.do_handshake()
            while data := tls.recv(65536):
                tls.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an authority of its own, for all names of these tests."""
    path = tmp_path_factory.mktemp("tls") / "all.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=test", "-addext", "subjectAltName=DNS:a.test,DNS:b.test", "-keyout", path,
         "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as running:
        running.dns.zone.update({"a.test": [WORLD + "10"], "b.test": [WORLD + "11"]})
        running.attach("sb1", *RULES)
        yield running


RULES = ({"host": "a.test", "ports": [443, 8443]}, {"host": "b.test", "ports": [443]})


@pytest.fixture
def server(rig: Rig, certificate: Path) -> Iterator[TlsServer]:
    """At a.test:443."""
    running = TlsServer(rig, WORLD + "10", 443, certificate)
    yield running
    running.close()


def context(certificate: Path) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=f"{certificate}.crt")
    made.check_hostname = False
    return made


def echoes(rig: Rig, certificate: Path, sni: str | None, port: int = 443, made: ssl.SSLContext | None = None) -> None:
    made = made or context(certificate)
    with rig.sandboxes["sb1"].dial("a.test", port) as sock, made.wrap_socket(sock, server_hostname=sni) as tls:
        tls.sendall(b"hello")
        assert tls.recv(100) == b"hello"


def hello(sni: str | None) -> bytes:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        made.wrap_bio(incoming, outgoing, server_hostname=sni).do_handshake()
    return outgoing.read()


def test_the_name_that_was_dialled_passes(rig: Rig, certificate: Path, server: TlsServer) -> None:
    echoes(rig, certificate, "a.test")
    echoes(rig, certificate, "A.Test")
    older = context(certificate)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    echoes(rig, certificate, "a.test", made=older)
    assert server.names == ["a.test", "A.Test", "a.test"]


@pytest.mark.parametrize(
    ("sni", "reason"), [("b.test", "sni_mismatch"), ("evil.test", "sni_mismatch"), (None, "no_sni")]
)
def test_another_name_or_none_is_refused(
    rig: Rig, certificate: Path, server: TlsServer, sni: str | None, reason: str
) -> None:
    echoes(rig, certificate, "a.test")
    asked = len(rig.dns.asked)
    with refused(rig, reason) as events:
        assert rig.sandboxes["sb1"].is_reset("a.test", 443, hello(sni))
    assert events[0]["host"] == (sni or "a.test")
    assert server.names == ["a.test"] and len(rig.dns.asked) == asked, "the server was dialled"


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"SSH-2.0-x\r\n", b"\x00" * 10, b"\x16\x03\x00\x00\x05hello",
     b"\x80\x2e\x01\x03\x01" + bytes(50)],
)  # fmt: skip
def test_at_443_there_is_tls_alone(rig: Rig, certificate: Path, server: TlsServer, data: bytes) -> None:
    echoes(rig, certificate, "a.test")
    with refused(rig, "bad_hello"):
        assert rig.sandboxes["sb1"].is_reset("a.test", 443, data)
    assert server.names == ["a.test"]


def test_a_hello_byte_by_byte_and_one_that_never_ends(rig: Rig, certificate: Path, server: TlsServer) -> None:
    data = hello("a.test")
    with rig.sandboxes["sb1"].dial("a.test", 443) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n in range(len(data)):
            sock.send(data[n : n + 1])
        assert sock.recv(5)[:1] == b"\x16"
    assert server.names == ["a.test"]
    with refused(rig, "bad_hello"):
        assert rig.sandboxes["sb1"].is_reset("a.test", 443, data[:-1])  # after 5 s
    assert server.names == ["a.test"]


def test_at_another_port_tls_is_seen_by_its_first_byte(rig: Rig, certificate: Path) -> None:
    server = TlsServer(rig, WORLD + "10", 8443, certificate)
    try:
        echoes(rig, certificate, "a.test", 8443)
        with refused(rig, "sni_mismatch"):
            assert rig.sandboxes["sb1"].is_reset("a.test", 8443, hello("b.test"))
        with refused(rig, "no_sni"):
            assert rig.sandboxes["sb1"].is_reset("a.test", 8443, hello(None))
        assert server.names == ["a.test"]
    finally:
        server.close()


def test_the_second_hello_is_read_as_well(rig: Rig, certificate: Path) -> None:
    """A server that wants another curve asks for a second hello: of an honest client it passes; with another name in
    it, never."""
    server = TlsServer(rig, WORLD + "10", 8443, certificate, curve="secp521r1")
    try:
        echoes(rig, certificate, "a.test", 8443)
        asked_again = server.names
        assert set(asked_again) == {"a.test"}
        rig.events.clear()
        assert second_hello(rig, CHANGE + hello("b.test")) == "sni_mismatch"
        # Servers go on behind a warning: what follows it is still the second hello.
        for between in (WARNING, WARNING + CHANGE, CHANGE + WARNING * 2):
            assert second_hello(rig, between + hello("b.test")) == "sni_mismatch"
        # Some pass over records of kinds that they don't know.
        assert second_hello(rig, HEARTBEAT + hello("b.test")) == "bad_hello"
        assert "b.test" not in server.names
    finally:
        server.close()


CHANGE, WARNING = b"\x14\x03\x03\0\1\1", b"\x15\x03\x03\0\2\1\x5a"  # the alert user_canceled
HEARTBEAT = b"\x18\x03\x03\0\3\1\0\0"


def second_hello(rig: Rig, data: bytes) -> str:
    """Why the connection was cut that sent these records where the server had asked for a second hello."""
    rig.events.clear()
    with rig.sandboxes["sb1"].dial("a.test", 8443) as sock:
        sock.sendall(hello("a.test"))
        assert sock.recv(6)[5] == 2  # the server's hello, which wants another one
        with pytest.raises(ConnectionResetError):
            sock.sendall(data)
            while sock.recv(65536):
                pass
    until(lambda: len(rig.events) == 1)
    return str(rig.events[0]["reason"])


def test_the_second_hello_is_read_behind_early_data(rig: Rig) -> None:
    """No library here sends early data, so this server reads bytes and the client writes records."""
    first, data, second = early(hello("a.test")), b"\x17\x03\x03\0\5early", hello("a.test")
    with rig.listen(WORLD + "10", 8443) as listener:
        listener.settimeout(20)
        for begins, ends, passes in ((first, second, True), (first, hello("b.test"), False)):
            rig.events.clear()
            with rig.sandboxes["sb1"].dial("a.test", 8443) as sock:
                sock.sendall(begins + data * 3)
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(20)
                    read(peer, len(begins + data * 3))
                    sock.sendall(ends)
                    if passes:
                        assert read(peer, len(ends)) == ends
                    else:
                        with pytest.raises(ConnectionResetError):
                            peer.recv(1)
                        until(lambda: [event["reason"] for event in rig.events] == ["sni_mismatch"])


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


def early(data: bytes) -> bytes:
    """The same hello with an early_data extension, which has no content, in front of its others."""
    body = data[9:]
    at = 34 + 1 + body[34]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    extensions = b"\0\x2a\0\0" + body[at + 2 :]
    body = body[:at] + len(extensions).to_bytes(2, "big") + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return data[:3] + len(message).to_bytes(2, "big") + message


def test_open_and_addresses_have_no_name_to_equal(rig: Rig, certificate: Path, server: TlsServer) -> None:
    try:
        rig.policy("sb1", mode="open")
        echoes(rig, certificate, "b.test")
        echoes(rig, certificate, None)
    finally:
        rig.policy("sb1", *RULES)
    with refused(rig, "no_sni"):
        assert rig.sandboxes["sb1"].is_reset("a.test", 443, hello(None))
