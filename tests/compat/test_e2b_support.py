"""The support table of the guide for those who come from E2B is what calling every method of its clients gives.

BELLGLASS_UPDATE_GUIDE=1 writes the table anew.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guides/migrate-from-e2b.md"
BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"
NEWEST, OLDEST = "e2b-2_63", "e2b-2_45"
COLUMNS = {"works": "works", "local": "asks no server", "refused": "refused: 501 `not_supported`"}
Outcomes = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def outcomes(client_environment: Callable[[str], Path], e2b_environment: dict[str, str]) -> Callable[[str], Outcomes]:
    def call_all(client: str) -> Outcomes:
        python = client_environment(client) / "bin/python"
        program = Path(__file__).parent / "python/support.py"
        done = subprocess.run([python, program], env=e2b_environment, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return dict(json.loads(done.stdout))

    return call_all


def table(newest: Outcomes, oldest: Outcomes) -> str:
    """A line a class. What only the newer client has is marked."""
    groups: dict[str, dict[str, list[str]]] = {}
    for method, found in newest.items():
        group, _, name = method.partition(".")
        shown = f"`{name}`" if method in oldest or group == "Interpreter" else f"`{name}`\\*"
        groups.setdefault(group, {}).setdefault(found["outcome"], []).append(shown)
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for group, by_outcome in groups.items():
        cells = [" ".join(sorted(by_outcome.get(outcome, []))) for outcome in COLUMNS]
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_guide_says_what_every_method_does(outcomes: Callable[[str], Outcomes], no_leak: None) -> None:
    newest, oldest = outcomes(NEWEST), outcomes(OLDEST)
    for found in (newest, oldest):
        failed = {method: said["note"] for method, said in found.items() if said["outcome"] == "failed"}
        assert not failed, "\n".join(f"{method}: {note}" for method, note in failed.items())
    differing = {method for method in oldest if newest[method]["outcome"] != oldest[method]["outcome"]}
    assert not differing, "the table is of both clients"
    assert {found["outcome"] for found in newest.values()} == set(COLUMNS)
    made = table(newest, oldest)
    text = GUIDE.read_text()
    if os.environ.get("BELLGLASS_UPDATE_GUIDE"):
        before, _, after = text.partition(BEGIN)
        text = f"{before}{BEGIN}\n{made}\n{END}{after.partition(END)[2]}"
        GUIDE.write_text(text)
    held = text.partition(BEGIN + "\n")[2].partition("\n" + END)[0]
    assert held == made, "run this test with BELLGLASS_UPDATE_GUIDE=1"
