"""The node's operations by name: what the server may ask, and which function answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bellglass.link import LinkStream
from bellglass.node.app import Node
from bellglass.node.operations import (
    contexts,
    executions,
    files,
    logs,
    metrics,
    network,
    node,
    pools,
    ports,
    sandboxes,
    watch,
)
from bellglass.node.params import Params

Operation = Callable[[Node, Params, LinkStream], Awaitable[None]]


def _also_ended(operation: Operation) -> Operation:
    """Of a sandbox that has ended and left its disk too."""

    async def run(node: Node, params: Params, stream: LinkStream) -> None:
        sandbox_id, generation = params.text("sandbox_id", limit=64), params.integer("generation")
        async with node.sandboxes.kept.reading(sandbox_id, generation):
            await operation(node, params, stream)

    return run


OPERATIONS: dict[str, Operation] = {
    "node.info": node.info,
    "node.wait_reclaimed": node.wait_reclaimed,
    "node.renew_lxcfs": node.renew_lxcfs,
    "journal.follow": node.follow_journal,
    "journal.ack": node.acknowledge_journal,
    "sandbox.create": sandboxes.create,
    "sandbox.delete": sandboxes.delete,
    "sandbox.update": sandboxes.update,
    "sandbox.list": sandboxes.list_all,
    "sandbox.quarantine": sandboxes.enter_quarantine,
    "sandbox.release": sandboxes.leave_quarantine,
    "sandbox.set_network": network.set_network,
    "sandbox.logs": logs.page,
    "sandbox.metrics": metrics.history,
    "sandbox.network": network.get,
    "node.presets": network.presets,
    "node.renew_presets": network.renew_presets,
    "pool.apply": pools.apply,
    "pool.list": pools.list_all,
    "pool.take": pools.take,
    "pool.release": pools.release,
    "pool.drain": pools.drain,
    "execution.create": executions.create,
    "execution.get": executions.get,
    "execution.find": executions.find,
    "execution.list": executions.list_all,
    "execution.output": executions.output,
    "execution.stdin": executions.write_stdin,
    "execution.attach": executions.attach,
    "execution.resize": executions.resize,
    "execution.signal": executions.send_signal,
    "context.create": contexts.create,
    "context.list": contexts.list_all,
    "context.delete": contexts.delete,
    "context.run": contexts.run,
    "context.interrupt": contexts.interrupt,
    "context.restart": contexts.restart,
    "port.dial": ports.dial,
    "file.read": _also_ended(files.read),
    "file.write": files.write,
    "file.list": _also_ended(files.list_folder),
    "file.stat": _also_ended(files.stat),
    "file.mkdir": files.mkdir,
    "file.move": files.move,
    "file.watch": watch.watch,
    "file.remove": files.remove,
    "file.archive_read": _also_ended(files.archive_read),
    "file.archive_write": files.archive_write,
}
