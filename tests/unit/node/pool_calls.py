"""What the server says to a node of its pools, and waits for what comes of it."""

from __future__ import annotations

from typing import Any

from harness import Bench
from node_looks import until

SHAPE = {"cpus": 1.0, "memory_bytes": 256 * 2**20, "disk_bytes": 2**30, "inodes": 65536, "pids": 128, "tier": "process"}


def pool(size: int, **more: Any) -> dict[str, Any]:
    return {"template": "base", "size": size, "ceiling": None} | SHAPE | more


async def apply(node: Bench, *pools: dict[str, Any]) -> None:
    await node.link.call("pool.apply", {"pools": list(pools)})


async def report(node: Bench) -> dict[str, Any]:
    [found] = (await node.link.call("pool.list", {}))["pools"]
    return dict(found)


async def ready(node: Bench, count: int) -> None:
    async def is_ready() -> bool:
        now = await report(node)
        return now["ready"] == count and now["filling"] == now["draining"] == 0

    await until(is_ready)


def members(node: Bench) -> dict[str, Any]:
    return node.node.sandboxes.pools.members
