"""Files through both faces: exact bytes, whole or not at all, flat memory."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bellglass import (
    DiskFull,
    FileExists,
    FileMissing,
    FileTypeMismatch,
    InvalidRequest,
    StreamInterrupted,
    TooLarge,
)


def test_bytes_and_text(sandbox: Any) -> None:
    info = sandbox.files.write_text("a/b/é ß?&#.txt", "zeile\r\nü", permissions=0o640)
    assert (info.size, info.mode, info.type) == (len("zeile\r\nü".encode()), "0640", "file")
    assert sandbox.files.read_text("a/b/é ß?&#.txt") == "zeile\r\nü"
    assert sandbox.files.read_bytes(Path("a/b/é ß?&#.txt")) == "zeile\r\nü".encode()
    sandbox.files.write_bytes("odd-\udcff", b"\x00\xff" * 1000)
    assert sandbox.files.read_bytes("odd-\udcff") == b"\x00\xff" * 1000
    assert sandbox.files.write_bytes("empty", b"").size == 0
    assert sandbox.files.read_bytes("empty") == b""


def test_ranges(sandbox: Any) -> None:
    sandbox.files.write_bytes("digits", b"0123456789")
    read = sandbox.files.read_bytes
    assert read("digits", offset=2, length=3) == b"234"
    assert read("digits", offset=7) == b"789"
    assert read("digits", length=2) == b"01"
    assert read("digits", length=0) == b""
    assert read("digits", offset=10, length=5) == b""
    assert read("digits", max_bytes=10) == b"0123456789"
    with pytest.raises(TooLarge, match="max_bytes=9"):
        read("digits", max_bytes=9)
    for wrong in ({"offset": -1}, {"length": -1}):
        with pytest.raises(InvalidRequest):
            read("digits", **wrong)
    with pytest.raises(FileMissing):
        read("nope", length=0)


def test_in_place(sandbox: Any) -> None:
    sandbox.files.write_bytes("f", b"0123456789")
    sandbox.files.write_bytes("f", b"ab", in_place=True, offset=4)
    assert sandbox.files.read_bytes("f") == b"0123ab6789"
    with pytest.raises(InvalidRequest, match="offset"):
        sandbox.files.write_bytes("f", b"", offset=4)


def test_refusals(sandbox: Any, fake: Any) -> None:
    files = sandbox.files
    files.write_text("there", "1", exclusive=True)
    with pytest.raises(FileExists):
        files.write_text("there", "2", exclusive=True)
    with pytest.raises(FileMissing):
        files.read_bytes("nope")
    files.mkdir("dir")
    with pytest.raises(FileTypeMismatch):
        files.read_bytes("dir")
    with pytest.raises(TypeError):
        files.write_bytes("x", "text")
    for wrong in ("", "a\0b", 3, b"x"):
        with pytest.raises(InvalidRequest, match="path"):
            files.read_bytes(wrong)
    for wrong in ("0999", "rw", -1, 0o10000, True, 1.5):
        with pytest.raises(InvalidRequest, match="permissions"):
            files.write_text("x", "", permissions=wrong)
    fake.refuse = [DiskFull("the disk is full")]
    with pytest.raises(DiskFull):
        files.write_bytes("big", b"x" * 5_000_000)


def test_what_was_stored_is_compared(sandbox: Any, fake: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    sandbox.files.upload(tmp_path / "f", "ok")
    fake.corrupt_uploads = True
    with pytest.raises(StreamInterrupted, match="sha256"):
        sandbox.files.write_bytes("f", b"x")
    with pytest.raises(StreamInterrupted, match="sha256"):
        sandbox.files.upload(tmp_path / "f", "f")


def test_listing_and_moving(sandbox: Any) -> None:
    files = sandbox.files
    for name in ("a", "b", "sub/c"):
        files.write_text(name, name)
    assert [info.name for info in files.list()] == ["a", "b", "sub"]
    assert len(files.list(recursive=True)) == 4
    with pytest.raises(TooLarge):
        files.list(limit=2)
    assert files.exists("a") and not files.exists("z")
    assert files.stat("sub").type == "dir"
    with pytest.raises(FileExists):
        files.move("a", "b")
    files.move("a", "b", overwrite=True)
    assert files.read_text("b") == "a"
    files.mkdir("x/y")
    files.mkdir("x/y")
    files.remove("sub", recursive=True)
    assert not files.exists("sub")
    with pytest.raises(FileMissing):
        files.remove("sub")


def test_upload_and_download(sandbox: Any, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(os.urandom(3_000_001))
    source.chmod(0o750)
    seen: list[tuple[int, int | None]] = []
    info = sandbox.files.upload(source, "in.bin", on_progress=lambda done, total: seen.append((done, total)))
    assert (info.size, info.mode) == (3_000_001, "0750")
    assert seen[-1] == (3_000_001, 3_000_001) and len(seen) > 2
    seen.clear()
    target = sandbox.files.download("in.bin", tmp_path, on_progress=lambda done, total: seen.append((done, total)))
    assert target == tmp_path / "in.bin" and target.read_bytes() == source.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) & 0o700 == 0o700
    assert seen[-1] == (3_000_001, 3_000_001)
    assert sandbox.files.upload(io.BytesIO(b"file object"), "o").size == 11
    assert sandbox.files.upload(iter([b"ite", b"rator"]), "i", permissions="0600").mode == "0600"
    assert sandbox.files.read_text("i") == "iterator"


def test_a_download_that_fails_leaves_nothing(sandbox: Any, fake: Any, tmp_path: Path) -> None:
    place = tmp_path / "keep"
    place.write_text("old")
    with pytest.raises(FileMissing):
        sandbox.files.download("nope", place)
    assert place.read_text() == "old"
    sandbox.files.write_bytes("f", b"x" * 100_000)

    def stop(done: int, total: int | None) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        sandbox.files.download("f", place, on_progress=stop)
    assert place.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["keep"]


def test_uploads_of_what_is_no_file(sandbox: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for wrong in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(InvalidRequest, match="not a file"):
            sandbox.files.upload(wrong, "x")
    with pytest.raises(FileNotFoundError):
        sandbox.files.upload(tmp_path / "nope", "x")
    with pytest.raises(TypeError):
        sandbox.files.upload(b"bytes", "x")


def test_folders(sandbox: Any, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep/er/é").write_bytes(b"1" * 2_000_000)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    (folder / "inner").symlink_to("deep/er")
    (folder / "outer").symlink_to("/etc/passwd")
    (folder / ("n" * 150)).write_text("long")
    os.mkfifo(folder / "fifo")
    seen: list[tuple[int, int | None]] = []
    left_out = sandbox.files.upload_dir(folder, "p", on_progress=lambda *step: seen.append(step))
    assert sorted(left_out) == ["fifo", "outer"]
    assert seen[-1][0] == seen[-1][1]
    assert sandbox.files.read_bytes("p/deep/er/é") == b"1" * 2_000_000
    back = tmp_path / "back"
    assert sandbox.files.download_dir("p", back) == []
    assert (back / "deep/er/é").read_bytes() == b"1" * 2_000_000
    assert os.access(back / "run.sh", os.X_OK) and (back / "empty").is_dir()
    assert (back / "inner").readlink() == Path("deep/er")
    assert (back / ("n" * 150)).read_text() == "long"
    with pytest.raises(InvalidRequest, match="not a folder"):
        sandbox.files.upload_dir(folder / "run.sh", "x")
    with pytest.raises(TooLarge):
        sandbox.files.download_dir("p", tmp_path / "no", max_bytes=1000)
    assert not (tmp_path / "no").exists()


MEASURE = """
import resource, sys, tempfile, os
from bellglass import Sandbox
from pathlib import Path
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
box = Sandbox.connect(sys.argv[1])
folder = Path(sys.argv[2])
box.files.upload(folder / "small", "warm"); box.files.download("warm", folder / "warm")
before = peak()
box.files.upload(folder / "big", "big")
print((peak() - before) // 1024)
box.close()
"""


def test_memory_is_flat(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    with open(tmp_path / "big", "wb") as file:
        file.truncate(300 << 20)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, sandbox.id, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32
