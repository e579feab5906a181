"""Adds up pytest's junit reports and the other stages into the one closing line of `make test`.

Usage: count_tests.py REPORTS_DIR PLAIN_PASSED PLAIN_FAILED [FAILED_STAGE...]
Exits 1 when a test failed, or a stage did though every test in its report passed (a crash of the run).
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def count(reports: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) over all reports; an error in a fixture is a failure."""
    passed = failed = skipped = 0
    for report in sorted(reports.glob("*.xml")):
        for suite in ElementTree.parse(report).iter("testsuite"):
            bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            left_out = int(suite.get("skipped", 0))
            failed += bad
            skipped += left_out
            passed += int(suite.get("tests", 0)) - bad - left_out
    return passed, failed, skipped


def main(argv: list[str]) -> int:
    reports, plain_passed, plain_failed, *failed_stages = argv
    passed, failed, skipped = count(Path(reports))
    passed, failed = passed + int(plain_passed), failed + int(plain_failed)
    if failed_stages and not failed:
        failed = len(failed_stages)
    if failed_stages:
        print(f"failed stages: {', '.join(failed_stages)}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
