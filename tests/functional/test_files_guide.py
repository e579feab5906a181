"""What docs/guides/files.md shows runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import WITHIN_S, blocks, environment, run_commands

PYTHON = blocks("files.md", "python")


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python(stack: Stack, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(stack), capture_output=True, text=True, timeout=WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    if "watch(" in code:
        assert "create out" in done.stdout and "rename out" in done.stdout and "create done" in done.stdout


def test_shell(stack: Stack, tmp_path: Path) -> None:
    (block,) = blocks("files.md", "sh")
    printed = run_commands(stack, block, tmp_path)
    lines = [line.split() for line in printed.splitlines()]
    assert [line for line in lines if line[-1:] == ["here"]] == [["create", "here"], ["chmod", "here"]], printed
