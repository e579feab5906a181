"""The guide of bills: its program and its commands as they stand, for a project of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import blocks, run_commands

pytestmark = pytest.mark.root


def test_the_guide(stack: Stack, no_leak: None, tmp_path: Path) -> None:
    (program,), (script,) = blocks("bill.md", "python"), blocks("bill.md", "sh")
    (tmp_path / "bill.py").write_text(program)
    key = {"BELLGLASS_API_KEY": stack.create_key()}
    printed = run_commands(stack, script, tmp_path, key)
    found = re.search(r"^4711\tcpu ([0-9.]+) h\tmemory GiB ([0-9.]+) h\tdisk GiB ([0-9.]+) h$", printed, re.MULTILINE)
    assert found, printed
    cpu, memory, disk = map(float, found.groups())
    assert cpu >= 2 / 3600 - 0.0001 and cpu == disk and abs(memory - cpu / 2) <= 0.0001
    # One that runs is counted so far; another project's are not.
    more = "bellglass create --cpus 1 --memory 512MiB --disk 1GiB > id; bellglass events --json | python3 bill.py"
    assert set(re.findall(r"^(\S+)\t", run_commands(stack, more, tmp_path, key), re.MULTILINE)) == {"4711", "-"}
    run_commands(stack, "bellglass rm $(cat id)", tmp_path, key)
