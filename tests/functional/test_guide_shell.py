"""The guide on shells does what it says: its commands and its Python are run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack, bellglass_command

pytestmark = pytest.mark.root
GUIDE = Path(__file__).parents[2] / "docs/guides/shell.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_its_commands_and_its_python(stack: Stack, no_leak: None, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = BLOCK.findall(GUIDE.read_text())
    script = "\n".join(text for kind, text in blocks if kind == "sh")
    assert script.count("bellglass shell") == 1
    environment = {**os.environ, **stack.environment}
    environment["PATH"] = f"{Path(bellglass_command()[0]).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eux", "-o", "pipefail", "-c", script],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/dev/pts/" in done.stdout and "24 80" in done.stdout
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    (code,) = [text for kind, text in blocks if kind == "python"]
    exec(compile(code, str(GUIDE), "exec"), {})
