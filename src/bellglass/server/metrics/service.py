"""Metrics of a sandbox: its node measures and keeps them."""

from __future__ import annotations

from datetime import datetime

from bellglass.model import SandboxMetrics
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.db.reader import Reader
from bellglass.server.sandboxes import guard


class Metrics:
    def __init__(self, reader: Reader, cluster: ClusterEngine) -> None:
        self._reader = reader
        self._cluster = cluster

    async def history(
        self,
        project_id: str,
        sandbox_id: str,
        start: datetime | None,
        end: datetime | None,
        limit: int | None,
        request_id: str,
    ) -> list[SandboxMetrics]:
        """In the order of time, from `start` to `end` ; of them the newest `limit`. Of a
        running sandbox with one of just now. Raises NotFound, NodeUnavailable, and NotSupported where its node can't
        measure it."""
        target = guard.readable(self._reader, project_id, sandbox_id)
        params = {**target.ref, "start": _unix(start), "end": _unix(end), "limit": limit}
        result = await self._cluster.call(target.node_id, "sandbox.metrics", params, request_id=request_id)
        return [SandboxMetrics.from_json(sample) for sample in result["samples"]]


def _unix(moment: datetime | None) -> float | None:
    return None if moment is None else max(moment.timestamp(), 1.0)
