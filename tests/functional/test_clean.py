"""`make clean` takes no template away from below a sandbox that runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.root
SCRIPTS = Path(__file__).parents[2] / "scripts"


def clean(checkout: Path, *inside: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BELLGLASS_CACHE": str(checkout / "cache")}
    return subprocess.run(
        [*inside, str(checkout / "scripts/clean.sh")],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_it_is_refused_while_a_sandbox_runs(shared_box, tmp_path: Path) -> None:
    assert shared_box.exec("true").ok
    # A checkout of its own: what is removed is named by where the script lies.
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    template = tmp_path / "cache/templates/base-0123456789abcdef/rootfs"
    template.mkdir(parents=True)
    refused = clean(tmp_path)
    assert refused.returncode == 1 and "bellglass down --sandboxes" in refused.stderr
    assert template.is_dir()
    # Where no process of a sandbox is to be seen it goes.
    done = clean(tmp_path, "unshare", "--pid", "--fork", "--mount-proc")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cache").exists()
