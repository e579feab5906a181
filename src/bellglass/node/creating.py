"""Creating a sandbox: admission, intent, machine, the agent's first word, confirmation; or nothing of it is left."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bellglass import faultpoints
from bellglass.errors import AgentLost, Conflict, SandboxFailed
from bellglass.model import SandboxSpec, TerminationReason, now
from bellglass.node import ending, inputs, sandboxes, templates
from bellglass.node.drivers.base import MachineSpec
from bellglass.node.image.template import BuiltTemplate
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox
from bellglass.node.net import networks

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

HELLO_DEADLINE_S = 20.0
log = logging.getLogger("bellglass.sandboxes")


async def create(
    node: Sandboxes,
    sandbox_id: str,
    generation: int,
    project_id: str,
    spec: SandboxSpec,
    files: dict[str, bytes],
    about: dict[str, Any],
) -> SandboxRow:
    """See Sandboxes.create."""
    async with node.lock(sandbox_id):
        if (row := node.row_table.get(sandbox_id)) is not None:
            if row.project_id != project_id:
                raise Conflict(f"sandbox {sandbox_id} is there already", hint="take another id")
            if row.generation != generation:
                raise Conflict(f"sandbox {sandbox_id} has generation {row.generation}, not {generation}")
            if row.state != "running":
                raise sandboxes.gone(row)
            return row
        if (row := await node.pools.claim(sandbox_id, project_id, spec, about, has_inputs=bool(files))) is not None:
            return row
        template = node.templates.find(spec.template, spec.template_digest)
        share = await node.pools.make_room(sandbox_id, lambda: node.admission.grant(sandbox_id, spec))
        row = SandboxRow(
            id=sandbox_id,
            generation=generation,
            project_id=project_id,
            spec=spec.to_json(),
            driver=node.driver.name,
            state="creating",
            about=about,
            cpu_ids=share.cpu_ids,
            shell=templates.shell_of(template),
        )
        node.row_table[sandbox_id] = row
        live: LiveSandbox | None = None
        try:
            await node.journal.put(row)
            faultpoints.reach("node.create.journaled")
            if files:
                await asyncio.to_thread(inputs.write, node.inputs_folder(sandbox_id), files)
            faultpoints.reach("node.create.inputs_written")
            handle = await node.driver.create(machine_spec(row, spec, template, has_inputs=bool(files)))
            faultpoints.reach("node.create.machine_made")
            live = node.make_live(row, spec, handle)
            live.start()
            await first_hello(node, live)
            faultpoints.reach("node.create.hello")
            return await confirm(node, row, live, spec)
        except BaseException as error:
            await _undo(node, row, live, error)
            raise


def machine_spec(
    row: SandboxRow,
    spec: SandboxSpec,
    template: BuiltTemplate,
    *,
    has_inputs: bool,
    background: bool = False,
    reuse_disk: bool = False,
) -> MachineSpec:
    return MachineSpec(
        sandbox_id=row.id,
        generation=row.generation,
        template=templates.for_driver(template),
        cpus=spec.cpus,
        cpu_ids=row.cpu_ids,
        memory_bytes=spec.memory_bytes,
        disk_bytes=spec.disk_bytes,
        inodes=spec.inodes,
        pids=spec.pids,
        has_inputs=has_inputs,
        has_network=not reuse_disk,  # a reader of a kept disk runs nothing that could ask for one
        background=background,
        reuse_disk=reuse_disk,
    )


async def first_hello(node: Sandboxes, live: LiveSandbox) -> None:
    """Until the agent spoke and the machine has its network. Raises SandboxFailed when it does not, or dies first."""
    attaching = asyncio.ensure_future(networks.attach(node, live))
    try:
        await agent_hello(live)
        await attaching
    finally:
        attaching.cancel()
        await asyncio.gather(attaching, return_exceptions=True)


async def agent_hello(live: LiveSandbox) -> None:
    """Until the agent spoke. Raises SandboxFailed when it does not, or its machine dies first."""
    loop = asyncio.get_running_loop()
    hello: asyncio.Task[Any] = loop.create_task(live.session.wait_link(loop.time() + HELLO_DEADLINE_S))
    death: asyncio.Task[Any] = loop.create_task(live.handle.wait())
    try:
        await asyncio.wait([hello, death], return_when=asyncio.FIRST_COMPLETED)
        if not hello.done():
            raise SandboxFailed(f"the machine of {live.sandbox_id} died at its start ({death.result()})")
        hello.result()
    except AgentLost as error:
        raise SandboxFailed(
            f"the agent of {live.sandbox_id} did not answer within {HELLO_DEADLINE_S:g} s", hint="see the node's log"
        ) from error
    finally:
        for task in (hello, death):
            task.cancel()
        await asyncio.gather(hello, death, return_exceptions=True)


async def confirm(node: Sandboxes, row: SandboxRow, live: LiveSandbox, spec: SandboxSpec) -> SandboxRow:
    row = replace(
        row,
        state="running",
        runtime=live.handle.runtime,
        runtime_version=live.handle.runtime_version,
        started_at=now(),
        expires_at_unix=time.time() + spec.lifetime_s,
        idle_timeout_s=spec.idle_timeout_s,
        driver_state=live.handle.state(),
    )
    event = {
        "started_at": row.started_at,
        "expires_at": sandboxes.expires_at(row),
        "runtime": row.runtime,
        "runtime_version": row.runtime_version,
    }
    await node.journal.put(row, ("sandbox.started", event))
    faultpoints.reach("node.create.confirmed")
    node.row_table[row.id] = row
    node.live_table[row.id] = live
    assert row.expires_at_unix is not None
    live.set_clocks(expires_at_unix=row.expires_at_unix, idle_timeout_s=spec.idle_timeout_s)
    # A machine that died before this line was noticed by nobody.
    live.watch_machine()
    faultpoints.reach("node.create.watched")
    return row


async def _undo(node: Sandboxes, row: SandboxRow, live: LiveSandbox | None, error: BaseException) -> None:
    """Nothing of it is left, the journal included: the caller has the error. Where that fails, it becomes an ended one
    that is still to be reclaimed."""
    log.warning("sandbox %s was not created: %s", row.id, error)
    node.live_table.pop(row.id, None)
    try:
        if live is not None:
            await live.close(SandboxFailed(f"sandbox {row.id} was not created"))
            await live.handle.destroy()
            await live.handle.reclaim()
        await inputs.remove(node.inputs_folder(row.id))
        await node.forget_logs(row.id)
    except Exception:
        log.exception("undoing the create of sandbox %s failed", row.id)
        row = row.ending(str(TerminationReason.FAILED), str(error))
        node.row_table[row.id] = row
        node.spawn(ending.settle(node, row, live.handle if live is not None else None), f"reclaim:{row.id}")
        return
    faultpoints.reach("node.undo.reclaimed")
    node.admission.give_back(row.id)
    node.row_table.pop(row.id, None)
    await node.journal.forget([row.id])
    faultpoints.reach("node.undo.forgotten")
