"""Run by the interpreter of a client's environment, against the installation that E2B_API_URL names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from e2b import AsyncSandbox, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One for all tests of a file; each keeps to a folder of its own."""
    made = Sandbox.create(timeout=600)
    yield made
    made.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def async_sandbox() -> AsyncIterator[AsyncSandbox]:
    made = await AsyncSandbox.create(timeout=600)
    yield made
    await made.kill()


@pytest.fixture
def folder(request: pytest.FixtureRequest, sandbox: Sandbox) -> str:
    name = f"/home/user/{request.node.name}"
    sandbox.files.make_dir(name)
    return name
