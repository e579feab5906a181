"""The node put together: journal, records, driver, sandboxes, and the link that serves their operations."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from bellglass import ids
from bellglass.ballast import Ballast
from bellglass.datadir import DataDir
from bellglass.errors import AgentLost, NotFound
from bellglass.link import LinkServer, LinkStream
from bellglass.model import TierReport
from bellglass.node import recovery
from bellglass.node.admission import Admission
from bellglass.node.drivers import DriverContext, open_driver
from bellglass.node.drivers.base import Driver, RaisesWall
from bellglass.node.executions.records import Records
from bellglass.node.executions.registry import Limits
from bellglass.node.executions.turns import Turns
from bellglass.node.flushing import RESERVE_BYTES, RESERVE_NAME, Flushing
from bellglass.node.journal import Journal
from bellglass.node.lowdisk import LowDisk
from bellglass.node.net.egress import Egress
from bellglass.node.net.identity import Identities
from bellglass.node.net.presets import Presets
from bellglass.node.net.refusals import Refusals
from bellglass.node.params import Params
from bellglass.node.sandboxes import DISK_LOW, Sandboxes
from bellglass.node.templates import Templates, agent_binary
from bellglass.spare_memory import give_back

RECORDS_FILE = "executions.db"
TIDY_S = 60.0
log = logging.getLogger("bellglass.node")


class Node:
    """`await Node.start(...)`, then `listen`, then `close`: sandboxes go on without it."""

    def __init__(self, data: DataDir, settings: Mapping[str, Any], installation: str) -> None:
        self.data = data
        self.settings = settings
        self.installation = installation
        self.node_id = ""
        self.templates = Templates(settings)
        self.turns = Turns()
        self.driver: Driver
        self.journal: Journal
        self.records: Records
        self.sandboxes: Sandboxes
        self.disk: LowDisk
        self.flushing: Flushing
        self._stack = AsyncExitStack()
        self._probe: asyncio.Task[TierReport] | None = None

    @classmethod
    async def start(
        cls,
        data: DataDir,
        settings: Mapping[str, Any],
        installation: str,
        *,
        helper_fd: int | None = None,
        on_helper_lost: Callable[[str], object] | None = None,
        driver: Driver | None = None,
        boot_id_file: Path = recovery.BOOT_ID_FILE,
    ) -> Self:
        """Open everything and settle what an earlier node left. `on_helper_lost` is called with the reason when the
        helper has died. `driver` in place of the one in the settings and another `boot_id_file` are for tests. Raises
        NotSupported without the agent's binary, and what the driver raises."""
        node = cls(data, settings, installation)
        async with node._stack as stack:
            await node._open(helper_fd, on_helper_lost, driver, boot_id_file)
            node._stack = stack.pop_all()
        return node

    async def _open(
        self,
        helper_fd: int | None,
        on_helper_lost: Callable[[str], object] | None,
        driver: Driver | None,
        boot_id_file: Path,
    ) -> None:
        stack, data, settings = self._stack, self.data, self.settings
        agent = agent_binary()
        for folder in (data.node_dir, data.executions_dir, data.inputs_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The helper mounts a sandbox's inputs by their path, as another user: they are to be reached through here.
        data.inputs_dir.chmod(0o711)
        Ballast.beside(data.journal_file).fill()
        self.journal = await Journal.open(data.journal_file)
        stack.callback(self.journal.close)
        self.node_id = await self._own_id()
        self.records = Records(data.node_dir / RECORDS_FILE)
        stack.callback(self.records.close)
        if driver is None:
            context = DriverContext(
                data, self.installation, settings, self.templates.folder, agent, helper_fd, on_helper_lost
            )
            driver = await open_driver(settings["node.driver"], context)
        self.driver = driver
        stack.push_async_callback(driver.close)
        self.sandboxes = Sandboxes(
            driver=driver,
            journal=self.journal,
            records=self.records,
            templates=self.templates,
            admission=Admission(settings, data.root),
            executions_dir=data.executions_dir,
            inputs_dir=data.inputs_dir,
            limits=Limits(
                settings["node.log_limit"], settings["node.max_executions"], settings["node.execution_retention"]
            ),
            retention_s=settings["server.retention"],
            pool_refills=settings["node.pool_refills"] or max(1, (os.cpu_count() or 1) // 2),
            presets=Presets(settings, self.journal.meta),
            metrics_interval_s=settings["node.metrics_interval"],
        )
        reserve = Ballast(data.node_dir / RESERVE_NAME, RESERVE_BYTES)
        self.flushing = Flushing(data.root, reserve, self.sandboxes.running)
        self.disk = LowDisk(
            data.root,
            settings["node.disk_low_water"],
            Ballast.beside(data.journal_file),
            self.sandboxes.running,
            self._disk_changed,
            is_low=await self.journal.meta(DISK_LOW) == "yes",
            reserve=reserve,
        )
        if isinstance(driver, RaisesWall):
            self.sandboxes.egress = Egress(data, settings, driver)
            refusals = Refusals(self.journal, self.sandboxes.row_table, self.disk.check)
            self.sandboxes.egress.on_event(refusals.note)
            refusals.start()
            stack.push_async_callback(refusals.close)
            self.sandboxes.identities = Identities(data, self.installation)
        await recovery.recover(self.sandboxes, boot_id_file)
        if self.sandboxes.egress is not None:
            # All that was recovered is known to it by now: what else proxy and resolver hold they let go.
            await self.sandboxes.egress.start()
            stack.push_async_callback(self.sandboxes.egress.close)
        if self.sandboxes.identities is not None:
            self.sandboxes.identities.start()
            stack.push_async_callback(self.sandboxes.identities.close)
        self.sandboxes.pools.start(self.disk.check)
        stack.push_async_callback(self.sandboxes.suspend)
        await self.disk.start()
        stack.push_async_callback(self.flushing.close)
        stack.push_async_callback(self.disk.close)
        if self.disk.is_low:
            self.flushing.begin()
        self.sandboxes.metrics.start(lambda: self.disk.is_low)
        stack.push_async_callback(self.sandboxes.metrics.close)
        tidy = asyncio.get_running_loop().create_task(self._tidy(), name="tidy")
        stack.callback(tidy.cancel)
        spare = asyncio.get_running_loop().create_task(give_back(), name="spare memory")
        stack.callback(spare.cancel)

    async def listen(self, *, secret: str, allowed_uids: set[int] | None = None) -> None:
        """Serve the operations on the data folder's socket."""
        server = LinkServer(self.handle, secret=secret, installation=self.installation, allowed_uids=allowed_uids)
        self.data.link_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        # The folder lets nobody pass but the server's group, so the socket itself can be open.
        await server.listen(self.data.node_socket, mode=0o666)
        self._stack.push_async_callback(server.close)

    async def close(self) -> None:
        """Stop serving, finish creates and ends under way, let sandboxes go on. Safe to repeat."""
        if self._probe is not None:
            self._probe.cancel()
        await self._stack.aclose()

    async def handle(self, op: str, params: dict[str, Any], stream: LinkStream) -> None:
        from bellglass.node.operations import OPERATIONS  # they import this module

        operation = OPERATIONS.get(op)
        if operation is None:
            raise NotFound(f"no operation {op!r}", hint="server and node may be of different versions")
        given = Params(params)
        try:
            await operation(self, given, stream)
        except AgentLost:
            if "sandbox_id" in params and "generation" in params:
                # An agent that went because its sandbox was ended: then that is what is to be said (SandboxGone).
                self.sandboxes.live(given.text("sandbox_id", limit=64), given.integer("generation"))
            raise

    async def tiers(self) -> list[TierReport]:
        """What the driver has proved; what it could not prove is tried again at the next asking."""
        probe = self._probe
        if probe is None or (probe.done() and (probe.cancelled() or probe.exception() or not probe.result().usable)):
            probe = self._probe = asyncio.get_running_loop().create_task(self.driver.probe(), name="probe")
        return [await asyncio.shield(probe)]

    def helper_pid(self) -> int | None:
        return getattr(self.driver, "helper_pid", None)

    async def _own_id(self) -> str:
        if (known := await self.journal.meta("node_id")) is not None:
            return known
        made = "nd" + ids.random_base32(16)
        await self.journal.meta("node_id", made)
        return made

    def _disk_changed(self, is_low: bool, free: int) -> None:
        if is_low:
            self.flushing.begin()
        else:
            self.flushing.end()
        self.sandboxes.disk_changed(is_low, free)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_S)
            try:
                await self.sandboxes.forget_old()
            except Exception:  # on a full disk; there may be room the next time
                log.exception("what ended long ago is not forgotten")


def read_installation(data: DataDir) -> str:
    """The installation's id. Raises NotFound when the data folder is not one of an installation."""
    try:
        return str(json.loads(data.installation_file.read_text())["id"])
    except FileNotFoundError as error:
        raise NotFound(f"{data.root} is no installation's data folder", hint="run: bellglass up") from error


def read_secret(path: Path) -> str:
    return path.read_text().strip()
