"""The control plane through the asynchronous client."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest
from e2b import AsyncSandbox, AsyncTemplate, NotFoundException, SandboxException, SandboxQuery


async def test_a_life() -> None:
    mark = str(uuid.uuid4())
    one, two = await asyncio.gather(*(AsyncSandbox.create(timeout=60, metadata={"mark": mark}) for _ in range(2)))
    try:
        info = await one.get_info()
        assert info.metadata == {"mark": mark}
        await AsyncSandbox.connect(one.sandbox_id, timeout=10)
        assert (await one.get_info()).end_at == info.end_at
        await one.set_timeout(600)
        assert (await one.get_info()).end_at > info.end_at + timedelta(seconds=300)
        assert (await (await AsyncSandbox.connect(one.sandbox_id)).commands.run("echo there")).stdout == "there\n"
        paginator = AsyncSandbox.list(query=SandboxQuery(metadata={"mark": mark}), limit=1)
        found = []
        while paginator.has_next:
            found += [item.sandbox_id for item in await paginator.next_items()]
        assert sorted(found) == sorted([one.sandbox_id, two.sandbox_id])
        assert (await one.get_metrics())[-1].mem_total > 0
        assert await AsyncTemplate.exists("base")
        with pytest.raises(SandboxException, match="501: "):
            await one.pause()
    finally:
        killed = await asyncio.gather(one.kill(), two.kill())
    assert killed == [True, True]
    assert await one.kill() is False
    assert not await one.is_running()
    with pytest.raises(NotFoundException):
        await AsyncSandbox.connect(one.sandbox_id)
