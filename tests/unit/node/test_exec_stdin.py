"""Standard input of executions: given at once, streamed, absent."""

from __future__ import annotations

import json
import os
import time

import pytest
from harness import bench

from bellglass.errors import Conflict


def test_without_stdin_there_is_an_end_at_once(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            assert (await box.exec("cat; echo done"))["stdout"] == "done\n"
            assert (await box.exec("cat", stdin="given at once"))["stdout"] == "given at once"
            big = "x" * 500_000
            assert (await box.exec("wc -c", stdin=big))["stdout"] == "500000\n"
            assert (await box.exec("head -c 3", stdin=big))["stdout"] == "xxx", "a program that reads no more"

    run(scenario())


def test_stdin_is_streamed_with_its_end(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = (await box.start("sha256sum", stdin_open=True))["id"]
            import hashlib

            data = os.urandom(3_000_000)
            params = box.ref | {"execution_id": execution_id}
            stream = await node.link.open("execution.stdin", params)
            await stream.send(data)
            await stream.end()
            assert (await stream.head())["result"] == {"written": len(data), "offset": len(data)}
            await box.call("execution.stdin", execution_id=execution_id, eof=True)
            raw = await box.body("execution.output", execution_id=execution_id, follow=True, accept="json")
            assert json.loads(raw)["stdout"].split()[0] == hashlib.sha256(data).hexdigest()
            with pytest.raises(Conflict):
                await box.call("execution.stdin", execution_id=execution_id, eof=True)
            other = (await box.start("sleep 5"))["id"]
            with pytest.raises(Conflict, match="not open"):
                await box.call("execution.stdin", execution_id=other, eof=True)

    run(scenario())


def test_stdin_waits_for_the_program(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = (await box.start("sleep 0.5; wc -c", stdin_open=True))["id"]
            began = time.monotonic()
            stream = await node.link.open("execution.stdin", box.ref | {"execution_id": execution_id, "eof": True})
            await stream.send(b"y" * 2_000_000)
            await stream.end()
            assert (await stream.head())["result"]["written"] == 2_000_000
            assert time.monotonic() - began > 0.4
            raw = await box.body("execution.output", execution_id=execution_id, follow=True, accept="json")
            assert json.loads(raw)["stdout"] == "2000000\n"

    run(scenario())
