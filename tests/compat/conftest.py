"""The façades of other products, driven by those products' own clients, each version in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack

ROOT = Path(__file__).parents[2]
SUITES_S = 300
# The clients' own interpreters run these; here their packages are missing.
collect_ignore = ["python", "typescript"]


@pytest.fixture(scope="session")
def e2b_key(stack: Stack) -> str:
    """A key in the form that E2B's older clients insist on."""
    done = stack.command(
        *("keys", "create", "--project", "e2b", "--format", "e2b", "--json"),
        environment={"BELLGLASS_API_KEY": stack.admin_key},
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["secret"])


@pytest.fixture(scope="session")
def e2b_environment(stack: Stack, e2b_key: str) -> dict[str, str]:
    """What points E2B's clients at the installation. Proxies of the caller would be asked even for 127.0.0.1."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "BELLGLASS_"))}
    return kept | {
        "E2B_API_URL": f"{stack.api_url}/compat/e2b",
        "E2B_SANDBOX_URL": stack.api_url,
        "E2B_API_KEY": e2b_key,
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture(scope="session")
def client_environment() -> Callable[[str], Path]:
    """The folder of an environment of clients.toml, made unless it is there."""

    def folder(name: str) -> Path:
        done = subprocess.run(
            [ROOT / "scripts/compat_env.sh", name], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    return folder
