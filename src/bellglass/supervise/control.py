"""Finding a running installation: the supervisor's record in the data folder, and questions to its daemons.

The record is only believed as far as the processes it names are alive with the start times it gives.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bellglass.datadir import DataDir
from bellglass.errors import Conflict, Forbidden, NodeUnavailable
from bellglass.link import LinkClient
from bellglass.supervise.install import read_installation_id, read_link_secret
from bellglass.supervise.processes import ProcessId

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    return BOOT_ID.read_text().strip()


@dataclass(frozen=True, slots=True)
class Record:
    """What the supervisor writes to run/supervisor.json."""

    version: str
    api_url: str
    started_at: str
    processes: dict[str, ProcessId] = field(default_factory=dict)
    """By daemon: supervisor, server, node, helper, proxy, resolver, lxcfs; only what runs."""
    boot_id: str = field(default_factory=boot_id)
    """Processes of an earlier boot are dead, though others may have got their pids and start times."""

    def alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].alive()


def write_record(data: DataDir, record: Record) -> None:
    """Atomic; on a full disk in place, into the block that the record has: a stale one would hide the daemons."""
    text = json.dumps(asdict(record)) + "\n"
    temporary = data.supervisor_file.with_suffix(".new")
    try:
        temporary.write_text(text)
        temporary.chmod(0o644)
        temporary.rename(data.supervisor_file)
    except OSError as error:
        if error.errno != errno.ENOSPC or not data.supervisor_file.exists():
            raise
        temporary.unlink(missing_ok=True)
        with data.supervisor_file.open("r+") as file:
            # Padded, since JSON may end with spaces: cut off first, a crash would leave nothing to read.
            file.write(text.ljust(data.supervisor_file.stat().st_size))


def read_record(data: DataDir) -> Record | None:
    """The last supervisor's record, or None if there never was one, or nothing of it can be used."""
    try:
        raw = json.loads(data.supervisor_file.read_text())
        processes = {name: ProcessId(int(value["pid"]), int(value["start_ticks"]))
                     for name, value in raw["processes"].items()}  # fmt: skip
        if raw.get("boot_id", boot_id()) != boot_id():
            processes = {}
        return Record(str(raw["version"]), str(raw["api_url"]), str(raw["started_at"]), processes)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Lock:
    """The data folder's lock: whoever holds it is the one supervisor of this installation."""

    def __init__(self, data: DataDir) -> None:
        self._file: Path = data.lock_file
        self._option = data.option
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raises Conflict when a supervisor holds it."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Conflict(
                f"{self._file.parent} is in use by a running installation",
                hint=f"`bellglass status{self._option}` shows it, `bellglass down{self._option}` stops it",
            ) from None
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


async def _ask(data: DataDir, questions: list[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    try:
        secret = read_link_secret(data) or ""
    except PermissionError as error:
        raise Forbidden(f"{data.root} is another user's installation", hint="run it with sudo") from error
    link = await LinkClient.connect(
        data.node_socket, secret=secret, installation=read_installation_id(data), role="operator"
    )
    try:
        return [await link.call(op, dict(params)) for op, params in questions]
    finally:
        await link.close()


def ask_node(
    data: DataDir, op: str, params: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
) -> dict[str, Any]:
    """One question to the running node, as the operator. Raises NodeUnavailable (also when no answer comes in
    `timeout_s`), Forbidden."""

    async def ask() -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                return (await _ask(data, [(op, params or {})]))[0]
        except TimeoutError:
            raise NodeUnavailable(f"the node gives no answer to {op} in {timeout_s:g} s") from None

    return asyncio.run(ask())


async def _delete_all(data: DataDir, on_deleted: Any) -> int:
    secret = read_link_secret(data) or ""
    link = await LinkClient.connect(
        data.node_socket, secret=secret, installation=read_installation_id(data), role="operator"
    )
    try:
        await link.call("pool.drain", {})  # until the server, which is going too, asks for pools again
        rows = (await link.call("sandbox.list", {}))["sandboxes"]
        live = [row for row in rows if row["state"] not in ("ended", "failed") or row["disk_kept"]]
        for row in live:
            await link.call("sandbox.delete", {"sandbox_id": row["sandbox_id"], "generation": row["generation"]})
            on_deleted(row["sandbox_id"])
        await link.call("node.wait_reclaimed", {"timeout_s": 60})
        return len(live)
    finally:
        await link.close()


def delete_all_sandboxes(data: DataDir, on_deleted: Any) -> int:
    """End every sandbox of the node and wait until all is given back; answers how many there were."""
    return asyncio.run(_delete_all(data, on_deleted))
