"""E2B's own SDKs against the façade: the suites of python/ and typescript/, by the clients' own interpreters."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON_SUITES = sorted(path.name for path in (HERE / "python").glob("e2b_*.py"))
TYPESCRIPT_SUITES = sorted(path.name for path in (HERE / "typescript").glob("e2b_*.mts"))
SUITE_S = 300


@pytest.mark.parametrize("suite", PYTHON_SUITES)
@pytest.mark.parametrize("client", ["e2b-2_63", "e2b-2_45"])
def test_python(
    client: str, suite: str, client_environment: Callable[[str], Path], e2b_environment: dict[str, str], no_leak: None
) -> None:
    python = client_environment(client) / "bin/python"
    run([str(python), "-m", "pytest", suite], e2b_environment, HERE / "python")


@pytest.mark.parametrize("suite", TYPESCRIPT_SUITES)
def test_typescript(
    suite: str,
    client_environment: Callable[[str], Path],
    e2b_environment: dict[str, str],
    tmp_path: Path,
    no_leak: None,
) -> None:
    # Modules are looked for beside the file that imports them.
    made = client_environment("e2b-js")
    (tmp_path / "node_modules").symlink_to(made / "node_modules")
    (tmp_path / suite).write_text((HERE / "typescript" / suite).read_text())
    run([str(made / "node"), "--import", "tsx", "--test", "--test-timeout=120000", suite], e2b_environment, tmp_path)


def run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SUITE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
