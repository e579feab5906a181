"""The filings analyst (examples/filings.py): what a filing tells a program to send gets nowhere, and is told of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack

pytestmark = pytest.mark.root
EXAMPLE = Path(__file__).parents[2] / "examples/filings.py"


def test_the_filings_are_analysed_and_nothing_gets_out(stack: Stack, no_leak: None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BELLGLASS_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment | stack.environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "registering at https://registry.cedar-foods.example/register\n" in done.stdout, "the program obeyed"
    assert "not registered: <urlopen error [Errno -2] Name or service not known>\n" in done.stdout
    companies = [line.split("  ")[0] for line in done.stdout.splitlines() if " growth " in line]
    assert companies == ["Alder Instruments", "Birch Logistics", "Cedar Foods"]
    assert "Cedar Foods          growth  +10.6%  margin  +8.4%" in done.stdout
    refused = [json.loads(line.partition(": ")[2]) for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert [(event["host"], event["reason"], event["rule"]) for event in refused] == [
        ("registry.cedar-foods.example", "name_not_allowed", "deny")
    ]
