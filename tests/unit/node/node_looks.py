"""What tests of the node look at from outside: processes, the journal, what a sandbox has left."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def sleepers(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"sleep\0{mark}".encode() in line:
                found.append(entry.name)
    return found


async def events(node, after: int = 0) -> list[dict]:
    return [json.loads(event.line()) for event in await node.node.journal.events(after)]


async def until(condition: Callable[[], Any], seconds: float = 15.0) -> None:
    """`condition` may also answer an awaitable."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(0.01)


def nothing_left(node, sandbox_id: str) -> bool:
    scratch = [p for p in Path("/tmp").glob("bgfake-*/sandbox") if p.read_text() == sandbox_id]
    groups = Path(f"/sys/fs/cgroup/unified/bgfake-{sandbox_id}")
    return not (
        scratch
        or groups.exists()
        or (node.data.inputs_dir / sandbox_id).exists()
        or (node.data.executions_dir / sandbox_id).exists()
    )
