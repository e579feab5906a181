"""Running a suite by the interpreter of a client's environment, pointed at an installation."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from bellglass.testing.stack import Stack

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
SUITE_S = 300


def e2b_variables_of(stack: Stack) -> dict[str, str]:
    """What `bellglass compat e2b` tells, with a key in the form that E2B's older clients insist on."""
    done = stack.command(
        *("compat", "e2b", "--project", "e2b", "--json"), environment={"BELLGLASS_ADMIN_KEY": stack.admin_key}
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def client_environment(name: str) -> Path:
    """The folder of an environment of clients.toml, made unless it is there."""
    done = subprocess.run(
        [ROOT / "scripts/compat_env.sh", name], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def client_variables(e2b_variables: dict[str, str]) -> dict[str, str]:
    """What points E2B's clients at the installation. Proxies of the caller would be asked even for 127.0.0.1."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "BELLGLASS_"))}
    return kept | e2b_variables | {"NO_PROXY": "127.0.0.1,localhost", "PYTHONDONTWRITEBYTECODE": "1"}


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
