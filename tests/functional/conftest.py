"""What several files of these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bellglass.testing.stack import Stack
from bellglass.testing.world import World
from tests.conftest import SANDBOX_OPTIONS, end
from tests.functional.own import own_installation


@pytest.fixture(scope="module")
def own_box(own_stack: Stack) -> Iterator[Any]:
    """One sandbox in it for all tests of the file."""
    with own_stack.sandbox(**SANDBOX_OPTIONS) as box:
        yield box


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A private internet for all tests of the file."""
    with World() as made:
        yield made


@pytest.fixture(scope="module")
def world_stack(world: World) -> Iterator[Stack]:
    """An installation on its host. Tests enter it by `with world.inside()`: the suite's others stay outside."""
    with own_installation(world=world) as running:
        yield running


@pytest.fixture(scope="module")
def interpreter(stack: Stack) -> Iterator[Any]:
    """A sandbox of the interpreter template for all tests of a file; `no_leak` leaves these to the end of all tests."""
    made = stack.sandbox("interpreter", cpus=2, memory="1GiB", disk="2GiB", lifetime="15m")
    yield made
    end(made)
