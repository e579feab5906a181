"""E2B's own SDKs against the façade: the suites of python/ and typescript/, by the clients' own interpreters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.suites import HERE, run_python, run_typescript

PYTHON_SUITES = sorted(path.name for path in (HERE / "python").glob("e2b_*.py"))
TYPESCRIPT_SUITES = sorted(path.name for path in (HERE / "typescript").glob("e2b_*.mts"))


@pytest.mark.parametrize("suite", PYTHON_SUITES)
@pytest.mark.parametrize("client", ["e2b-2_63", "e2b-2_45"])
def test_python(
    client: str, suite: str, client_environment: Callable[[str], Path], e2b_environment: dict[str, str], no_leak: None
) -> None:
    run_python(suite, client_environment(client), e2b_environment)


@pytest.mark.parametrize("suite", TYPESCRIPT_SUITES)
def test_typescript(
    suite: str,
    client_environment: Callable[[str], Path],
    e2b_environment: dict[str, str],
    tmp_path: Path,
    no_leak: None,
) -> None:
    run_typescript(suite, client_environment("e2b-js"), e2b_environment, tmp_path)
