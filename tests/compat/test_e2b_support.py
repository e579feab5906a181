"""The support tables of the guide for those who come from E2B are what calling every method of its clients gives.

BELLGLASS_UPDATE_GUIDE=1 writes them anew.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.suites import HERE

GUIDE = Path(__file__).parents[2] / "docs/guides/migrate-from-e2b.md"
PYTHON_TABLE, NPM_TABLE = "support", "support-npm"
NEWEST, OLDEST = "e2b-2_63", "e2b-2_45"
COLUMNS = {"works": "works", "local": "asks no server", "refused": "refused: 501 `not_supported`"}
Outcomes = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def outcomes(client_environment: Callable[[str], Path], e2b_environment: dict[str, str]) -> Callable[[str], Outcomes]:
    def call_all(client: str) -> Outcomes:
        return _printed([client_environment(client) / "bin/python", HERE / "python/support.py"], e2b_environment)

    return call_all


def _printed(command: list[str | Path], environment: dict[str, str], folder: Path | None = None) -> Outcomes:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


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


def hold(name: str, made: str) -> None:
    """The guide has this table between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = GUIDE.read_text()
    if os.environ.get("BELLGLASS_UPDATE_GUIDE"):
        before, _, after = text.partition(begin)
        text = f"{before}{begin}\n{made}\n{end}{after.partition(end)[2]}"
        GUIDE.write_text(text)
    held = text.partition(begin + "\n")[2].partition("\n" + end)[0]
    assert held == made, "run this test with BELLGLASS_UPDATE_GUIDE=1"


def none_failed(found: Outcomes) -> None:
    failed = {method: said["note"] for method, said in found.items() if said["outcome"] == "failed"}
    assert not failed, "\n".join(f"{method}: {note}" for method, note in failed.items())
    assert {said["outcome"] for said in found.values()} == set(COLUMNS)


def test_the_guide_says_what_every_method_does(outcomes: Callable[[str], Outcomes], no_leak: None) -> None:
    newest, oldest = outcomes(NEWEST), outcomes(OLDEST)
    for found in (newest, oldest):
        none_failed(found)
    differing = {method for method in oldest if newest[method]["outcome"] != oldest[method]["outcome"]}
    assert not differing, "the table is of both clients"
    hold(PYTHON_TABLE, table(newest, oldest))


def test_and_every_method_of_the_npm_clients(
    client_environment: Callable[[str], Path], e2b_environment: dict[str, str], tmp_path: Path, no_leak: None
) -> None:
    client = client_environment("e2b-js")
    (tmp_path / "node_modules").symlink_to(client / "node_modules")
    (tmp_path / "support.mts").write_text((HERE / "typescript/support.mts").read_text())
    found = _printed([client / "node", "--import", "tsx", "support.mts"], e2b_environment, tmp_path)
    none_failed(found)
    hold(NPM_TABLE, table(found, found))
