"""Warm pools, for the operator of an installation: machines of a template that wait for creates."""

from __future__ import annotations

import builtins
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from bellglass.model import Pool
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._config import resolve_admin

Size = int | float | str


class AsyncWarmPools:
    """The node's pools, with the installation's admin key (`admin_key`, or BELLGLASS_ADMIN_KEY).

    A create that names a pool's template with the pool's shape and no inputs takes a machine that waits; every other
    one starts its own. `pool.status` counts both. Raises ClientError without an address or key."""

    def __init__(self, *, api_url: str | None = None, admin_key: str | None = None) -> None:
        self._transport = AsyncTransport(resolve_admin(api_url, admin_key))

    async def set(
        self,
        template: str = "base",
        *,
        size: int,
        ceiling: int | None = None,
        cpus: float | None = None,
        memory: Size | None = None,
        disk: Size | None = None,
        pids: int | None = None,
        isolation: str | None = None,
    ) -> Pool:
        """Keep `size` machines ready, and make none while `ceiling` of the pool exist, claimed sandboxes counted.
        Replaces what was set before; what is left out gets a create's default. Raises InvalidRequest, NotSupported,
        Forbidden."""
        shape = {"cpus": cpus, "memory": memory, "disk": disk, "pids": pids, "isolation": isolation}
        body: dict[str, Any] = {"size": size, "ceiling": ceiling}
        body |= {name: value for name, value in shape.items() if value is not None}
        answer = await self._transport.request("PUT", _path(template), json=body, idempotent=True)
        return Pool.from_json(answer.json())

    async def get(self, template: str = "base") -> Pool:
        """Raises NotFound."""
        answer = await self._transport.request("GET", _path(template), idempotent=True)
        return Pool.from_json(answer.json())

    async def list(self) -> builtins.list[Pool]:
        answer = await self._transport.request("GET", "/v1/pools", idempotent=True)
        return [Pool.from_json(item) for item in answer.json()["items"]]

    async def delete(self, template: str = "base") -> None:
        """Give the pool up: machines that wait go, sandboxes that were claimed from it stay. Raises NotFound."""
        await self._transport.request("DELETE", _path(template))

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _path(template: str) -> str:
    return f"/v1/pools/{quote(template, safe='')}"
