"""The closing line of `make test`: counts that add up, and a failure that can't hide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/count_tests.py"
REPORT = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}"/></testsuites>'


def run(reports: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, SCRIPT, reports, *arguments], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()[-1]


def test_adds_reports_and_plain_stages(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(REPORT.format(10, 0, 0, 1))
    (tmp_path / "functional.xml").write_text(REPORT.format(5, 0, 0, 0))
    assert run(tmp_path, "3", "0") == (0, "17 passed, 0 failed, 1 skipped")


def test_failures_and_errors_count_as_failed(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(REPORT.format(10, 1, 2, 0))
    assert run(tmp_path, "0", "1", "unit", "fuzz") == (1, "7 passed, 4 failed, 0 skipped")


def test_a_stage_that_failed_without_a_failed_test_fails(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(REPORT.format(10, 0, 0, 0))
    assert run(tmp_path, "0", "0", "unit") == (1, "10 passed, 1 failed, 0 skipped")
    assert run(tmp_path, "0", "0", "functional")[0] == 1
