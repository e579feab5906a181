"""A machine by its first process: what is kept of it, and the wait for its end."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, dataclass

from bellglass.errors import InternalError
from bellglass.node.helper.context import start_ticks

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class MachineState:
    pid: int
    start_ticks: int
    range: int
    runtime_version: str

    def encode(self) -> bytes:
        return json.dumps({"v": STATE_VERSION} | asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> MachineState:
        fields = json.loads(data)
        if fields.pop("v") != STATE_VERSION:
            raise InternalError("the state of a machine was written by another version of the driver")
        return cls(**fields)


def open_process(state: MachineState) -> int | None:
    """A pidfd of the machine's first process, or None if it is dead: its pid may be another's by now."""
    try:
        pidfd = os.pidfd_open(state.pid)
    except ProcessLookupError:
        return None
    try:
        if start_ticks(state.pid) == state.start_ticks:
            return pidfd
    except (FileNotFoundError, ProcessLookupError):
        pass
    os.close(pidfd)
    return None


async def ended(state: MachineState) -> None:
    """Until the machine's first process is dead."""
    pidfd = open_process(state)
    if pidfd is None:
        return
    loop = asyncio.get_running_loop()
    dead = asyncio.Event()
    loop.add_reader(pidfd, dead.set)
    try:
        await dead.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
