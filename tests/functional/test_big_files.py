"""2 GiB up and down: equal sums, and no process's memory grows with the size of the file."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bellglass.testing import kernel

SIZE = 2 << 30
PIECE = 1 << 20
ALLOWED = 64 << 20

CLIENT = """
import resource, sys
from bellglass import Sandbox
direction, identity, remote, local = sys.argv[1:]
box = Sandbox.connect(identity)
box.files.write_text("small", "x"); box.files.read_text("small")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if direction == "up":
    box.files.upload(local, remote)
else:
    box.files.download(remote, local)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""

SHA256 = "import hashlib; print(hashlib.file_digest(open('big', 'rb'), 'sha256').hexdigest())"
"""A fourth of the time that coreutils take, which know no instruction for it."""


def client(stack: Any, *arguments: str) -> int:
    """How much a client process grew by one transfer, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments],
        env={"PATH": os.environ["PATH"], **stack.environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    """Incompressible in pieces, cheap to make, and not sparse."""
    path = tmp_path / "big"
    piece = os.urandom(PIECE)
    with open(path, "wb") as file:
        for number in range(SIZE // PIECE):
            file.write(number.to_bytes(8, "little"))
            file.write(piece[8:])
    return path


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.timeout(300)
def test_two_gibibytes_move_with_flat_memory(
    new_box: Callable[..., Any], stack: Any, big_file: Path, tmp_path: Path
) -> None:
    box = new_box(disk="5GiB")
    box.exec(["true"])
    pids = {name: pid for name, pid in stack.pids().items() if name in ("server", "node", "helper")}
    before = {name: kernel.resident_bytes(pid) for name, pid in pids.items()}
    for pid in pids.values():
        kernel.reset_peak_memory(pid)
    wanted = sha256(big_file)
    grown = {"client up": client(stack, "up", box.id, "big", str(big_file))}
    assert box.exec(["python3", "-c", SHA256], timeout=120).stdout.strip() == wanted
    big_file.unlink()
    grown["client down"] = client(stack, "down", box.id, "big", str(tmp_path / "back"))
    assert sha256(tmp_path / "back") == wanted
    grown |= {name: kernel.peak_memory_bytes(pid) - before[name] for name, pid in pids.items()}
    agent = box.exec("grep VmHWM /proc/1/status", user="root").stdout.split()
    assert int(agent[1]) < 8 * 1024, f"the agent had {agent[1]} KiB resident"
    (tmp_path / "back").unlink()
    assert all(size < ALLOWED for size in grown.values()), {name: f"{size >> 20} MiB" for name, size in grown.items()}
