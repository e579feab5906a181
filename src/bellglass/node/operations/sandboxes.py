"""sandbox.create, delete, update and list."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bellglass import ids
from bellglass.errors import InvalidRequest, NotFound, NotSupported
from bellglass.link import LinkStream
from bellglass.model import SandboxSpec, format_time
from bellglass.node import inputs, quarantine
from bellglass.node.app import Node
from bellglass.node.journal import SandboxRow
from bellglass.node.net import networks
from bellglass.node.operations.network import network_of
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
    networks.check(node.sandboxes, spec.network)
    files = inputs.read(params.mapping("inputs", {}))
    row = await node.sandboxes.create(
        sandbox_id,
        params.integer("generation", least=1),
        params.text("project_id", ""),
        spec,
        files,
        params.mapping("about", {}),
    )
    result = {
        "started_at": row.started_at,
        "expires_at": expires_at(row),
        "runtime": row.runtime,
        "runtime_version": row.runtime_version,
        "tier": node.driver.tier,
    }
    await stream.send_head({"result": result}, end=True)


async def enter_quarantine(node: Node, params: Params, stream: LinkStream) -> None:
    row = await quarantine.enter(node.sandboxes, _id(params), params.integer("generation"))
    await stream.send_head({"result": _quarantined(row)}, end=True)


async def leave_quarantine(node: Node, params: Params, stream: LinkStream) -> None:
    project_id = params.text("project_id", None, limit=64)
    row = await quarantine.leave(node.sandboxes, _id(params), params.integer("generation"), project_id)
    await stream.send_head({"result": {"expires_at": expires_at(row)}}, end=True)


def _quarantined(row: SandboxRow) -> dict[str, Any]:
    """Nothing for the others; of these all that is known."""
    if row.quarantined_at_unix is None:
        return {}
    since = format_time(datetime.fromtimestamp(row.quarantined_at_unix, UTC))
    return {"quarantined_at": since, "project_id": row.project_id, "spec": row.spec, "about": row.about}


async def delete(node: Node, params: Params, stream: LinkStream) -> None:
    ended_at = await node.sandboxes.delete(_id(params), params.integer("generation"))
    await stream.send_head({"result": {"ended_at": ended_at}}, end=True)


async def update(node: Node, params: Params, stream: LinkStream) -> None:
    live = node.sandboxes.live(_id(params), params.integer("generation"))
    row = await node.sandboxes.update(
        live,
        lifetime_s=params.seconds("lifetime_s", None),
        keep_for_s=params.seconds("keep_for_s", None),
        expires_at_unix=params.seconds("expires_at_unix", None),
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
            "network_generation": row.spec.get("network_generation", 1),
            **_quarantined(row),
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
        network=network_of(body.raw("network", "deny")),
        network_generation=body.integer("network_generation", 1),
        identity=body.flag("identity", True),
    )
