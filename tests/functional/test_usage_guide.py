"""The guide of metrics, logs and lifetimes: its commands and its Python run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack, bellglass_command

pytestmark = pytest.mark.root
GUIDE = Path(__file__).parents[2] / "docs/guides/usage.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_guide(
    stack: Stack, no_leak: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = BLOCK.findall(GUIDE.read_text())
    (script,) = (text for kind, text in blocks if kind == "sh")
    environment = {**os.environ, **stack.environment}
    environment["PATH"] = f"{Path(bellglass_command()[0]).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eux", "-o", "pipefail", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    samples = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert samples[-1]["memory_cache_bytes"] > 32 * 2**20
    assert samples[-1]["disk_bytes"] > samples[-1]["disk_used_bytes"]
    assert len(re.findall(r"stdout  written$", done.stdout, re.MULTILINE)) == 2
    assert len(re.findall(r"event   sandbox\.running", done.stdout)) == 1
    assert re.search(r"(step=2,team=data|team=data,step=2)$", done.stdout, re.MULTILINE)
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    (code,) = (text for kind, text in blocks if kind == "python")
    exec(compile(code, str(GUIDE), "exec"), {})
    shown = capsys.readouterr().out
    assert "ended: exit code 0" in shown
