"""Executions found by tag and pid, followed from now on, and what the server's services make of that for others."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from harness import Bench, Box, bench

from bellglass.errors import Conflict, InvalidRequest, NotFound
from bellglass.model import CreateExecution
from bellglass.server.executions import service
from bellglass.server.sandboxes import guard
from bellglass.wire.output import OutputType


class OneNode:
    """The cluster of a server, with this node alone in it."""

    def __init__(self, node: Bench) -> None:
        self._node = node

    async def call(self, node_id: str, op: str, params: dict[str, Any], *, request_id: str) -> Any:
        return await self._node.link.call(op, params)

    async def open(self, node_id: str, op: str, params: dict[str, Any], *, request_id: str, body: bool = False) -> Any:
        return await self._node.link.open(op, params, body=body)


def services(node: Bench, box: Box, monkeypatch: pytest.MonkeyPatch) -> tuple[service.Executions, tuple[str, str]]:
    """The server's service on this node, and the ids that its calls begin with. Its row is the only thing made up."""
    target = guard.Target(
        node_id="n", sandbox_id=box.id, generation=1, user=node.sandbox_spec()["user"], workdir=box.workdir,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    monkeypatch.setattr(guard, "running", lambda *_: target)
    monkeypatch.setattr(guard, "readable", lambda *_: target)
    return service.Executions(None, OneNode(node), 15.0), ("pj", box.id)  # type: ignore[arg-type]


def test_lists_by_tag_and_pid(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            ended = await box.start("exit 3", tag="job")
            await box.body("execution.output", execution_id=ended["id"], follow=True)
            runs = await box.start("sleep 30", tag="job")
            other = await box.start("sleep 30", tag="other")
            plain = await box.start("sleep 30")
            assert (runs["tag"], plain["tag"]) == ("job", None)

            async def ids(**wanted: Any) -> list[str]:
                return [item["id"] for item in (await box.call("execution.list", **wanted))["executions"]]

            assert await ids(tag="job") == [runs["id"], ended["id"]]
            assert await ids(tag="job", state="running") == [runs["id"]]
            assert await ids(tag="job", limit=1, cursor=runs["id"]) == [ended["id"]]
            assert await ids(tag="nobody") == []
            assert await ids(pid=other["pid"]) == [other["id"]]
            assert await ids(pid=ended["pid"]) == [ended["id"]]
            assert await ids(pid=other["pid"], tag="job") == []
            assert (await box.call("execution.find", tag="job"))["id"] == runs["id"]
            assert (await box.call("execution.find", pid=ended["pid"]))["exit_code"] == 3
            await box.call("execution.signal", execution_id=runs["id"], signal="SIGKILL", scope="tree")
            await box.body("execution.output", execution_id=runs["id"], follow=True)
            found = await box.call("execution.find", tag="job")
            assert (found["id"], found["signal"]) == (runs["id"], "SIGKILL"), "the newest of those that have ended"
            with pytest.raises(NotFound):
                await box.call("execution.find", tag="nobody")
            with pytest.raises(InvalidRequest):
                await box.call("execution.find")
            await node.restart()
            assert (await box.call("execution.find", tag="other"))["state"] == "running"

    run(scenario())


def test_a_tag_belongs_to_what_an_id_means(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            made = await box.start("sleep 30", tag="a")
            again = await box.start("sleep 30", tag="a", execution_id=made["id"])
            assert again["pid"] == made["pid"]
            with pytest.raises(Conflict):
                await box.start("sleep 30", tag="b", execution_id=made["id"])

    run(scenario())


def test_services_for_protocols_of_their_own(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            executions, here = services(node, box, monkeypatch)
            body = CreateExecution(command="echo before; read a; echo got $a; cat; exit 7", stdin_open=True, tag="t")
            record = await executions.start(*here, body, "r")
            assert record["pid"] > 0 and record["detached"]
            found = await executions.find(*here, "r", pid=record["pid"])
            assert found["id"] == (await executions.find(*here, "r", tag="t"))["id"] == record["id"]

            # Who follows from now on hears nothing of what was said before.
            async with aclosing(executions.follow(*here, record["id"], "r")) as events:
                assert [(await anext(events)).type for _ in range(2)] == [OutputType.STARTED, OutputType.STDOUT]
            async with aclosing(executions.follow(*here, record["id"], "r", live=True, keepalive_s=0.2)) as events:
                assert (await anext(events)).type is OutputType.STARTED
                assert (await anext(events)).type is OutputType.KEEPALIVE
                assert await executions.write_input(*here, record["id"], b"A\nmore", "r") == 6
                heard = b""
                while heard != b"got A\nmore":
                    event = await anext(events)
                    assert event.type in (OutputType.STDOUT, OutputType.KEEPALIVE)
                    heard += event.data
                waiting = asyncio.create_task(executions.wait(*here, record["id"], "r"))
                await executions.write_input(*here, record["id"], b"", "r", eof=True)
                rest = [event async for event in events]
                assert rest[-1].type is OutputType.EXIT
            assert (await waiting)["exit_code"] == 7
            assert (await executions.wait(*here, record["id"], "r"))["exit_code"] == 7, "also one that has ended"
            late = [event.type async for event in executions.follow(*here, record["id"], "r", live=True)]
            assert late == [OutputType.STARTED, OutputType.EXIT]
            with pytest.raises(Conflict):
                await executions.write_input(*here, record["id"], b"x", "r")
            with pytest.raises(NotFound):
                await executions.find(*here, "r", pid=2**30)

    run(scenario())


def test_a_reader_that_holds_gets_every_byte(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes far more than the log keeps waits for it, and goes on once it has left."""

    async def scenario() -> None:
        async with bench(**{"node.log_limit": "4MiB"}) as node:
            box = await node.create()
            executions, here = services(node, box, monkeypatch)
            body = CreateExecution(command="read a; head -c 30000000 /dev/zero; echo end >&2", stdin_open=True)
            for leaves in (False, True):
                record = await executions.start(*here, body, "r")
                read = 0
                async with aclosing(executions.follow(*here, record["id"], "r", holds=True)) as events:
                    assert (await anext(events)).type is OutputType.STARTED
                    await executions.write_input(*here, record["id"], b"\n", "r")
                    async for event in events:
                        assert event.type is not OutputType.SKIPPED
                        read += len(event.data)
                        if leaves:
                            break
                ended = await executions.wait(*here, record["id"], "r")
                assert (ended["exit_code"], ended["stdout_bytes"]) == (0, 30_000_000)
                assert leaves or read == 30_000_004

    run(scenario())


def test_a_followed_gap_is_told(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bench(**{"node.log_limit": "4MiB"}) as node:
            box = await node.create()
            executions, here = services(node, box, monkeypatch)
            record = await executions.start(*here, CreateExecution(command="head -c 30000000 /dev/zero"), "r")
            await executions.wait(*here, record["id"], "r")
            events = [event async for event in executions.follow(*here, record["id"], "r")]
            assert events[1].type is OutputType.SKIPPED and events[1].value is not None
            assert events[1].value["bytes"] + sum(len(event.data) for event in events) == 30_000_000
            assert json.loads(await box.body("execution.output", execution_id=record["id"]))["execution"]["truncated"]

    run(scenario())
