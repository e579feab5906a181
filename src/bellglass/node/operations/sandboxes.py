"""sandbox.create, delete, update and list."""

from __future__ import annotations

from bellglass import ids
from bellglass.errors import InvalidRequest, NotFound, NotSupported
from bellglass.link import LinkStream
from bellglass.model import SandboxSpec
from bellglass.node import inputs
from bellglass.node.app import Node
from bellglass.node.params import Params
from bellglass.node.sandboxes import expires_at


def _id(params: Params) -> str:
    sandbox_id = params.text("sandbox_id", limit=64)
    if not ids.SANDBOX_ID.fullmatch(sandbox_id):
        raise NotFound(f"no sandbox {sandbox_id!r}", details={"field": "id"})
    return str(sandbox_id)


async def create(node: Node, params: Params, stream: LinkStream) -> None:
    sandbox_id, spec = _id(params), spec_of(node, Params(params.mapping("spec")))
    if not node.sandboxes.knows(sandbox_id):
        node.disk.check()
    files = inputs.read(params.mapping("inputs", {}))
    row = await node.sandboxes.create(
        sandbox_id, params.integer("generation", least=1), params.text("project_id", ""), spec, files
    )
    result = {
        "started_at": row.started_at,
        "expires_at": expires_at(row),
        "runtime": row.runtime,
        "runtime_version": row.runtime_version,
        "tier": node.driver.tier,
    }
    await stream.send_head({"result": result}, end=True)


async def delete(node: Node, params: Params, stream: LinkStream) -> None:
    ended_at = await node.sandboxes.delete(_id(params), params.integer("generation"))
    await stream.send_head({"result": {"ended_at": ended_at}}, end=True)


async def update(node: Node, params: Params, stream: LinkStream) -> None:
    live = node.sandboxes.live(_id(params), params.integer("generation"))
    row = await node.sandboxes.update(
        live,
        lifetime_s=params.seconds("lifetime_s", None),
        idle_timeout_s=params.seconds("idle_timeout_s", None),
        clear_idle=params.flag("clear_idle"),
    )
    await stream.send_head({"result": {"expires_at": expires_at(row)}}, end=True)


async def list_all(node: Node, params: Params, stream: LinkStream) -> None:
    # One whose create an earlier node did not finish is not in it: it is being undone.
    rows = [
        {
            "sandbox_id": row.id,
            "generation": row.generation,
            "state": row.state,
            "runtime": row.runtime,
            "runtime_version": row.runtime_version,
            "started_at": row.started_at,
            "expires_at": expires_at(row),
            "termination_reason": row.reason,
            "ended_at": row.ended_at,
            "disk_kept": row.disk_kept,
        }
        for row in node.sandboxes.rows()
    ]
    await stream.send_head({"result": {"sandboxes": rows}}, end=True)


def spec_of(node: Node, body: Params) -> SandboxSpec:
    env = body.mapping("env", {})
    if not all(isinstance(value, str) for value in env.values()):
        raise InvalidRequest("env: a value is not text", details={"field": "env"})
    tier = body.text("tier", node.driver.tier)
    if tier != node.driver.tier:
        raise NotSupported(
            f"tier {tier!r} is not on this node", hint=f"it has {node.driver.tier!r}", details={"field": "isolation"}
        )
    workdir = body.text("workdir")
    if not workdir.startswith("/"):
        raise InvalidRequest(f"workdir: {workdir!r} is not an absolute path", details={"field": "workdir"})
    return SandboxSpec(
        template=body.text("template", limit=64),
        template_digest=body.text("template_digest", limit=64),
        env=env,
        user=body.text("user", limit=256),
        workdir=workdir,
        cpus=body.positive("cpus"),
        memory_bytes=body.integer("memory_bytes", least=1),
        disk_bytes=body.integer("disk_bytes", least=1),
        inodes=body.integer("inodes", least=1),
        pids=body.integer("pids", least=1, most=4194304),
        lifetime_s=body.seconds("lifetime_s"),
        idle_timeout_s=body.seconds("idle_timeout_s", None),
        tier=tier,
        network=body.text("network", "deny"),
    )
