"""Fixtures of the server's tests. The harness lies beside and is no package: importlib mode leaves sys.path alone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from preview_rig import Program, program
from server_harness import Harness

from bellglass.server import logs

logs.set_up(logging.ERROR)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One server for a module; tests that stop the node or the server make their own."""
    harness = Harness(tmp_path_factory.mktemp("server")).start()
    yield harness
    harness.stop()


@pytest.fixture
def own_harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path / "data").start()
    yield harness
    harness.stop()


@pytest.fixture(scope="module")
def api(harness: Harness) -> httpx2.Client:
    """A client of project p1."""
    return harness.project("p1")


@pytest.fixture(scope="module")
def shown() -> Iterator[Program]:
    """A program that visitors of published ports see, for a module; it answers with the head that came."""
    with program() as made:
        yield made


@pytest.fixture(autouse=True)
def node_at_ease(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that made the node fail leaves nothing of it."""
    yield
    if "harness" in request.fixturenames:
        peer = request.getfixturevalue("harness").peer
        peer.fail.clear()
        peer.gates.clear()
