"""The private internet with an installation in it, for tests that judge the egress boundary from inside sandboxes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from bellglass.testing.egress import HOST_ADDRESSES
from bellglass.testing.internet import Internet
from bellglass.testing.stack import Stack
from tests.functional.own import own_installation
from tests.security.inside import Inside

SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "30m"}
EXCEPTION = "192.168.7.7"
"""Behind the floor, and taken out of it by the operator."""


@pytest.fixture(scope="session")
def internet_stack() -> Iterator[tuple[Internet, Stack]]:
    """Its listeners are on an address of the host that packets could come to. Nothing of it may be left afterwards."""
    settings = {
        "egress.exceptions": [f"{EXCEPTION}/32"],
        "server.listen": HOST_ADDRESSES[0],
        "previews.listen": HOST_ADDRESSES[0],
    }
    with Internet() as internet:
        with own_installation(settings=settings, world=internet) as stack:
            yield internet, stack


@pytest.fixture(scope="module")
def internet(internet_stack: tuple[Internet, Stack]) -> Iterator[Internet]:
    """As long as the file's tests run, this thread is on the internet's host."""
    with internet_stack[0].inside():
        yield internet_stack[0]


@pytest.fixture(scope="module")
def inside(internet_stack: tuple[Internet, Stack], internet: Internet) -> Iterator[Inside]:
    """One sandbox for all tests of a file; each sets the policy that it needs. At the end every refusal of theirs has
    to have been told of."""
    with internet_stack[1].sandbox(**SMALL) as box, contextlib.closing(Inside(box, *internet_stack)) as made:
        yield made
        made.all_told()
