"""Running a suite by the interpreter of a client's environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SUITE_S = 300


def run_python(suite: str, client: Path, environment: dict[str, str], *, of: str = "python") -> None:
    """`client`: the folder of a client environment; `environment`: the variables; `of`: where the suite lies."""
    _run([str(client / "bin/python"), "-m", "pytest", suite], environment, HERE / of)


def run_typescript(
    suite: str, client: Path, environment: dict[str, str], folder: Path, *, of: str = "typescript"
) -> None:
    """In `folder`, which is empty: modules are looked for beside the file that imports them. Timers that a client
    leaves behind (60 s of each run of code) are not waited for."""
    (folder / "node_modules").symlink_to(client / "node_modules")
    (folder / suite).write_text((HERE / of / suite).read_text())
    _run(
        [str(client / "node"), "--import", "tsx", "--test", "--test-force-exit", "--test-timeout=120000", suite],
        environment,
        folder,
    )


def _run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SUITE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
