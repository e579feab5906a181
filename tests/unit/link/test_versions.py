"""Server and node of different releases: HELLO decides, frames of unknown types are skipped by their length."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from bellglass.errors import NodeUnavailable, VersionMismatch
from bellglass.link import LinkClient, LinkServer
from bellglass.link.stream import FLAG_END, LinkType
from bellglass.wire.frames import FrameReader, encode

SECRET, INSTALLATION = "s" * 32, "abcdefgh"


def hello(**more: Any) -> bytes:
    said = {"protocol": 1, "role": "node", "version": "9.9", "installation": INSTALLATION, "secret": SECRET} | more
    return encode(LinkType.HELLO, 0, json.dumps(said).encode())


class RawPeer:
    """A listener that says one HELLO, keeps what it reads, and answers every OPEN."""

    def __init__(self, path: Path, first: bytes, answer: bytes = b"") -> None:
        self.path, self._first, self._answer = path, first, answer
        self.read: list[Any] = []

    async def __aenter__(self) -> RawPeer:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._first)
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    self.read.append(frame)
                    if frame.type == LinkType.OPEN:
                        writer.write(self._answer.replace(b"\xfe\xfe\xfe\xfe", frame.stream.to_bytes(4, "little")))
        except ConnectionResetError:
            pass
        writer.close()


async def dial(path: Path) -> LinkClient:
    return await LinkClient.connect(path, secret=SECRET, installation=INSTALLATION)


@pytest.mark.parametrize(
    "said", [{}, {"oldest_protocol": 1}, {"protocol": 3, "oldest_protocol": 1}, {"new_field": [1]}]
)
def test_a_node_that_shares_a_protocol_is_spoken_with(tmp_path, said) -> None:
    async def go() -> None:
        async with RawPeer(tmp_path / "s", hello(**said)):
            client = await dial(tmp_path / "s")
            assert client.peer["version"] == "9.9"
            await client.close()

    asyncio.run(go())


def test_a_node_of_another_protocol_is_told_apart_from_one_that_is_away(tmp_path) -> None:
    async def go() -> None:
        async with RawPeer(tmp_path / "s", hello(protocol=3, oldest_protocol=2)):
            with pytest.raises(VersionMismatch, match=r"the node \(version 9.9\) speaks protocol 2 to 3, .* speaks 1 "):
                await dial(tmp_path / "s")
        with pytest.raises(NodeUnavailable):
            await dial(tmp_path / "nobody")
        async with RawPeer(tmp_path / "t", hello(protocol="one")):
            with pytest.raises(NodeUnavailable):
                await dial(tmp_path / "t")

    asyncio.run(go())


async def echo(op: str, params: dict[str, Any], stream: Any) -> None:
    await stream.send_head({"result": {"body": len(await stream.read_all(10**6))}}, end=True)


def test_the_node_turns_a_server_of_another_protocol_away_and_says_its_own(tmp_path) -> None:
    def exchange(first: bytes) -> tuple[list[Any], bool]:
        """The frames that came, and whether the node hung up by itself."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(tmp_path / "n"))
            call = encode(LinkType.OPEN, 1, json.dumps({"op": "echo", "params": {}}).encode(), flags=FLAG_END)
            sock.sendall(first + call)
            reader, found = FrameReader(), []
            while len(found) < 2:
                try:
                    data = sock.recv(65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return found, True
                found += reader.feed(data)
            return found, False

    async def go() -> None:
        server = LinkServer(echo, secret=SECRET, installation=INSTALLATION)
        await server.listen(tmp_path / "n")
        try:
            found, hung_up = await asyncio.to_thread(exchange, hello())
            assert [frame.type for frame in found] == [LinkType.HELLO, LinkType.HEAD] and not hung_up
            found, hung_up = await asyncio.to_thread(exchange, hello(protocol=2))
            assert [frame.type for frame in found] == [LinkType.HELLO] and hung_up
            assert json.loads(found[0].payload)["protocol"] == 1
        finally:
            await server.close()

    asyncio.run(go())


def test_unknown_frames_are_skipped_by_both_sides(tmp_path) -> None:
    strange = b"".join(
        encode(kind, stream, b"new" * size) for kind in (0, 77, 255) for stream in (0, 1, 9) for size in (0, 7000)
    )

    async def listener() -> None:
        async def handler(op: str, params: dict[str, Any], stream: Any) -> None:
            await echo(op, params, stream)

        server = LinkServer(handler, secret=SECRET, installation=INSTALLATION)
        await server.listen(tmp_path / "n")
        try:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "n"))
            call = encode(LinkType.OPEN, 1, json.dumps({"op": "echo", "params": {}}).encode())
            writer.write(hello() + strange + call + strange + encode(LinkType.DATA, 1, b"four") + strange)
            writer.write(encode(LinkType.END, 1))
            frames, found = FrameReader(), []
            async with asyncio.timeout(5):
                while not any(frame.type == LinkType.HEAD for frame in found):
                    found += frames.feed(await reader.read(65536))
            head = next(frame for frame in found if frame.type == LinkType.HEAD)
            assert json.loads(head.payload)["result"] == {"body": 4}
            writer.close()
        finally:
            await server.close()

    async def dialer() -> None:
        head = encode(LinkType.HEAD, 0xFEFEFEFE, b'{"result":{"a":1}}', flags=FLAG_END)
        async with RawPeer(tmp_path / "d", hello() + strange, strange + head + strange):
            client = await dial(tmp_path / "d")
            assert await client.call("any", {}) == {"a": 1}
            assert await client.call("any", {}) == {"a": 1}, "the link is still whole"
            await client.close()

    asyncio.run(listener())
    asyncio.run(dialer())
