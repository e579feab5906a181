"""Watchers that E2B's clients leave with the server: what a sandbox may make wait there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.filesystem.watch import Watch
from bellglass.server.files.watching import Watching


class Storm:
    """Changes without end, of files with such names."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> Storm:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[list[dict[str, Any]]]:
        while True:
            await asyncio.sleep(0)
            yield [{"kind": "write", "path": self.name, "dir": False, "cookie": None}]

    async def sync(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(("name", "most"), [("a", 10_000), ("a" * 4000, 300)])
def test_what_waits_is_bounded_by_number_and_by_length(name: str, most: int) -> None:
    async def scenario() -> None:
        storm = Storm(name)
        watch = Watch(cast(Call, None), cast(Watching, storm), "/", entries=False)
        for _ in range(2):
            for _ in range(30_000):
                await asyncio.sleep(0)
            events = await asyncio.wait_for(watch.drain(), 10)
            assert most // 2 < len(events) <= most, "it is read from until so much waits, and no more"
            assert {event["name"] for event in events} == {name}
        await watch.close()

    asyncio.run(scenario())
