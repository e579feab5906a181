"""What docs/guides/files.md shows runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack, bellglass_command

GUIDE = Path(__file__).parents[2] / "docs/guides/files.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def environment(stack: Stack) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("BELLGLASS_")}
    return found | stack.environment | {"PATH": f"{Path(bellglass_command()[0]).parent}:{found['PATH']}"}


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python(stack: Stack, number: int) -> None:
    python = str(Path(bellglass_command()[0]).with_name("python"))
    done = subprocess.run(
        [python, "-c", blocks("python")[number]], env=environment(stack), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if "watch(" in blocks("python")[number]:
        assert "create out" in done.stdout and "rename out" in done.stdout and "create done" in done.stdout


def test_shell(stack: Stack) -> None:
    (block,) = blocks("sh")
    done = subprocess.run(["bash", "-ec", block], env=environment(stack), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line for line in lines if line[-1:] == ["here"]] == [["create", "here"], ["chmod", "here"]], done.stdout
