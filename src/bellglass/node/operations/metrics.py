"""sandbox.metrics: what one uses now, and has used."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from bellglass.errors import NotSupported
from bellglass.link import LinkStream
from bellglass.model import format_time
from bellglass.node.app import Node
from bellglass.node.journal import SandboxRow
from bellglass.node.metrics.history import History, Sample
from bellglass.node.params import Params

FRESH_S = 1.0
"""A running sandbox is measured for the answer. Where its newest sample is no older, that one's CPU share is kept: a
moment's says nothing."""


async def history(node: Node, params: Params, stream: LinkStream) -> None:
    """Of one that has ended too, while its records are kept."""
    sandbox_id = params.text("sandbox_id", limit=64)
    row = node.sandboxes.row(sandbox_id, params.integer("generation"))
    start, end = params.seconds("start", 0.0), params.seconds("end", 1e12)
    limit = params.integer("limit", None, least=1)
    samples = await asyncio.to_thread(_read, node, row, start, end)
    if limit is not None:
        samples = samples[-limit:]
    await stream.send_head({"result": {"samples": [_shown(row, sample) for sample in samples]}}, end=True)


def _read(node: Node, row: SandboxRow, start: float, end: float) -> list[Sample]:
    live = node.sandboxes.live_table.get(row.id)
    if live is None:
        return History(node.sandboxes.log_folder(row.id)).between(start, end)
    watched = node.sandboxes.metrics.watched(live)
    if watched is None:
        if live.closed:
            return History(node.sandboxes.log_folder(row.id)).between(start, end)
        raise NotSupported(f"what a sandbox of the driver {row.driver!r} uses can't be measured")
    samples = watched.history.between(start, end)
    with suppress(OSError):  # it ends just now
        now = watched.look(keep=False)
        if start <= now.at <= end:
            if samples and now.at - samples[-1].at <= FRESH_S:
                now = now._replace(cpu_share=samples[-1].cpu_share)
            samples.append(now)
    return samples


def _shown(row: SandboxRow, sample: Sample) -> dict[str, Any]:
    cpus = float(row.spec["cpus"])
    return {
        "time": format_time(datetime.fromtimestamp(sample.at, UTC)),
        "cpus": cpus,
        "cpu_percent": round(min(sample.cpu_share / cpus, 1.0) * 100, 2),
        "memory_bytes": row.spec["memory_bytes"],
        "memory_used_bytes": sample.memory_used,
        "memory_cache_bytes": sample.memory_cache,
        "disk_bytes": row.spec["disk_bytes"],
        "disk_used_bytes": sample.disk_used,
    }
