"""Frameworks that work with E2B, unmodified, against the façade: each in an environment of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.suites import run_python, run_typescript

pytestmark = pytest.mark.root
Environments = Callable[[str], Path]


def test_openai_agents(client_environment: Environments, e2b_environment: dict[str, str], no_leak: None) -> None:
    run_python("openai_agents.py", client_environment("openai-agents"), e2b_environment, of="adapters")


def test_computesdk(
    client_environment: Environments, e2b_environment: dict[str, str], tmp_path: Path, no_leak: None
) -> None:
    run_typescript("computesdk.mts", client_environment("computesdk"), e2b_environment, tmp_path, of="adapters")
