"""The two faces of the SDK as one, so that each test holds for both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest


class InLoop:
    """An async object used as if it were sync: awaitables are run, async iterators drained step by step."""

    def __init__(self, runner: asyncio.Runner, target: Any) -> None:
        self._runner = runner
        self._target = target

    def __getattr__(self, name: str) -> Any:
        name = "aclose" if name == "close" else name
        return _wrap(self._runner, getattr(self._target, name))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            result = self._target(*arguments, **options)
            return await result if hasattr(result, "__await__") else result

        return _wrap(self._runner, self._runner.run(call()))

    def __enter__(self) -> Any:
        return _wrap(self._runner, self._runner.run(self._target.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        self._runner.run(self._target.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        async def step() -> Any:
            return await anext(self._target, self)

        while (item := self._runner.run(step())) is not self:
            yield _wrap(self._runner, item)


def _wrap(runner: asyncio.Runner, value: Any) -> Any:
    ours = callable(value) or hasattr(value, "__anext__") or type(value).__module__.startswith("bellglass.sdk._async")
    is_box = type(value).__name__ == "AsyncSandbox"
    return InLoop(runner, value) if (ours and not isinstance(value, type(Exception))) or is_box else value


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest, server: Any) -> Iterator[Any]:
    """`Sandbox`, and `AsyncSandbox` used the same way."""
    import bellglass

    if request.param == "sync":
        yield bellglass.Sandbox
        return
    with asyncio.Runner() as runner:
        yield InLoop(runner, bellglass.AsyncSandbox)


@pytest.fixture
def sandbox(api: Any) -> Iterator[Any]:
    made = api()
    yield made
    made.close()
