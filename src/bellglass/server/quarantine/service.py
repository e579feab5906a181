"""Quarantine: what the node has and the database does not know, as after an older database was restored.

Nothing is deleted on sight: the node lets them stand still, the operator is told and may adopt them into a project, and
what nobody wanted is removed when its time is over. Each step is an audit entry and an event.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection

from bellglass.errors import Conflict, NotFound
from bellglass.model import Quarantined, Sandbox, SandboxSpec, State, TerminationReason, format_time, now, parse_time
from bellglass.server.audit import trail
from bellglass.server.cluster.base import ClusterEngine, NodeInfo
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.events import store as events
from bellglass.server.quarantine import store
from bellglass.server.sandboxes.store import add, change

Items = dict[str, dict[str, Any]]
"""The node's list by sandbox id."""
log = structlog.get_logger("bellglass.quarantine")


class Quarantine:
    def __init__(
        self, reader: Reader, writer: Writer, cluster: ClusterEngine, *, kept_s: float, retention_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._cluster = cluster
        self._kept_s = kept_s
        self._retention_s = retention_s
        self._one = asyncio.Lock()
        """Held by who changes one, from the look at its row or the node's list to the node's answer: else a comparison
        takes what was adopted meanwhile for a stranger."""
        self.due_s = kept_s
        """How long it is until the next one has to be removed, as of the last `settle`."""

    # --- reconciling ------------------------------------------------------------------------------------

    async def settle(self, info: NodeInfo, on_node: Items, live: set[str]) -> None:
        """Part of each comparison with the node's list, which was taken before the rows were read: a sandbox that is
        being created has its row first. `live` are the ids whose rows have not ended."""
        rows = await self._reader.in_thread(store.known, [one for one in on_node if one not in live])
        strangers = []
        self.due_s = self._kept_s
        for sandbox_id, item in on_node.items():
            if sandbox_id in live:
                if "quarantined_at" in item:  # adopted by a server that then died, or its database came back
                    await self._call("sandbox.release", item)
                continue
            row = rows.get(sandbox_id)
            if row is not None and item["state"] != State.RUNNING:
                if item.get("disk_kept") and row.deleted_at is not None:
                    await self._call("sandbox.delete", item)  # deleted while the node was away
                elif "quarantined_at" in item:
                    await self._call("sandbox.release", item)
            elif item["state"] == State.RUNNING or item.get("disk_kept"):
                strangers.append(sandbox_id)
        if strangers:
            # Anew: one may have ended between the list and the rows. What the rows say is never ahead of the node.
            answer = await self._cluster.call(info.node_id, "sandbox.list", {})
            for item in answer["sandboxes"]:
                if item["sandbox_id"] in strangers and _is_left(item):
                    async with self._one:
                        if not await self._is_adopted(item):
                            await self._stranger(item)

    async def _is_adopted(self, item: dict[str, Any]) -> bool:
        """Since strangers were told from others. Its release may have come before the list was taken anew."""
        row = (await self._reader.in_thread(store.known, [item["sandbox_id"]])).get(item["sandbox_id"])
        return row is not None and (row.state != State.ENDED or item["state"] != State.RUNNING)

    async def _stranger(self, item: dict[str, Any]) -> None:
        forgotten = _before(item.get("ended_at"), self._retention_s)
        if item["state"] != State.RUNNING and forgotten:
            await self._call("sandbox.delete", item)  # no stranger: its row went when its retention was over
            return
        if "quarantined_at" not in item:
            item |= {"quarantined_at": now()}
            await self._tell("sandbox.quarantine", item)
            await self._call("sandbox.quarantine", item)
            log.warning("the node has a sandbox that no row knows: it is in quarantine", sandbox=item["sandbox_id"])
        elif _before(item["quarantined_at"], self._kept_s):
            await self._tell("sandbox.quarantine_over", item)
            await self._call("sandbox.delete", item)
            log.warning("a sandbox in quarantine was wanted by nobody: removed", sandbox=item["sandbox_id"])
            return
        since_s = (datetime.now(UTC) - parse_time(item["quarantined_at"])).total_seconds()
        self.due_s = min(self.due_s, max(self._kept_s - since_s, 0.0))

    async def _call(self, op: str, item: dict[str, Any], **more: Any) -> dict[str, Any]:
        params = {"sandbox_id": item["sandbox_id"], "generation": item["generation"], **more}
        return await self._cluster.call(None, op, params)

    async def _tell(self, kind: str, item: dict[str, Any]) -> None:
        await self._writer.run(partial(_tell, kind=kind, item=item))

    # --- the operator's ---------------------------------------------------------------------------------

    async def list(self) -> list[Quarantined]:
        """Raises NodeUnavailable."""
        items = await self._items()
        names = await self._reader.in_thread(store.project_names)
        return [self._shown(item, names) for item in items.values()]

    async def adopt(self, sandbox_id: str, project: str | None) -> Sandbox:
        """It becomes a sandbox of the named project, by default of the one that it belonged to, and goes on. Raises
        NotFound, Conflict (that project is unknown), NodeUnavailable."""
        async with self._one:
            return await self._adopt(await self._find(sandbox_id), project)

    async def _adopt(self, item: dict[str, Any], project: str | None) -> Sandbox:
        sandbox_id = item["sandbox_id"]

        def write(connection: Connection) -> Sandbox:
            found = store.project(connection, project or item["project_id"])
            if found is None:
                raise Conflict(
                    f"project {project or item['project_id']!r} is unknown here",
                    hint="name one that exists: `bellglass keys create --project NAME` makes it",
                    details={"field": "project"},
                )
            store.forget(connection, sandbox_id)
            about = item["about"]
            name = about.get("name")
            if name is not None and store.name_is_taken(connection, found, name):
                name = None
            sandbox = _sandbox(item, name)
            add(connection, found, sandbox, about.get("template_env") or {})
            item["project_id"] = found
            _tell(connection, "sandbox.adopted", item)
            return sandbox

        sandbox = await self._writer.run(write)
        # From here on the row knows it: should this fail, the next comparison lets it go on.
        released = await self._call("sandbox.release", item, project_id=item["project_id"])
        expires_at = released.get("expires_at")
        await self._writer.run(partial(change, sandbox_id=sandbox.id, kind=None, expires_at=expires_at))
        return replace(sandbox, expires_at=expires_at)

    async def remove(self, sandbox_id: str) -> None:
        """Raises NotFound, NodeUnavailable."""
        async with self._one:
            item = await self._find(sandbox_id)
            await self._tell("sandbox.quarantine_over", item)
            await self._call("sandbox.delete", item)

    async def _items(self) -> Items:
        answer = await self._cluster.call(None, "sandbox.list", {})
        held = [item for item in answer["sandboxes"] if "quarantined_at" in item]
        return {item["sandbox_id"]: item for item in held if _is_left(item)}

    async def _find(self, sandbox_id: str) -> dict[str, Any]:
        if (item := (await self._items()).get(sandbox_id)) is None:
            raise NotFound(
                "there is no such sandbox in quarantine",
                hint="`bellglass quarantine ls` lists them",
                details={"kind": "sandbox"},
            )
        return item

    def _shown(self, item: dict[str, Any], names: dict[str, str]) -> Quarantined:
        removed_at = parse_time(item["quarantined_at"]) + timedelta(seconds=self._kept_s)
        return Quarantined(
            id=item["sandbox_id"],
            project_id=item["project_id"],
            project_name=names.get(item["project_id"]),
            state=item["state"],
            template=str(item["spec"].get("template", "")),
            name=item["about"].get("name"),
            owner=item["about"].get("owner"),
            disk_bytes=int(item["spec"].get("disk_bytes", 0)),
            quarantined_at=item["quarantined_at"],
            removed_at=format_time(removed_at),
        )


def _is_left(item: dict[str, Any]) -> bool:
    return item["state"] == State.RUNNING or bool(item.get("disk_kept"))


def _before(moment: str | None, seconds: float) -> bool:
    return moment is not None and parse_time(moment) < datetime.now(UTC) - timedelta(seconds=seconds)


def _tell(connection: Connection, kind: str, item: dict[str, Any]) -> None:
    project_id, sandbox_id = str(item.get("project_id", "")), str(item["sandbox_id"])
    events.add(connection, kind, project_id, sandbox_id, {"quarantined_at": item["quarantined_at"]})
    trail.add(connection, kind, project_id or None, {"sandbox_id": sandbox_id})


def _sandbox(item: dict[str, Any], name: str | None) -> Sandbox:
    """As the node knows it, and what the server had told it at the create."""
    about, ended = item["about"], item["state"] != State.RUNNING
    return Sandbox(
        id=item["sandbox_id"],
        state=State.ENDED if ended else State.RUNNING,
        termination_reason=TerminationReason(item["termination_reason"]) if ended else None,
        message=None,
        name=name,
        owner=about.get("owner"),
        labels=dict(about.get("labels") or {}),
        auto_publish=about.get("auto_publish"),
        auto_publish_host=about.get("auto_publish_host"),
        auto_publish_tls=list(about.get("auto_publish_tls") or []),
        expires_at=item.get("expires_at"),
        runtime=item.get("runtime"),
        runtime_version=item.get("runtime_version"),
        node=None,
        generation=item["generation"],
        created_at=about.get("created_at") or item.get("started_at") or now(),
        started_at=item.get("started_at"),
        ended_at=item.get("ended_at"),
        **SandboxSpec.from_json(item["spec"]).to_json(),
    )
