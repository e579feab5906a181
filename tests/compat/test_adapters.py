"""Frameworks that work with E2B, unmodified, against the façade: each in an environment of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.root
HERE = Path(__file__).parent / "adapters"


def run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-5000:]}"


def test_openai_agents(
    client_environment: Callable[[str], Path], e2b_environment: dict[str, str], no_leak: None
) -> None:
    python = client_environment("openai-agents") / "bin/python"
    run([str(python), "-m", "pytest", "openai_agents.py"], e2b_environment, HERE)


def test_computesdk(
    client_environment: Callable[[str], Path], e2b_environment: dict[str, str], tmp_path: Path, no_leak: None
) -> None:
    # Modules are looked for beside the file that imports them.
    (tmp_path / "node_modules").symlink_to(client_environment("computesdk") / "node_modules")
    (tmp_path / "computesdk.mts").write_text((HERE / "computesdk.mts").read_text())
    node = ["node", "--import", "tsx", "--test", "--test-timeout=120000", "computesdk.mts"]
    run(node, e2b_environment, tmp_path)
