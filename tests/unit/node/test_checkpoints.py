"""The records' WAL is written back by a thread: the loop, which writes the records, does not wait for the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bellglass.node.executions import records as module
from bellglass.node.executions.records import CHECKPOINT_WRITES, Records, StoredExecution
from tests.unit.node.node_looks import until

FRAME_BYTES = 4096 + 24


def write(records: Records, start: int, count: int) -> None:
    for number in range(start, start + count):
        stored = StoredExecution(f"ex{number:08d}", number, "d" * 64, "running", {"argv": ["/bin/true"] * 20}, {})
        records.insert("sb1", stored)


def wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def restarts(path: Path) -> int:
    """How often the WAL has begun anew: the checkpoint sequence number of its header (sqlite.org/fileformat2.html)."""
    return int.from_bytes(wal(path).read_bytes()[12:16], "big")


def is_written_back(path: Path) -> bool:
    """All of the WAL's frames: mxFrame and nBackfill of the WAL index (sqlite.org/walformat.html)."""
    index = path.with_name(path.name + "-shm").read_bytes()
    return index[16:20] == index[96:100]


def test_what_was_written_comes_into_the_file_and_the_wal_begins_anew(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "WAL_PAGES", 1 << 30)  # the loop itself makes none
    path = tmp_path / "executions.db"
    records = Records(path)
    small, before = path.stat().st_size, restarts(path)
    write(records, 0, CHECKPOINT_WRITES // 2)
    assert path.stat().st_size == small  # control: without a checkpoint nothing writes it
    write(records, CHECKPOINT_WRITES // 2, CHECKPOINT_WRITES // 2)
    run(until(lambda: is_written_back(path)))
    assert restarts(path) == before
    write(records, CHECKPOINT_WRITES, 1)
    assert restarts(path) == before + 1
    assert path.stat().st_size > small + CHECKPOINT_WRITES * 200
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)  # without its WAL: what a host that loses power has at least
    records.close()
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "executions.db"]
    for file in (copy, path):
        kept = Records(file)
        assert len(kept.running("sb1")) >= CHECKPOINT_WRITES
        kept.close()


def test_a_checkpoint_that_never_comes_leaves_the_bound(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_WRITES", 1 << 62)
    monkeypatch.setattr(module, "WAL_PAGES", 256)
    path = tmp_path / "executions.db"
    records = Records(path)
    write(records, 0, 2000)
    assert 256 * FRAME_BYTES <= wal(path).stat().st_size <= 300 * FRAME_BYTES
    records.close()


def test_a_checkpoint_that_fails_is_made_later(run, tmp_path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    path = tmp_path / "executions.db"
    records = Records(path)
    other = tmp_path / "other.db"
    other.write_bytes(b"no database at all" * 4096)
    monkeypatch.setattr(records._checkpoints, "_path", other)
    write(records, 0, CHECKPOINT_WRITES)
    run(until(lambda: "has failed" in caplog.text))
    assert not is_written_back(path)
    monkeypatch.undo()
    write(records, CHECKPOINT_WRITES, CHECKPOINT_WRITES)
    run(until(lambda: is_written_back(path)))
    records.close()


FULL = """
import os, sqlite3, subprocess, sys
from pathlib import Path
from bellglass.ballast import free_bytes
from bellglass.errors import NoCapacity
from bellglass.node.executions.records import Records
from tests.unit.node.test_checkpoints import wal, write
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
path = folder / "executions.db"
records = Records(path)
write(records, 0, 100)
sqlite3.connect(path).execute("pragma wal_checkpoint(passive)").fetchone()
with (folder / "filler").open("wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
assert free_bytes(folder) == 0
size = wal(path).stat().st_size
for turn in range(1000):
    records.finish("sb1", "ex00000001", {"state": "exited", "turn": turn})
assert records.get("sb1", "ex00000001").record["turn"] == 999
assert wal(path).stat().st_size <= size + 2 * 4096  # what was free within its last page
try:
    write(records, 100, 10000)  # more than the file has room for
    print("no end")
except NoCapacity:
    print("full")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_wal_that_can_not_grow_begins_anew(tmp_path) -> None:
    """On a full disk, without any ballast: changes go on, in the room that the files have."""
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "full\n"), done.stderr
