"""Standard input by offset: windows, links that break, writers that give up, a node that is restarted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
from pathlib import Path

import pytest
from harness import Box, bench

from bellglass.errors import Conflict, NoCapacity
from bellglass.node.executions.records import Records
from bellglass.node.executions.stdin import StdinFeed
from bellglass.wire import guest
from bellglass.wire.frames import FrameError, FrameReader
from bellglass.wire.guest import WINDOW_BYTES, GuestType, Input


class Sent:
    def __init__(self) -> None:
        self.frames: list = []
        self.reader = FrameReader()

    def __call__(self, frame: bytes) -> bool:
        self.frames += self.reader.feed(frame)
        return True

    def data(self) -> bytes:
        return b"".join(bytes(f.payload[8:]) for f in self.frames if f.type == GuestType.DATA)

    def begins_at(self) -> int:
        return next(guest.decode_offset(f.payload)[0] for f in self.frames if f.type == GuestType.DATA)

    def ended_at(self) -> int | None:
        ends = [guest.decode_offset(f.payload)[0] for f in self.frames if f.type == GuestType.EOF]
        return ends[-1] if ends else None


def test_initial_stdin_waits_for_the_window_and_is_sent_again() -> None:
    sent, body = Sent(), bytes(range(256)) * 2000
    feed = StdinFeed(sent, body, stays_open=False)
    feed.link_up(1, None)
    assert sent.data() == body[:WINDOW_BYTES] and sent.ended_at() is None
    feed.acknowledged(100_000)
    assert len(sent.data()) == WINDOW_BYTES + 100_000
    sent.frames.clear()
    feed.link_down()
    feed.link_up(1, None)
    assert sent.data() == body[100_000 : WINDOW_BYTES + 100_000] and sent.begins_at() == 100_000
    feed.acknowledged(WINDOW_BYTES + 100_000)
    assert sent.data() == body[100_000:] and sent.ended_at() == len(body)
    with pytest.raises(FrameError):
        feed.acknowledged(len(body) + 1)
    with pytest.raises(Conflict):
        feed.check_open()


@pytest.mark.parametrize("received", [0, 1, 100_000, WINDOW_BYTES, 300_000, 512_000])
def test_a_restarted_node_goes_on_where_the_agent_stands(received: int) -> None:
    sent, body = Sent(), os.urandom(512_000)
    feed = StdinFeed(sent, body, stays_open=False, begun=True)
    assert not sent.frames, "nothing is known yet"
    feed.link_up(7, Input(received, False))
    assert len(sent.data()) <= max(WINDOW_BYTES - received, 0), "what the agent has may all be unconsumed"
    if received:
        feed.acknowledged(received)
    while (behind := received + len(sent.data())) < len(body):
        feed.acknowledged(behind)
    assert sent.data() == body[received:] and sent.ended_at() == len(body)
    again = StdinFeed(ended := Sent(), body, stays_open=False, begun=True)
    again.link_up(7, Input(len(body), True))
    assert ended.data() == b"" and ended.ended_at() in (None, len(body))


def test_an_agent_that_does_not_tell_gets_no_more() -> None:
    feed = StdinFeed(sent := Sent(), None, stays_open=True, begun=True)
    feed.link_up(1, None)
    with pytest.raises(Conflict, match="restarted"):
        feed.check_open()
    assert not sent.frames


def test_a_writer_that_gives_up_takes_its_rest_back(run) -> None:
    async def scenario() -> None:
        feed = StdinFeed(sent := Sent(), None, stays_open=True)
        feed.link_up(1, None)
        await feed.write(b"one")
        writer = asyncio.create_task(feed.write(b"w" * 300_000))
        await asyncio.sleep(0.01)
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        feed.acknowledged(WINDOW_BYTES)
        await feed.write(b"two")
        assert sent.data() == b"one" + b"w" * (WINDOW_BYTES - 3) + b"two"
        waiting = asyncio.create_task(feed.write(b"z" * 600_000))
        await asyncio.sleep(0.01)
        feed.close(Conflict("over"))
        with pytest.raises(Conflict, match="over"):
            await waiting

    run(scenario())


def test_what_a_program_took_before_it_ended_was_taken(run) -> None:
    async def scenario(taken: int) -> int:
        feed = StdinFeed(Sent(), None, stays_open=True)
        feed.link_up(1, None)
        await feed.write(b"last words")
        writer = asyncio.create_task(feed.settled())
        await asyncio.sleep(0)
        feed.acknowledged(taken)
        feed.close(Conflict("over"))
        return await writer

    assert run(scenario(10)) == 10
    with pytest.raises(Conflict, match="over"):
        run(scenario(9))


def test_a_writer_at_another_offset_is_told_where_it_stands(run) -> None:
    async def scenario() -> None:
        feed = StdinFeed(sent := Sent(), None, stays_open=True)
        feed.link_up(1, None)
        await feed.write(b"12345", 0)
        late = asyncio.create_task(feed.write(b"345678", 2))
        await asyncio.sleep(0.01)
        assert not late.done(), "what is not acknowledged may be lost with the node: it is not told"
        feed.acknowledged(5)
        with pytest.raises(Conflict) as caught:
            await late
        assert caught.value.details == {"received": 5, "ended": False}
        with pytest.raises(Conflict):
            await feed.write(b"x", 6)
        await feed.write(b"678", 5)
        ends: list[int] = []
        ending = asyncio.create_task(feed.end(ends.append, 8))
        await asyncio.sleep(0.01)
        assert not ends and sent.ended_at() is None
        feed.acknowledged(8)
        await ending
        assert ends == [8] and sent.ended_at() == 8 and sent.data() == b"12345678"
        with pytest.raises(Conflict) as caught:
            await feed.write(b"x", 8)
        assert caught.value.details == {"received": 8, "ended": True}

    run(scenario())


async def post(box: Box, execution_id: str, data: bytes, **params: object) -> dict:
    stream = await box.bench.link.open("execution.stdin", box.ref | {"execution_id": execution_id, **params})
    async with stream:
        await stream.send(data)
        await stream.end()
        return (await stream.head())["result"]


async def outcome(box: Box, execution_id: str) -> tuple[str, int | None]:
    async with await box.bench.link.open(
        "execution.output", box.ref | {"execution_id": execution_id, "follow": True, "accept": "json"}, body=False
    ) as stream:
        await stream.head()
        answer = json.loads(await stream.read_all(2**20))
    return answer["stdout"], answer["execution"]["exit_code"]


def test_streamed_input_goes_on_after_restarts_of_the_node(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = (await box.start("sha256sum; wc -c", stdin_open=True))["id"]
            data = os.urandom(900_000)
            assert await post(box, started, data[:300_000]) == {"written": 300_000, "offset": 300_000}
            await node.restart()
            with pytest.raises(Conflict) as caught:
                await post(box, started, data, offset=0)
            assert caught.value.details["received"] == 300_000
            assert (await post(box, started, b""))["offset"] == 300_000
            await post(box, started, data[300_000:700_000], offset=300_000)
            await node.restart()
            await post(box, started, data[700_000:], offset=700_000, eof=True)
            stdout, code = await outcome(box, started)
            assert (stdout.split()[0], code) == (hashlib.sha256(data).hexdigest(), 0)

    run(scenario())


def test_an_end_that_was_answered_holds_over_a_restart(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = (await box.start("cat; echo end", stdin_open=True))["id"]
            await post(box, started, b"abc")
            # The node dies when it has answered and before the agent has heard of the end.
            run_ = node.node.sandboxes.live(box.id, 1).executions.running[started]
            run_.stdin.link_down()
            await post(box, started, b"", eof=True)
            await node.restart()
            assert await outcome(box, started) == ("abcend\n", 0)

    run(scenario())


def test_given_input_survives_a_restart(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            given = "0123456789abcdef" * 32_000
            started = (await box.start("sleep 1; sha256sum", stdin=given))["id"]
            files = list(node.data.executions_dir.rglob("*.stdin"))
            assert [path.stat().st_size for path in files] == [len(given)]
            await node.restart()
            stdout, code = await outcome(box, started)
            assert (stdout.split()[0], code) == (hashlib.sha256(given.encode()).hexdigest(), 0)
            assert not list(node.data.executions_dir.rglob("*.stdin"))

    run(scenario())


def test_input_that_finds_no_room_starts_nothing(run, monkeypatch) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            folder = node.data.executions_dir / box.id
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.write_text("where its logs should go")
            with pytest.raises(NoCapacity) as caught:
                await box.exec("cat > came; echo ran", stdin="x", execution_id="01ARZ3NDEKTSV4RRFFQ69G5FA1")
            assert caught.value.details == {"resource": "disk"}
            folder.unlink()
            with monkeypatch.context() as patched:
                patched.setattr(Records, "insert", refuse)
                with pytest.raises(NoCapacity):
                    await box.exec("touch came")
            assert not (Path(box.workdir) / "came").exists()
            again = await box.exec("cat > came; cat came", stdin="x", execution_id="01ARZ3NDEKTSV4RRFFQ69G5FA1")
            assert again["stdout"] == "x", "the id was not used up"

    run(scenario())


def refuse(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")
