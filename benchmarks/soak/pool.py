"""A warm pool of the size that the soak's sandboxes have, smaller than what they ask for: some find it empty."""

from __future__ import annotations

import time
from typing import Any

import httpx2

from bellglass.testing.stack import Stack
from benchmarks.soak.work import SIZE

DRAIN_S = 60.0


class Pool:
    """Set at once. `end` gives it up."""

    def __init__(self, stack: Stack, *, size: int = 2) -> None:
        self._stack = stack
        machine = {name: SIZE[name] for name in ("cpus", "memory", "disk", "pids")}
        self._request("PUT", json={"size": size, "ceiling": size + 2, **machine})

    def end(self) -> dict[str, Any]:
        """What was claimed of it, as `hits` and `misses`. Raises TimeoutError when its members do not go."""
        status: dict[str, Any] = self._request("GET").json()["status"]
        self._request("DELETE")
        deadline = time.monotonic() + DRAIN_S
        while any(self._stack.data.sandboxes_dir.iterdir()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"sandboxes are still there {DRAIN_S:g} s after the pool was given up")
            time.sleep(0.1)
        return {"hits": status["hits"], "misses": status["misses"]}

    def _request(self, method: str, **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self._stack.admin_key}"}
        url = f"{self._stack.api_url}/v1/pools/base"
        answer = httpx2.request(method, url, headers=headers, timeout=60, trust_env=False, **options)
        answer.raise_for_status()
        return answer
