"""Bellglass as a sandbox of Inspect: installed as people do, Inspect's own checks whole, and the guide's commands."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/inspect.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKS = 44
"""As many as Inspect has in the version that clients.toml names."""
OURS = 6


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of Inspect's environment."""
    done = run([str(ROOT / "scripts/compat_env.sh"), "inspect"], ROOT, os.environ, seconds=600)
    return Path(done.strip().splitlines()[-1]) / "bin/python"


@pytest.fixture(scope="module")
def environment(stack: Stack, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """With this tree as a wheel, so that Inspect finds the provider by its entry point."""
    site = tmp_path_factory.mktemp("site")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    run([*pip, "--no-build-isolation", "--no-index", "--target", str(site), str(ROOT)], ROOT, os.environ)
    proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
    kept = {name: value for name, value in os.environ.items() if name not in proxies}
    yield (
        kept
        | stack.environment
        | {
            "PYTHONPATH": str(site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }
    )


def run(command: list[str], folder: Path, environment: Mapping[str, str], *, seconds: int = 300) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def test_all_of_inspects_own_checks(python: Path, environment: dict[str, str], no_leak: None) -> None:
    shown = run([str(python), "-m", "pytest", "-q"], Path(__file__).parent / "inspect", environment)
    assert shown.strip().splitlines()[-1].startswith(f"{CHECKS + OURS} passed"), shown
    listed = run(
        [str(python), "-c", "import inspect_ai.util._sandbox.self_check as c; print(len(c.__all__))"], ROOT, environment
    )
    assert int(listed) == CHECKS


def test_the_guide(python: Path, environment: dict[str, str], tmp_path: Path, no_leak: None) -> None:
    blocks = BLOCK.findall(GUIDE.read_text())
    task, more = (text for kind, text in blocks if kind == "python")
    (commands,) = (text for kind, text in blocks if kind == "sh")
    (tmp_path / "count_words.py").write_text(task)
    shown = run(["bash", "-eux", "-c", commands], tmp_path, environment)
    assert len(re.findall(r"accuracy\s+1\.000", shown)) == 2, shown
    checked = "\nassert SANDBOX.config.options()['network'].presets == ['pip']\n"
    run([str(python), "-c", more + checked], tmp_path, environment)
