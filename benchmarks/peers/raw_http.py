"""One kept-alive HTTP/1.1 connection that sends bytes made before and reads chunked answers, and nothing else: what two
APIs of one server cost is compared without the weight of any client."""

from __future__ import annotations

import asyncio


class Connection:
    """`await Connection.open(address)`; requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer, whole. Raises AssertionError for a status other than 2xx."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, *lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines if line)
        if headers.get(b"transfer-encoding") == b"chunked":
            body = await self._chunks()
        else:
            body = await self._reader.readexactly(int(headers.get(b"content-length", b"0")))
        assert status.split()[1].startswith(b"2"), head + body
        return body

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self._reader.readline(), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return b"".join(parts)

    def close(self) -> None:
        self._writer.close()


def request(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
