"""/v1/pools: the operator's, since a pool is the node's and belongs to no project."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from bellglass.errors import NodeUnavailable, NotFound, NotSupported, TooLarge
from bellglass.model import Pool, PutPool
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content, page
from bellglass.server.http.bodies import read_record
from bellglass.server.services import services_of

routes = Routes("pools")
MISTAKEN = {"min": "size", "count": "size", "max": "ceiling", "max_size": "ceiling", "ram": "memory"}
EXAMPLE = {"size": 2, "ceiling": 4, "cpus": 1, "memory": "256MiB", "disk": "1GiB"}
POOL_EXAMPLE = {
    "template": "base", "size": 2, "ceiling": 4, "cpus": 1.0, "memory_bytes": 268435456, "disk_bytes": 1073741824,
    "inodes": 65536, "pids": 512, "tier": "container", "created_at": "2026-01-01T00:00:00.000000Z",
    "updated_at": "2026-01-01T00:00:00.000000Z",
    "status": {
        "template_digest": "ab" * 32, "ready": 2, "filling": 0, "taken": 0, "draining": 0, "claimed": 1, "hits": 41,
        "misses": {"empty": 2, "shape": 0, "template": 0, "inputs": 1, "died": 0},
        "counted_since": "2026-01-01T00:00:00.000000Z", "problem": None,
    },
}  # fmt: skip


@routes.action("GET", "/v1/pools", "pool.list", access="admin", answer="page:Pool")
async def list_pools(request: Request) -> Response:
    """All pools, with what the node has of each."""
    return page(await services_of(request).pools.list(), None)


@routes.action(
    "PUT", "/v1/pools/{template}", "pool.set", access="admin", body=PutPool, answer=Pool, example=EXAMPLE,
    answer_example=POOL_EXAMPLE, errors=(TooLarge, NotSupported, NodeUnavailable),
)  # fmt: skip
async def put(request: Request, template: str) -> Response:
    """Keep machines of a template ready: `size` of them, filled in the background. Replaces what was set before."""
    services = services_of(request)
    body = await read_record(request, PutPool, services.settings["server.max_body"], mistaken=MISTAKEN)
    return answer(await services.pools.put(template, body))


@routes.action(
    "GET", "/v1/pools/{template}", "pool.get", access="admin", answer=Pool, answer_example=POOL_EXAMPLE,
    errors=(NotFound,),
)  # fmt: skip
async def get(request: Request, template: str) -> Response:
    """One pool: how many are ready, and how many creates found one (`hits`) or started cold (`misses`, by reason)."""
    return answer(await services_of(request).pools.get(template))


@routes.action("DELETE", "/v1/pools/{template}", "pool.delete", access="admin", status=204, errors=(NotFound,))
async def delete(request: Request, template: str) -> Response:
    """Give up a pool; its members are drained behind the answer. Sandboxes that were claimed from it stay."""
    await services_of(request).pools.delete(template)
    return no_content()
