"""The ClusterEngine contract: which nodes there are, and calls to the one that a sandbox lives on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from bellglass.link import LinkStream
from bellglass.model import TemplateInfo, TierReport


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node said of itself. `raw` is the whole answer of node.info."""

    node_id: str
    version: str
    tiers: tuple[TierReport, ...]
    templates: tuple[TemplateInfo, ...]
    raw: dict[str, Any]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NodeInfo:
        return cls(
            node_id=str(data["node_id"]),
            version=str(data.get("version", "")),
            tiers=tuple(TierReport.from_json(tier) for tier in data.get("tiers", ())),
            templates=tuple(TemplateInfo.from_json(template) for template in data.get("templates", ())),
            raw=data,
        )


class ClusterEngine(Protocol):
    """Calls raise NodeUnavailable (503, retryable) while the node of a sandbox is out of reach; then nothing is
    known of what a call already under way did. VersionMismatch: it is there, and of a release that can't be spoken
    with."""

    def up(self) -> bool:
        """Whether a node can be reached now."""

    async def info(self, *, fresh: bool = False) -> NodeInfo:
        """What the node offers; at most a few seconds old unless `fresh`."""

    async def call(
        self, node_id: str | None, op: str, params: dict[str, Any], *, request_id: str | None = None
    ) -> dict[str, Any]:
        """A call without bodies."""

    async def open(
        self, node_id: str | None, op: str, params: dict[str, Any], *, request_id: str | None = None, body: bool = False
    ) -> LinkStream:
        """A call with a body in the answer, and with `body` one in the request."""

    async def wait_up(self, deadline: float) -> bool:
        """Until a node can be reached (True) or the loop time `deadline` has passed (False)."""

    async def close(self) -> None:
        """Hang up. Streams under way break with `peer_gone == "link"`: the node goes on with its executions."""
