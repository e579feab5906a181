"""The API inside of sandboxes: each has a listener of its own, so who calls is known by where the call came in.

A connection is for one request. It is read strictly, stripped to what the API needs of it, and written anew to the
server with the node's word for who calls; the answer's bytes go back as they are, and the connection ends. What else a
sandbox sends is never looked at. Nothing of this needs proxy or resolver.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from bellglass.datadir import DataDir
from bellglass.errors import BellglassError, NotFound
from bellglass.link import credential
from bellglass.link.credential import Caller
from bellglass.node.drivers.base import HasNetwork
from bellglass.node.net.visit import HOST, Upstream, Visit
from bellglass.node.tasks import Tasks

API_URL = f"http://{HOST}"
MARKER = "this-sandbox"
"""In the place of a key, and no secret: it says which identity is meant, not whose it is."""
CONNECTIONS = 16
"""At once, of one sandbox; more wait for their turn."""
PER_SECOND, BURST = 20.0, 200.0
"""Requests; one in many pieces or with a long answer counts as several."""
PIECES, ANSWER_BYTES = 8, 8192
"""So many count as one request more."""
WRITTEN_PER_SECOND, WRITTEN_BURST = 0.5, 200.0
"""Requests that leave something in the server's database: changes and refusals."""
AT_THE_SERVER = 32
"""Requests of all sandboxes that wait for the server's answer at once."""
RETRY_S = 1.0
OPENED_AT_ONCE = 8
log = logging.getLogger("bellglass.identity")


def variables(sandbox_id: str) -> dict[str, str]:
    """What an execution finds in its environment. The token is the same for all, and good for nothing elsewhere."""
    return {"BELLGLASS_SANDBOX_ID": sandbox_id, "BELLGLASS_API_URL": API_URL, "BELLGLASS_TOKEN": MARKER}


class Identities:
    """`attach` for what was recovered, then `start`, then anything, then `close`."""

    def __init__(self, data: DataDir, installation: str) -> None:
        self._data = data
        self._installation = installation
        self._doors: dict[str, _Door] = {}
        self._started = False
        self._opening = asyncio.Semaphore(OPENED_AT_ONCE)
        self._at_server = asyncio.Semaphore(AT_THE_SERVER)

    def start(self) -> None:
        self._started = True
        for door in self._doors.values():
            door.open_later()

    async def close(self) -> None:
        await asyncio.gather(*(door.close() for door in self._doors.values()))

    async def attach(self, caller: Caller, handle: HasNetwork) -> None:
        """From now on the sandbox can call. Raises what the handle's `listeners` raises."""
        door = self._doors[caller.sandbox_id] = _Door(self, caller, handle)
        if self._started:
            await door.open()

    async def detach(self, sandbox_id: str) -> None:
        """What is under way is cut. Unknown is success."""
        if (door := self._doors.pop(sandbox_id, None)) is not None:
            await door.close()

    def upstream(self, caller: Caller) -> Upstream:
        return Upstream(self._data.identity_socket, self._at_server, lambda now: self._word(caller, now))

    def _word(self, caller: Caller, now_unix: float) -> str:
        secret = self._data.node_secret_file.read_text().strip()
        return credential.make(secret, self._installation, caller, now_unix)

    async def listener(self, handle: HasNetwork) -> socket.socket:
        async with self._opening:
            return (await handle.listeners(["identity"]))["identity"]


class _Door:
    """One sandbox's."""

    def __init__(self, owner: Identities, caller: Caller, handle: HasNetwork) -> None:
        self._owner = owner
        self._caller = caller
        self._handle = handle
        self._upstream = owner.upstream(caller)
        self._requests = Budget(PER_SECOND, BURST)
        self._written = Budget(WRITTEN_PER_SECOND, WRITTEN_BURST)
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._tasks = Tasks(log)

    async def open(self) -> None:
        listener = await self._owner.listener(self._handle)
        self._spawn(self._accept(listener), "accept")

    def open_later(self) -> None:
        self._spawn(self._open_until_done(), "open")

    async def close(self) -> None:
        await self._tasks.close()

    async def _open_until_done(self) -> None:
        while True:
            try:
                await self.open()
                return
            except NotFound:
                return  # a machine of an earlier release, which has no network
            except BellglassError as error:
                log.error("sandbox %s can't call the API: %s", self._caller.sandbox_id, error)
                await asyncio.sleep(RETRY_S)

    async def _accept(self, listener: socket.socket) -> None:
        """What may not come in yet waits in the kernel, at no cost of anybody else's."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        with listener:
            while True:
                await asyncio.sleep(max(self._requests.wait_s(loop.time()), self._written.wait_s(loop.time())))
                await self._slots.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:
                    self._slots.release()
                    log.warning("a call of sandbox %s was not taken: %s", self._caller.sandbox_id, error)
                    await asyncio.sleep(RETRY_S)
                    continue
                except BaseException:
                    self._slots.release()
                    raise
                self._requests.spend(1.0)
                self._spawn(self._serve(connection), "call")

    async def _serve(self, connection: socket.socket) -> None:
        visit = Visit(connection, self._upstream, MARKER)
        try:
            with connection, suppress(OSError):
                await visit.run()
        finally:
            self._requests.spend(visit.pieces / PIECES + visit.answered_bytes / ANSWER_BYTES)
            self._written.spend(float(visit.is_written))
            self._slots.release()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.spawn(work, f"identity:{self._caller.sandbox_id}:{name}")


class Budget:
    """Tokens that may be overdrawn: what a call has cost is known when it is over."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = burst, float("-inf")

    def spend(self, tokens: float) -> None:
        self._left -= tokens

    def wait_s(self, now: float) -> float:
        """How long until there is a token."""
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_second)
        self._at = now
        return max(0.0, (1.0 - self._left) / self._per_second)
