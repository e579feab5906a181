"""The local engine: one node on this machine, over its unix socket, dialed again for ever.

`followers` run beside the calls of others for as long as a link holds: they catch up with what the node did meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from bellglass.errors import BellglassError, NodeUnavailable, VersionMismatch
from bellglass.link import LinkClient, LinkStream
from bellglass.server.cluster.base import NodeInfo

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 2.0
DIAL_EVERY_S = 0.1
"""At most: a dial that finds nobody costs a tenth of a millisecond, and a restarted node is to be found at once."""
INFO_AGE_S = 5.0
log = structlog.get_logger("bellglass.cluster")


class LocalEngine:
    def __init__(
        self,
        socket: Path,
        *,
        secret: str,
        installation: str,
        followers: Sequence[Callable[[NodeInfo], Awaitable[None]]],
    ) -> None:
        self._socket = socket
        self._secret = secret
        self._installation = installation
        self._followers = followers
        self._link: LinkClient | None = None
        self._info: NodeInfo | None = None
        self._info_at = 0.0
        self._connected = asyncio.Event()
        self._why_down = "it has not been dialed yet"
        self._mismatch: VersionMismatch | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_connected(), name="cluster:link")

    def up(self) -> bool:
        return self._link is not None and not self._link.closed.is_set()

    async def wait_up(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    async def info(self, *, fresh: bool = False) -> NodeInfo:
        loop = asyncio.get_running_loop()
        link = self._live()
        if fresh or self._info is None or loop.time() - self._info_at > INFO_AGE_S:
            self._info = NodeInfo.from_json(await link.call("node.info", {}))
            self._info_at = loop.time()
        return self._info

    async def call(
        self, node_id: str | None, op: str, params: dict[str, Any], *, request_id: str | None = None
    ) -> dict[str, Any]:
        return await self._live().call(op, params, request_id=request_id)

    async def open(
        self, node_id: str | None, op: str, params: dict[str, Any], *, request_id: str | None = None, body: bool = False
    ) -> LinkStream:
        return await self._live().open(op, params, request_id=request_id, body=body)

    async def close(self) -> None:
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    # --- inside -----------------------------------------------------------------------------------------

    def _live(self) -> LinkClient:
        link = self._link
        if link is None or link.closed.is_set():
            # Cleared here already, so that one who now waits for the node does not spin until _use has noticed.
            self._connected.clear()
            raise self._down()
        return link

    def _down(self) -> NodeUnavailable | VersionMismatch:
        if self._closing:
            return NodeUnavailable("the server is going down", hint="retry in a moment")
        if self._mismatch is not None:
            return self._mismatch
        return NodeUnavailable(
            f"the node does not answer: {self._why_down}", hint="`bellglass status` shows whether it runs; retry"
        )

    async def _keep_connected(self) -> None:
        pause_s = FIRST_RETRY_S
        while True:
            try:
                link = await LinkClient.connect(self._socket, secret=self._secret, installation=self._installation)
            except (NodeUnavailable, VersionMismatch) as error:
                self._mismatch = error if isinstance(error, VersionMismatch) else None
                if pause_s == FIRST_RETRY_S:
                    log.warning("node out of reach", reason=error.message)
                self._why_down = error.message
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, DIAL_EVERY_S)
                continue
            pause_s, self._mismatch = FIRST_RETRY_S, None
            await self._use(link)

    async def _use(self, link: LinkClient) -> None:
        """From a connect until the link breaks."""
        self._link = link
        tasks: list[asyncio.Task[None]] = []
        try:
            info = await self.info(fresh=True)
            log.info("node connected", node=info.node_id, version=info.version)
            self._connected.set()
            tasks = [asyncio.create_task(self._guarded(follow, info)) for follow in self._followers]
            await link.closed.wait()
            self._why_down = "the link broke"
        except BellglassError as error:
            self._why_down = error.message
            log.warning("node does not say what it is", reason=error.message)
            await asyncio.sleep(LAST_RETRY_S)
        except Exception:  # of another release, perhaps: who answers without sense is asked again
            self._why_down = "what it says of itself can't be read"
            log.exception("node does not say what it is")
            await asyncio.sleep(LAST_RETRY_S)
        finally:
            self._connected.clear()
            if not self._closing:  # close() hangs up itself
                self._link = None
                await link.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _guarded(self, follow: Callable[[NodeInfo], Awaitable[None]], info: NodeInfo) -> None:
        """`follow`, again and again while the link holds, should it fail."""
        while True:
            try:
                await follow(info)
                return
            except BellglassError as error:
                log.warning("catching up with the node failed", reason=error.message)
            except Exception:  # the loop must outlive one bad event; it is logged and tried again
                log.exception("catching up with the node failed")
            await asyncio.sleep(LAST_RETRY_S)
