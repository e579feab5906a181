"""Making a member and ending one: intent, act, confirm, like a sandbox, but without events: no project has it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bellglass import faultpoints, ids
from bellglass.errors import NoCapacity, NotFound
from bellglass.model import SandboxSpec, TerminationReason
from bellglass.node import creating, ending, templates
from bellglass.node.journal import SandboxRow
from bellglass.node.live import LiveSandbox
from bellglass.node.net import networks
from bellglass.node.pools.member import Member

if TYPE_CHECKING:
    from bellglass.node.sandboxes import Sandboxes

log = logging.getLogger("bellglass.pools")
OnEnd = Callable[[LiveSandbox, TerminationReason, str | None], None]


def admit(node: Sandboxes, pool: str, spec: SandboxSpec) -> Member:
    """A member that is to be made. Raises NotFound (template), NoCapacity, InvalidRequest."""
    template = node.templates.find(spec.template, spec.template_digest)
    sandbox_id = ids.new_sandbox_id()
    share = node.admission.grant(sandbox_id, spec)
    row = SandboxRow(
        id=sandbox_id,
        generation=1,
        project_id="",
        spec=spec.to_json(),
        driver=node.driver.name,
        state="filling",
        cpu_ids=share.cpu_ids,
        shell=templates.shell_of(template),
        pool=pool,
    )
    return Member(row, spec, "filling", template)


async def make(node: Sandboxes, member: Member, on_end: OnEnd) -> None:
    """Until its agent has said HELLO; then it is `ready`. Raises what a create raises: then `end` it."""
    spec, row = member.spec, member.row
    await node.journal.put(row)
    faultpoints.reach("node.pool.journaled")
    assert member.template is not None
    machine = creating.machine_spec(row, spec, member.template, has_inputs=False, background=member.background)
    handle = await node.driver.create(machine)
    faultpoints.reach("node.pool.machine_made")
    live = member.live = node.make_live(row, spec, handle, on_end=on_end)
    live.start()
    await creating.first_hello(node, live)
    row = replace(
        row,
        state="pooled",
        runtime=handle.runtime,
        runtime_version=handle.runtime_version,
        driver_state=handle.state(),
    )
    await node.journal.put(row)
    faultpoints.reach("node.pool.confirmed")
    member.row = row
    member.leave("ready")
    live.watch_machine()


async def take_over(node: Sandboxes, member: Member, on_end: OnEnd) -> None:
    """After a restart of the node: it is `ready` if its machine still runs. Its agent dials by itself."""
    assert member.row.driver_state is not None
    handle = await node.driver.recover(member.id, member.row.driver_state)
    if handle is None:
        return
    member.live = node.make_live(member.row, member.spec, handle, on_end=on_end)
    await networks.attach(node, member.live)
    member.leave("ready")
    member.live.start()
    member.live.watch_machine()


async def end(node: Sandboxes, member: Member) -> None:
    """`give_back`, again until it works."""
    await ending.until_done(f"giving back member {member.id}", lambda: give_back(node, member))


async def give_back(node: Sandboxes, member: Member) -> None:
    """Nothing of it is left when this returns, the journal's row included. Can be repeated after a failure."""
    row = member.row = replace(member.row, state="draining")
    try:
        await node.journal.put(row)
    except NoCapacity:  # its end makes the room; a node that is killed in between finds a member without a machine
        log.exception("member %s is given back without that being stored", row.id)
    faultpoints.reach("node.pool.draining")
    if (live := member.live) is not None:
        await live.close(NotFound(f"no sandbox {row.id!r}", details={"field": "id"}))
        await live.handle.destroy()
        await live.handle.reclaim()
    else:
        await node.driver.reclaim_leftovers(row.id)
    faultpoints.reach("node.pool.given_back")
    await node.journal.forget([row.id])
    node.admission.give_back(row.id)
