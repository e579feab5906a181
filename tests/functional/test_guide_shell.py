"""The guide on shells does what it says: its commands and its Python are run as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import blocks, run_commands, run_python

pytestmark = pytest.mark.root


def test_its_commands_and_its_python(
    stack: Stack, no_leak: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "\n".join(blocks("shell.md", "sh"))
    assert script.count("bellglass shell") == 1
    printed = run_commands(stack, script, tmp_path)
    assert "/dev/pts/" in printed and "24 80" in printed
    run_python(stack, "shell.md", monkeypatch)
