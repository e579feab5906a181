"""SIGKILL to an execution's whole tree, seen through: the node looks for itself, the agent's word is only a claim."""

from __future__ import annotations

import asyncio
import signal

from bellglass import faultpoints
from bellglass.node.executions.host import Host
from bellglass.wire import guest

TREE_GONE_S = 1.0
EXIT_AFTER_KILL_S = 2.0


class TreeKill:
    """The kill of one execution, if there is one. Killed is told to callers only when nothing of the tree is left."""

    def __init__(self, host: Host, execution_id: str) -> None:
        self.begun = False
        self.told: guest.GuestExit | None = None
        """What the agent said of the end."""
        self._host = host
        self._id = execution_id
        self._exit_told = asyncio.Event()

    def begin(self, stream_id: int) -> None:
        self.begun = True
        if self._host.groups is not None:
            self._host.groups.kill(self._id)
        else:
            self._host.session.send(guest.encode_signal(stream_id, signal.SIGKILL))
        faultpoints.reach("node.exec.killed")
        self._host.session.send(guest.encode_abort(stream_id))

    def tell(self, told: guest.GuestExit) -> None:
        self.told = told
        self._exit_told.set()

    async def seen_dead(self) -> bool:
        """Until the tree is gone and the agent has told the end, or has had its time to. False: it outlived the kill,
        and the sandbox goes with it."""
        loop, groups = asyncio.get_running_loop(), self._host.groups
        if groups is not None and not await groups.wait_empty(self._id, loop.time() + TREE_GONE_S):
            self._host.kill_machine(f"the processes of execution {self._id} outlived SIGKILL")
            return False
        faultpoints.reach("node.exec.tree_dead")
        try:
            async with asyncio.timeout(EXIT_AFTER_KILL_S):
                await self._exit_told.wait()
        except TimeoutError:
            if groups is None:
                self._host.kill_machine(f"execution {self._id} does not end after SIGKILL")
                return False
        return True
