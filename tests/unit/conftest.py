"""The fake API, served on a port of this machine, as the environment's server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest


def _fake_api() -> Any:
    spec = spec_from_file_location("bellglass_fake_api", Path(__file__).parent / "sdk" / "fake_api.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fake_module() -> Iterator[tuple[Any, Any]]:
    module = _fake_api()
    running = module.Server()
    yield module, running
    running.close()


@pytest.fixture
def server(fake_module: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The running server; its `app` is a fake API of the test's own."""
    module, running = fake_module
    root = tmp_path / "boxes"
    root.mkdir()
    running.play(module.FakeApi(root))
    monkeypatch.setenv("BELLGLASS_API_URL", running.url)
    monkeypatch.setenv("BELLGLASS_API_KEY", module.KEY)
    monkeypatch.setenv("BELLGLASS_PROFILE", str(tmp_path / "no-profile.json"))
    return running


@pytest.fixture
def fake(server: Any) -> Any:
    return server.app
