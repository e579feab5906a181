"""The guide on published ports does what it says: its commands and its Python are run as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import blocks, run_commands, run_python

pytestmark = pytest.mark.root


def test_its_commands_and_its_python(
    stack: Stack, no_leak: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "\n".join(blocks("previews.md", "sh"))
    assert script.count("bellglass publish") == 6 and "previews ca" in script
    printed = run_commands(
        stack, script + '\nbellglass rm "$id"\n', tmp_path, {"BELLGLASS_DATA_DIR": str(stack.data_dir)}
    )
    assert "private" in printed and "tls_cert" in printed
    assert "frame-ancestors https://app.example.com" in printed
    run_python(stack, "previews.md", monkeypatch)
