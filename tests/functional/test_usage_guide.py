"""The guide of metrics, logs and lifetimes: its commands and its Python run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import blocks, run_commands, run_python

pytestmark = pytest.mark.root


def test_the_guide(
    stack: Stack, no_leak: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = blocks("usage.md", "sh")
    printed = run_commands(stack, script, tmp_path)
    samples = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert samples[-1]["memory_cache_bytes"] > 32 * 2**20
    assert samples[-1]["disk_bytes"] > samples[-1]["disk_used_bytes"]
    assert len(re.findall(r"stdout  written$", printed, re.MULTILINE)) == 2
    assert len(re.findall(r"event   sandbox\.running", printed)) == 1
    assert re.search(r"(step=2,team=data|team=data,step=2)$", printed, re.MULTILINE)
    run_python(stack, "usage.md", monkeypatch)
    shown = capsys.readouterr().out
    assert "ended: exit code 0" in shown
