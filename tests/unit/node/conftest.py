"""The node's unit tests run a node in this process, with the real agent as an ordinary process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def run() -> Callable[[Awaitable[Any]], Any]:
    """Run a coroutine on the loop that the node uses, within a minute."""
    import uvloop

    def runner(work: Awaitable[Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(60):
                return await work

        return uvloop.run(bounded())

    return runner


@pytest.fixture
def attackers_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel host of contexts is attackers_host.py."""
    from bellglass.node.contexts import host

    served = Path(__file__).with_name("attackers_host.py")
    program = tmp_path / "host"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {served} "$@"\n')
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(host, "PROGRAM", str(program))
