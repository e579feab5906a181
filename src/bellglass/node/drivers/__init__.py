"""The isolation drivers by name, imported on use. Each class has `open(context)` and then the contract of base.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bellglass.datadir import DataDir
from bellglass.errors import InvalidRequest
from bellglass.node.drivers.base import Driver

DRIVERS = {
    "runc": "bellglass.node.drivers.runc:RuncDriver",
    "crun": "bellglass.node.drivers.runc:CrunDriver",
    "fake": "bellglass.node.drivers.fake:FakeDriver",
}


@dataclass(frozen=True, slots=True)
class DriverContext:
    """What a driver is opened with."""

    data: DataDir
    installation: str
    settings: Mapping[str, Any]
    templates_dir: Path
    agent_binary: Path
    helper_fd: int | None
    """SOCK_SEQPACKET to the root helper, which the driver takes over; None where there is no helper."""
    on_helper_lost: Callable[[str], object] | None = None
    """Called with the reason when the helper has died."""


async def open_driver(name: str, context: DriverContext) -> Driver:
    """Raises InvalidRequest for an unknown name, and what the driver's `open` raises."""
    if name not in DRIVERS:
        raise InvalidRequest(
            f"node.driver: {name!r} is none of {', '.join(sorted(DRIVERS))}", details={"field": "node.driver"}
        )
    module, _, attribute = DRIVERS[name].partition(":")
    driver_class = getattr(importlib.import_module(module), attribute)
    return cast(Driver, await driver_class.open(context))
