"""Fixtures of the machine tests: they need root, the container runtime and the base template."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bellglass.testing.leaks import Resources, assert_no_leak, snapshot

_spec = importlib.util.spec_from_file_location("driver_rig", Path(__file__).with_name("rig.py"))
assert _spec is not None and _spec.loader is not None
driver_rig = importlib.util.module_from_spec(_spec)
sys.modules["driver_rig"] = driver_rig
_spec.loader.exec_module(driver_rig)


@pytest.fixture(scope="session")
def rig() -> Iterator[Any]:
    assert os.geteuid() == 0, "machines need root"
    with driver_rig.new_rig() as made:
        yield made


@pytest.fixture(scope="module")
def machine(rig: Any) -> Iterator[Any]:
    """One machine for all tests of a file that leave it as it was."""
    with rig.machine() as made:
        yield made


@pytest.fixture
def clean(rig: Any) -> Iterator[None]:
    """Nothing that the test makes is left. Namespaces are left out: the kernel counts them for the whole machine."""
    before = snapshot(rig.scope)
    yield
    kinds = {kind: found for kind, found in before.items.items() if kind != "namespace"}
    kinds["namespace"] = snapshot(rig.scope).items["namespace"] + before.items["namespace"]
    assert_no_leak(Resources(before.scope, kinds), deadline_s=5)
