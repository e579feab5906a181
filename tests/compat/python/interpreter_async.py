"""The code interpreter's asynchronous client."""

from __future__ import annotations

import asyncio

import pytest
from e2b import TimeoutException
from e2b_code_interpreter import AsyncSandbox


async def test_contexts_side_by_side_and_streams() -> None:
    box = await AsyncSandbox.create(timeout=300)
    try:
        contexts = await asyncio.gather(*[box.create_code_context() for _ in range(3)])
        done = await asyncio.gather(*[box.run_code(f"x = {n}; x", context=one) for n, one in enumerate(contexts)])
        assert [one.text for one in done] == ["0", "1", "2"]
        heard: list[str] = []
        await box.run_code("print('hi')", on_stdout=lambda message: heard.append(message.line))
        assert heard == ["hi\n"]
        with pytest.raises(TimeoutException):
            await box.run_code("while True: pass", timeout=1)
        assert (await box.run_code("1 + 1", timeout=10)).text == "2"
        await asyncio.gather(*[box.remove_code_context(one) for one in contexts])
    finally:
        await box.kill()
