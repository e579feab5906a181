"""A warm pool for the length of a case."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bellglass import WarmPools
from benchmarks.bench import Bench

FULL_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Pool:
    """`size` members of a template, which creates with the options `shape` take."""

    pools: WarmPools
    size: int
    template: str = "base"

    @property
    def status(self) -> Any:
        return self.pools.get(self.template).status

    def wait_full(self) -> None:
        """Until all members are ready and nothing is under way. Raises TimeoutError."""
        deadline = time.monotonic() + FULL_TIMEOUT_S
        while not ((now := self.status).ready == self.size and not now.filling and not now.draining):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the pool is not full after {FULL_TIMEOUT_S:g} s: {now}")
            time.sleep(0.02)


@contextmanager
def warm_pool(bench: Bench, size: int, template: str = "base", **shape: Any) -> Iterator[Pool]:
    """Full when the block begins; deleted at its end, with its members."""
    with WarmPools(api_url=bench.stack.api_url, admin_key=bench.stack.admin_key) as pools:
        pools.set(template, size=size, **shape)
        pool = Pool(pools, size, template)
        try:
            pool.wait_full()
            yield pool
        finally:
            pools.delete(template)
