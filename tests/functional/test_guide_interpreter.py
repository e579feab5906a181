"""The code and the commands of docs/guides/interpreter.md, as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import blocks, environment

pytestmark = pytest.mark.root
GUIDE = "interpreter.md"


@pytest.mark.parametrize("number", range(3))
def test_the_code_runs(stack: Stack, number: int) -> None:
    code = blocks(GUIDE, "python")
    assert len(code) == 3
    done = subprocess.run(
        [sys.executable, "-c", code[number]], env=environment(stack), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_commands_print_what_the_guide_says(stack: Stack, tmp_path: Path) -> None:
    build, session = blocks(GUIDE, "console")
    assert build.strip() == "$ make template-interpreter"  # it was, or this file would have nothing to run in
    script, printed = [], ""
    for line in session.splitlines():
        if line.startswith("$ "):
            script.append(line[2:])
        else:
            printed += line + "\n"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(script)], env=environment(stack), cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(printed) or printed in done.stdout, done.stdout
    assert (tmp_path / "result-1.png").read_bytes().startswith(b"\x89PNG")


def test_code_that_raises_ends_with_1_and_its_traceback(stack: Stack) -> None:
    with stack.sandbox("interpreter", cpus=1, memory="512MiB", disk="512MiB", lifetime="10m") as box:
        ran = stack.command("run-code", box.id, "print('out')\n1/0")
        assert (ran.returncode, ran.stdout) == (1, b"out\n") and b"ZeroDivisionError" in ran.stderr
        late = stack.command("run-code", "--timeout", "0.3", box.id, "while True: pass")
        assert late.returncode == 1 and b"timeout" in late.stderr
        fine = stack.command("run-code", "--json", box.id, "5")
        assert fine.returncode == 0 and b'"text/plain": "5"' in fine.stdout
