"""ClientHellos as attackers send them: that of a real TLS library, with other extensions and in other records."""

from __future__ import annotations

import ssl

ECH = 0xFE0D


def hello(name: str | None, *extensions: tuple[int, bytes], version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """OpenSSL's first flight in one record, with more extensions at its end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    body = outgoing.read()[9:]
    at = 34
    for size in (1, 2, 1):  # session id, cipher suites, compression methods
        at += size + int.from_bytes(body[at : at + size], "big")
    table = body[at + 2 :] + b"".join(number.to_bytes(2, "big") + vector(data, 2) for number, data in extensions)
    return record(b"\x01" + vector(body[:at] + vector(table, 2), 3))


def vector(data: bytes, size: int) -> bytes:
    return len(data).to_bytes(size, "big") + data


def record(message: bytes) -> bytes:
    return b"\x16\x03\x01" + vector(message, 2)


def server_name(*names: str) -> tuple[int, bytes]:
    """The extension, with as many names as are wanted."""
    return 0, vector(b"".join(b"\0" + vector(name.encode(), 2) for name in names), 2)


def in_records(hello: bytes, size: int) -> list[bytes]:
    """The same message in records of `size` bytes."""
    message = hello[5:]
    return [record(message[at : at + size]) for at in range(0, len(message), size)]


def encrypted(inner: str, size: int = 120) -> tuple[int, bytes]:
    """An extension that says there is another hello in it: what a server that has no such key ignores. (The inner name
    is in the clear here; nobody would see it in a real one.)"""
    payload = inner.encode().ljust(size, b"\0")
    return ECH, b"\0\0\1\0\1\x07" + vector(bytes(32), 2) + vector(payload, 2)
