"""Pages of docs/guides run as they stand: their blocks of code, the environment of an installation, how they end."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack, bellglass_command

FOLDER = Path(__file__).parents[2] / "docs/guides"
TOOLS = Path(bellglass_command()[0]).parent
WITHIN_S = 120


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (FOLDER / guide).read_text(), re.MULTILINE | re.DOTALL)


def environment(stack: Stack, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's without what names another installation or a proxy, and `bellglass` on PATH."""
    found = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BELLGLASS_") and not name.lower().endswith("_proxy")
    }
    return found | stack.environment | {"PATH": f"{TOOLS}:{found['PATH']}"} | dict(more or {})


def run_commands(stack: Stack, script: str, folder: Path, more: Mapping[str, str] | None = None) -> str:
    """What it prints; each of its commands succeeds."""
    done = subprocess.run(
        ["bash", "-eux", "-o", "pipefail", "-c", script],
        cwd=folder, env=environment(stack, more), capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_python(stack: Stack, guide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's one block, in this process."""
    for name, value in stack.environment.items():
        monkeypatch.setenv(name, value)
    (code,) = blocks(guide, "python")
    exec(compile(code, guide, "exec"), {})
