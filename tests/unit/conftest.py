"""The fake API, served on a port of this machine, as the environment's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fake_api.fake_api import KEY, FakeApi
from tests.unit.fake_api.fake_server import Server


@pytest.fixture(scope="module")
def running_server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def server(running_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The running server; its `app` is a fake API of the test's own."""
    root = tmp_path / "boxes"
    root.mkdir()
    running_server.play(FakeApi(root))
    monkeypatch.setenv("BELLGLASS_API_URL", running_server.url)
    monkeypatch.setenv("BELLGLASS_API_KEY", KEY)
    monkeypatch.setenv("BELLGLASS_PROFILE", str(tmp_path / "no-profile.json"))
    return running_server


@pytest.fixture
def fake(server: Any) -> Any:
    return server.app
