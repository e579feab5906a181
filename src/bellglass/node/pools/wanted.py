"""What a pool should be, and when a member can stand in for a machine that a create would start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from bellglass.model import SandboxSpec
from bellglass.node.params import Params

_MACHINE = ("template", "template_digest", "cpus", "memory_bytes", "disk_bytes", "inodes", "pids", "tier")
"""What a machine is started with; all else of a spec (env, user, workdir, clocks, network) comes with a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPool:
    """`size` members are to be ready; no more is made while `ceiling` machines of the pool exist, claimed ones too."""

    template: str
    size: int
    ceiling: int | None
    cpus: float
    memory_bytes: int
    disk_bytes: int
    inodes: int
    pids: int
    tier: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises InvalidRequest naming the field."""
        params = Params(data)
        return cls(
            template=params.text("template", limit=64),
            size=params.integer("size"),
            ceiling=params.integer("ceiling", None),
            cpus=params.positive("cpus"),
            memory_bytes=params.integer("memory_bytes", least=1),
            disk_bytes=params.integer("disk_bytes", least=1),
            inodes=params.integer("inodes", least=1),
            pids=params.integer("pids", least=1),
            tier=params.text("tier", limit=64),
        )

    def spec(self, digest: str) -> SandboxSpec:
        """Of a member made from the template with this digest, before anybody has claimed it."""
        return SandboxSpec(
            template=self.template,
            template_digest=digest,
            env={},
            user="",
            workdir="/",
            cpus=self.cpus,
            memory_bytes=self.memory_bytes,
            disk_bytes=self.disk_bytes,
            inodes=self.inodes,
            pids=self.pids,
            lifetime_s=0.0,
            idle_timeout_s=None,
            tier=self.tier,
            network="deny",
            network_generation=0,
        )


def same_machine(one: SandboxSpec, other: SandboxSpec) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _MACHINE)
