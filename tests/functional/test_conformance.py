"""Every driver passes the shipped conformance suite, through the whole path: SDK, server, node, driver, agent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from bellglass.node.drivers import DRIVERS
from bellglass.testing.conformance import CHECKS

UNTESTED = {"crun": "crun is not installed, and this path is marked untested until it has run"}


@pytest.fixture(scope="module", params=sorted(DRIVERS))
def driver_box(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A sandbox of each driver of the registry."""
    driver = request.param
    if driver in UNTESTED and shutil.which(driver) is None:
        pytest.skip(UNTESTED[driver])
    if driver == "runc":
        running = request.getfixturevalue("stack")
    elif driver == "fake":
        running = request.getfixturevalue("fake_stack")
    else:
        from bellglass.testing.stack import Stack

        running = request.getfixturevalue("exit_stack").enter_context(Stack.start(driver=driver))
    with running.sandbox(cpus=1, memory="512MiB", disk="1GiB", lifetime="15m") as box:
        box.exec(["echo", "the first output makes the folder of its logs"])
        yield box


@pytest.mark.parametrize("name", CHECKS)
def test_conformance(driver_box: Any, name: str) -> None:
    CHECKS[name](driver_box)
