"""Contexts of a node with the fake driver, whose host is attackers_host.py."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from harness import ME, Box, bench

from bellglass import ids

SLEEPS = "say('on')\nimport time\nwhile True: time.sleep(0.01)"


class Kernel:
    """One context of a box."""

    def __init__(self, box: Box, context_id: str = "python") -> None:
        self.box, self.id = box, context_id

    def params(self, code: str, **more: Any) -> dict[str, Any]:
        around = {"cwd": self.box.workdir, "user": ME, "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}}
        given = {"context_id": self.id, "run_id": ids.new_ulid(), "code": code, "keepalive_s": 15.0}
        return self.box.ref | around | given | more

    async def open(self, code: str, **more: Any) -> Any:
        params = {"accept": "ndjson", **self.params(code), **more}
        return await self.box.bench.link.open("context.run", params, body=False)

    async def lines(self, code: str, **more: Any) -> list[dict[str, Any]]:
        async with await self.open(code, **more) as stream:
            await stream.head()
            raw = await stream.read_all(256 * 2**20)
        return [json.loads(line) for line in raw.splitlines()]

    async def text(self, code: str, **more: Any) -> str:
        return "".join(line["text"] for line in await self.lines(code, **more) if line["type"] == "stdout")

    async def buffered(self, code: str, **more: Any) -> dict[str, Any]:
        async with await self.open(code, accept="json", **more) as stream:
            await stream.head()
            found: dict[str, Any] = json.loads(await stream.read_all(64 * 2**20))
        return found

    async def call(self, op: str, **more: Any) -> dict[str, Any]:
        return await self.box.call(op, context_id=self.id, **more)

    async def create(self, language: str = "python", **more: Any) -> dict[str, Any]:
        around = {"cwd": self.box.workdir, "user": ME, "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}}
        return await self.box.call("context.create", context_id=self.id, language=language, **(around | more))


def in_a_node(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs it on the node's loop, with `kernel`, the default context of a sandbox, and where it asks for it `node`."""
    signature = inspect.signature(test)
    own = [parameter for name, parameter in signature.parameters.items() if name not in ("kernel", "node")]

    def runner(**given: Any) -> None:
        async def scenario() -> None:
            async with asyncio.timeout(60), bench() as node:
                made = {"kernel": Kernel(await node.create()), "node": node}
                await test(**{name: made[name] for name in made if name in signature.parameters}, **given)

        uvloop.run(scenario())

    functools.update_wrapper(runner, test)
    runner.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return runner


def new_id() -> str:
    return "cx" + ids.random_base32(20)


async def next_line(stream: Any) -> dict[str, Any]:
    rest = b""
    async for chunk in stream:
        rest += chunk
        if b"\n" in rest:
            found: dict[str, Any] = json.loads(rest.splitlines()[-1])
            return found
    raise AssertionError("the answer ended")
