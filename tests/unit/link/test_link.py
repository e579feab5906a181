"""A real link over a unix socket: calls, bodies, windows, resets, and peers that must be turned away."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from bellglass.errors import Conflict, NodeUnavailable, TooLarge
from bellglass.link import LinkClient, LinkServer, connection
from bellglass.link.stream import ANSWER_WINDOW, FULL_WINDOW, GROW_AFTER_BYTES

SECRET, INSTALLATION = "s" * 32, "abcdefgh"


@asynccontextmanager
async def linked(tmp_path, handler, **options):
    server = LinkServer(handler, secret=SECRET, installation=INSTALLATION, **options)
    await server.listen(tmp_path / "node.sock")
    try:
        client = await LinkClient.connect(tmp_path / "node.sock", secret=SECRET, installation=INSTALLATION)
        yield client, server
        await client.close()
    finally:
        await server.close()


async def echo(op, params, stream):
    if op == "fail":
        raise Conflict("it is there already", details={"field": "name"})
    if op == "bug":
        raise ZeroDivisionError
    await stream.send_head({"result": params})
    async for chunk in stream:
        await stream.send(chunk)
    await stream.end()


def test_call_gives_the_result_and_typed_errors(tmp_path):
    async def run():
        async with linked(tmp_path, echo) as (client, _):
            assert await client.call("echo", {"a": [1, "é"]}) == {"a": [1, "é"]}
            with pytest.raises(Conflict) as caught:
                await client.call("fail", {})
            assert caught.value.details == {"field": "name"}
            with pytest.raises(Exception, match="bug failed on the node"):
                await client.call("bug", {})
            assert await client.call("echo", {"still": 1}) == {"still": 1}

    asyncio.run(run())


def test_an_error_over_a_frame_leaves_the_link_to_the_others(tmp_path):
    """What it quotes may be a sandbox's, and everybody's streams are on this link."""

    async def fail(op, params, stream):
        if op == "fail":
            raise Conflict("m" * params["size"], hint="h" * params["size"], details={"said": "d" * params["size"]})
        await echo(op, params, stream)

    async def run():
        async with linked(tmp_path, fail) as (client, _):
            async with await client.open("echo", {}) as other:
                await other.head()
                with pytest.raises(Conflict) as whole:
                    await client.call("fail", {"size": 10_000})
                assert whole.value.details == {"said": "d" * 10_000}
                with pytest.raises(Conflict) as cut:
                    await client.call("fail", {"size": 300_000})
                assert set(cut.value.message) == {"m"} and set(cut.value.hint) == {"h"} and not cut.value.details
                await other.send(b"on")
                await other.end()
                assert b"".join([chunk async for chunk in other]) == b"on"

    asyncio.run(run())


def test_a_large_request_is_cut_and_put_together(tmp_path):
    async def size(op, params, stream):
        await stream.send_head({"result": {"length": len(params["big"])}}, end=True)

    async def go():
        async with linked(tmp_path, size) as (client, _):
            async with await client.open("size", {"big": "x" * 3_000_000}, body=False) as stream:
                assert (await stream.head())["result"] == {"length": 3_000_000}

    asyncio.run(go())


def test_a_request_that_is_too_large_is_refused_before_it_breaks_the_link(tmp_path, monkeypatch):
    """Everybody's streams are on it, and a client decides how much its own request takes."""
    monkeypatch.setattr(connection, "MAX_OPEN_BYTES", 1_000_000)

    async def go():
        async with linked(tmp_path, echo) as (client, _):
            async with await client.open("echo", {"long": 1}) as others:
                for size in (150_000, 999_000 // 6):
                    assert len((await client.call("echo", {"big": "\u00e9" * size}))["big"]) == size
                with pytest.raises(TooLarge) as caught:
                    await client.call("echo", {"big": "\u00e9" * (1_000_000 // 6)})
                assert caught.value.details == {"limit_bytes": 1_000_000}
                await others.send(b"goes on")
                await others.end()
                assert await others.read_all(100) == b"goes on"

    asyncio.run(go())


def test_bodies_are_byte_exact_both_ways(tmp_path):
    data = os.urandom(5_000_000)

    async def run():
        async with linked(tmp_path, echo) as (client, _):
            async with await client.open("echo", {}) as stream:

                async def send():
                    await stream.send(data)
                    await stream.end()

                task = asyncio.create_task(send())
                await stream.head()
                got = b"".join([chunk async for chunk in stream])
                await task
                assert got == data

    asyncio.run(run())


def test_a_slow_reader_stops_its_sender_at_the_window(tmp_path):
    sent = 0

    async def flood(op, params, stream):
        nonlocal sent
        if op == "quick":
            await stream.send_head({"result": {}}, end=True)
            return
        await stream.send_head({"result": {}})
        while True:
            await stream.send(bytes(100_000))
            sent += 100_000

    async def run():
        async with linked(tmp_path, flood) as (client, _):
            async with await client.open("flood", {}, body=False) as stream:
                await stream.head()
                for _ in range(20):  # others are served meanwhile
                    await client.call("quick", {})
                assert sent <= ANSWER_WINDOW
                taken = 0
                async for chunk in stream:
                    taken += len(chunk)
                    if taken > 4 * ANSWER_WINDOW:
                        break
                assert sent >= 3 * ANSWER_WINDOW

    asyncio.run(run())


def test_windows_grow_for_readers_that_take_much_and_only_so_many(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "MAX_FULL_WINDOWS", 1)

    async def flood(op, params, stream):
        await stream.send_head({"result": {}})
        while True:
            await stream.send(bytes(100_000))

    async def take(stream, much):
        taken = 0
        async for chunk in stream:
            taken += len(chunk)
            if taken >= much:
                return

    async def run():
        async with linked(tmp_path, flood) as (client, _):
            async with await client.open("flood", {}, body=False) as first:
                await take(first, GROW_AFTER_BYTES // 2)
                assert first.window == ANSWER_WINDOW
                await take(first, GROW_AFTER_BYTES)
                assert first.window == FULL_WINDOW
                async with await client.open("flood", {}, body=False) as second:
                    await take(second, 2 * GROW_AFTER_BYTES)
                    assert second.window == ANSWER_WINDOW, "there is no other to be had, and it goes on all the same"
            async with await client.open("flood", {}, body=False) as third:
                await take(third, 2 * GROW_AFTER_BYTES)
                assert third.window == FULL_WINDOW, "the first one gave it back"

    asyncio.run(run())


@pytest.mark.parametrize("how", ["reset", "link"])
def test_the_handler_learns_who_went_away(tmp_path, how):
    gone = asyncio.Queue()

    async def wait(op, params, stream):
        await stream.send_head({"result": {}})
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            gone.put_nowait(stream.peer_gone)
            raise

    async def run():
        async with linked(tmp_path, wait) as (client, _):
            stream = await client.open("wait", {})
            await stream.head()
            if how == "reset":
                await stream.reset()
            else:
                await client.close()
            assert await asyncio.wait_for(gone.get(), 5) == how

    asyncio.run(run())


@pytest.mark.parametrize(("secret", "installation"), [("t" * 32, INSTALLATION), (SECRET, "other123")])
def test_strangers_are_turned_away(tmp_path, secret, installation):
    async def run():
        async with linked(tmp_path, echo) as (client, _):
            assert await client.call("echo", {"ok": 1}) == {"ok": 1}
            with pytest.raises(NodeUnavailable):
                await LinkClient.connect(tmp_path / "node.sock", secret=secret, installation=installation)

    asyncio.run(run())


def test_another_uid_is_turned_away_before_a_byte_is_read(tmp_path):
    async def run(allowed):
        async with linked(tmp_path, echo, allowed_uids=allowed) as (client, _):
            return await client.call("echo", {"ok": 1})

    assert asyncio.run(run({os.getuid()})) == {"ok": 1}
    with pytest.raises(NodeUnavailable):
        asyncio.run(run({os.getuid() + 1}))


def test_garbage_and_oversized_frames_end_the_link_only(tmp_path):
    async def run():
        async with linked(tmp_path, echo) as (client, _):
            for garbage in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", bytes(12)):
                reader, writer = await asyncio.open_unix_connection(str(tmp_path / "node.sock"))
                writer.write(garbage)
                await writer.drain()
                assert await asyncio.wait_for(reader.read(), 5) is not None
                writer.close()
                await writer.wait_closed()
            assert await client.call("echo", {"ok": 1}) == {"ok": 1}

    asyncio.run(run())


class CountingWrites:
    """Around a transport."""

    def __init__(self, transport):
        self._transport = transport
        self.writes = 0

    def writelines(self, pieces):
        self.writes += 1
        self._transport.writelines(pieces)

    def __getattr__(self, name):
        return getattr(self._transport, name)


@pytest.mark.parametrize(("op", "writes"), [("at once", 1), ("a turn later", 2), ("large", 3)])
def test_frames_of_one_turn_leave_together(tmp_path, monkeypatch, op, writes):
    """Each write wakes the peer. What is large goes at once: it has to be held back when the peer is slow."""
    made, counting = connection.Connection.connection_made, []

    def count(self, transport):
        if self.answers:
            counting.append(transport := CountingWrites(transport))
        made(self, transport)

    async def answer(op, params, stream):
        await stream.send_head({"result": {}})
        await stream.send(b"a" * (connection.HELD_BYTES if op == "large" else 10))
        if op == "a turn later":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await stream.send(b"b" * (connection.HELD_BYTES if op == "large" else 10))
        await stream.end()

    async def run():
        monkeypatch.setattr(connection.Connection, "connection_made", count)
        async with linked(tmp_path, answer) as (client, _):
            [counted] = counting
            counted.writes = 0
            async with await client.open(op, {}, body=False) as stream:
                body = b"".join([chunk async for chunk in stream])
            assert body.strip(b"a").strip(b"b") == b"" and len(body) in (20, 2 * connection.HELD_BYTES)
            assert counted.writes == writes

    asyncio.run(run())
