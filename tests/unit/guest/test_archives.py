"""Archives in and out: content round trips, and everything that must not get out of the target is refused whole."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from bellglass.wire import guest
from bellglass.wire.guest import FileFlag, FileOp

from .conftest import Peer, Stream, errno_name
from .file_checks import failure, leftovers, wait_until

Member = tuple[dict[str, Any], bytes]


def member(name: str, data: bytes = b"", **attributes: Any) -> Member:
    return {"name": name, **attributes}, data


def link(name: str, target: str, *, hard: bool = False) -> Member:
    return member(name, type=tarfile.LNKTYPE if hard else tarfile.SYMTYPE, linkname=target)


def archive(*members: Member, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for attributes, data in members:
            info = tarfile.TarInfo()
            info.mtime = 1_000_000_000
            for key, value in attributes.items():
                setattr(info, key, value)
            if info.isreg():
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def unpack(peer: Peer, folder: Path, data: bytes, flags: FileFlag = FileFlag(0), **more: Any) -> Stream:
    return peer.file(FileOp.ARCHIVE_IN, str(folder), input=data, flags=flags, **more)


GOOD = archive(
    member("f", b"content", mode=0o640),
    member("d", type=tarfile.DIRTYPE, mode=0o750),
    member("d/g", b"x" * 100_000),
    link("d/link", "../f"),
    link("hard", "d/g", hard=True),
    member("./e//deep/./file", b"deep"),
)


def check_good(folder: Path) -> None:
    assert (folder / "f").read_bytes() == b"content" and (folder / "f").stat().st_mode & 0o7777 == 0o640
    assert (folder / "f").stat().st_mtime == 1_000_000_000
    assert (folder / "d/g").read_bytes() == b"x" * 100_000
    assert (folder / "d").stat().st_mode & 0o7777 == 0o750
    assert os.readlink(folder / "d/link") == "../f"
    assert (folder / "hard").stat().st_ino == (folder / "d/g").stat().st_ino
    assert (folder / "e/deep/file").read_bytes() == b"deep"


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats_and_long_names(peer: Peer, tmp_path: Path, format: int) -> None:
    depth = 2 if format == tarfile.USTAR_FORMAT else 8
    name = "/".join(["p" * 90] * depth) + "/end"
    data = archive(member(name, b"long"), member("x" * 98 + "/f", b"cut"), format=format)
    done = unpack(peer, tmp_path / "new", data)
    assert done.result is not None and done.result.created
    assert (tmp_path / "new" / name).read_bytes() == b"long"
    assert (tmp_path / "new" / ("x" * 98) / "f").read_bytes() == b"cut"


def test_into_a_new_folder(peer: Peer, tmp_path: Path) -> None:
    done = unpack(peer, tmp_path / "a/new", GOOD, FileFlag.PARENTS)
    assert done.result is not None and (done.result.created, done.result.bytes) == (True, 7 + 100_000 + 4)
    check_good(tmp_path / "a/new")
    assert (tmp_path / "a/new").stat().st_mode & 0o7777 == 0o755 and leftovers(tmp_path) == []


def test_into_an_existing_folder(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine").write_bytes(b"mine")
    done = unpack(peer, tmp_path, GOOD)
    assert done.result is not None and not done.result.created
    check_good_but_folder_mode(tmp_path)
    assert (tmp_path / "d" / "mine").read_bytes() == b"mine" and leftovers(tmp_path) == []
    assert failure(unpack(peer, tmp_path, GOOD)) == ("path", "EEXIST")
    assert unpack(peer, tmp_path, GOOD, FileFlag.OVERWRITE).result is not None
    assert leftovers(tmp_path) == []


def check_good_but_folder_mode(folder: Path) -> None:
    (folder / "d").chmod(0o750)  # an existing folder keeps its mode
    check_good(folder)


def test_empty_and_root_only(peer: Peer, tmp_path: Path) -> None:
    assert unpack(peer, tmp_path / "empty", archive()).result is not None
    assert list((tmp_path / "empty").iterdir()) == []
    assert unpack(peer, tmp_path / "root", archive(member("./", type=tarfile.DIRTYPE))).result is not None


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar(1)")
def test_what_tar_writes(peer: Peer, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / ("n" * 200)).write_bytes(b"x" * 12345)
    (source / "l").symlink_to("d")
    data = subprocess.run(["tar", "-C", str(source), "-cf", "-", "."], check=True, capture_output=True).stdout
    assert unpack(peer, tmp_path / "copy", data).result is not None
    assert (tmp_path / "copy/d" / ("n" * 200)).read_bytes() == b"x" * 12345
    assert os.readlink(tmp_path / "copy/l") == "d"


SLIPS = {
    "parent": archive(member("ok", b"1"), member("../x", b"1")),
    "parent inside": archive(member("a/../../x", b"1")),
    "parent folder": archive(member("../x", type=tarfile.DIRTYPE)),
    "absolute": archive(member("/tmp/bellglass-slip", b"1")),
    "through its own link": archive(link("up", "/"), member("up/tmp/bellglass-slip", b"1")),
    "folder through its own link": archive(link("up", ".."), member("up/x", type=tarfile.DIRTYPE)),
    "folder over its own link": archive(link("up", ".."), member("up", type=tarfile.DIRTYPE), member("up/x", b"1")),
    "hard link out": archive(link("h", "/etc/passwd", hard=True)),
    "hard link up": archive(link("h", "../../etc/passwd", hard=True)),
    "hard link through a link": archive(link("etc", "/etc"), link("h", "etc/passwd", hard=True)),
    "hard link to a link": archive(link("l", "/etc/passwd"), link("h", "l", hard=True)),
    "hard link to nothing": archive(link("h", "later", hard=True), member("later", b"1")),
    "character device": archive(member("n", type=tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "block device": archive(member("n", type=tarfile.BLKTYPE)),
    "fifo": archive(member("n", type=tarfile.FIFOTYPE)),
    "empty name": archive(member("", b"1")),
    "nul in a name": archive(member("x", b"1", pax_headers={"path": "a\0b"})),
    "cut off": GOOD[:-4000] if len(GOOD) % 10240 else GOOD[:50_000],
    "no end": archive(member("f", b"1"))[:1024],
    "nothing": b"",
    "garbage": b"\x01" * 10240,
    "bad checksum": bytes([GOOD[0] ^ 1]) + GOOD[1:],
    "file over folder": archive(member("a/b", b"1"), member("a", b"2")),
}


@pytest.mark.parametrize("name", SLIPS)
def test_slips_are_refused_whole(peer: Peer, tmp_path: Path, name: str) -> None:
    target = tmp_path / "jail" / "target"
    for existing in (False, True):
        if existing:
            target.mkdir(parents=True)
        else:
            target.parent.mkdir()
        refused = unpack(peer, target, SLIPS[name])
        assert failure(refused)[0] == "archive"
        assert list(tmp_path.rglob("*")) == [target.parent] + ([target] if existing else [])
    assert not Path("/tmp/bellglass-slip").exists()
    assert unpack(peer, target, GOOD).result is not None  # the twin that is allowed


def test_links_of_the_target_are_not_followed(peer: Peer, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "f").write_bytes(b"untouched")
    target = tmp_path / "target"
    target.mkdir()
    (target / "d").symlink_to(canary)
    (target / "l").symlink_to(canary / "f")
    assert failure(unpack(peer, target, archive(member("d/f", b"x")), FileFlag.OVERWRITE))[0] == "archive"
    assert failure(unpack(peer, target, archive(member("l", b"x")))) == ("path", "EEXIST")
    assert unpack(peer, target, archive(member("l", b"x")), FileFlag.OVERWRITE).result is not None
    assert not (target / "l").is_symlink() and (target / "l").read_bytes() == b"x"
    assert (canary / "f").read_bytes() == b"untouched" and leftovers(tmp_path) == []


def test_nothing_is_moved_when_one_entry_does_not_fit(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    data = archive(member("a", b"1"), member("b", b"1"), member("taken", b"1"))
    assert failure(unpack(peer, tmp_path, data, FileFlag.OVERWRITE)) == ("archive", "EISDIR")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_setuid_is_dropped(peer: Peer, tmp_path: Path) -> None:
    data = archive(member("s", b"1", mode=0o6755), member("d", type=tarfile.DIRTYPE, mode=0o7777))
    assert unpack(peer, tmp_path / "t", data).result is not None
    assert (tmp_path / "t/s").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "t/d").stat().st_mode & 0o7777 == 0o777


def test_bombs_are_stopped_early(peer: Peer, tmp_path: Path) -> None:
    target = tmp_path / "t"
    many = archive(*(member(f"f{i}") for i in range(2000)))
    assert failure(unpack(peer, target, many, max_entries=100)) == ("limit", "E2BIG")
    deep = archive(member("/".join("d" * 300) + "/f", b"1"))
    assert failure(unpack(peer, target, deep, max_entries=100)) == ("limit", "E2BIG")
    assert failure(unpack(peer, target, archive(member("z", bytes(5_000_000))), max_bytes=1_000_000))[0] == "limit"
    info = tarfile.TarInfo("huge")
    info.size = 1 << 40
    begin = time.monotonic()
    assert failure(unpack(peer, target, info.tobuf() + bytes(512), max_bytes=1 << 30)) == ("limit", "EFBIG")
    assert time.monotonic() - begin < 2
    assert list(tmp_path.iterdir()) == []
    assert unpack(peer, target, many, max_entries=2000, max_bytes=0).result is not None


def test_abort_removes_what_was_unpacked(peer: Peer, tmp_path: Path) -> None:
    stream = peer.file(FileOp.ARCHIVE_IN, str(tmp_path / "t"), wait=False)
    peer.feed(stream, archive(*(member(f"d{i % 7}/f{i}", b"x" * 1000) for i in range(1500)))[:-20_000], eof=False)
    wait_until(lambda: len(list(tmp_path.rglob("f*"))) > 100)
    peer.send(guest.encode_abort(stream.id))
    peer.wait(stream)
    assert failure(stream)[0] == "aborted" and list(tmp_path.iterdir()) == []


def pack(peer: Peer, path: Path, **more: Any) -> dict[str, tarfile.TarInfo]:
    done = peer.file(FileOp.ARCHIVE_OUT, str(path), **more)
    assert done.result is not None, done.failure
    assert done.order[-2:] == ["EOF", "RESULT"]
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        return {info.name: info for info in tar.getmembers()}


def test_out(peer: Peer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    deep = root / "/".join(["q" * 120] * 5)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"x" * 700_001)
    (root / "small").write_bytes(b"123")
    (root / "small").chmod(0o4711)
    os.utime(root / "small", (5, 1_234_567_890))
    (root / "hard").hardlink_to(root / "small")
    (root / "link").symlink_to("t" * 300)
    os.mkfifo(root / "fifo")
    (root / "empty").mkdir(mode=0o700)
    done = peer.file(FileOp.ARCHIVE_OUT, str(root))
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        found = {info.name: info for info in tar.getmembers()}
        big = tar.extractfile(str((deep / "file").relative_to(root)))
        assert big is not None and big.read() == b"x" * 700_001
    assert "fifo" not in found and found["hard"].isreg() and found["hard"].size == 3
    assert found["link"].linkname == "t" * 300 and found["empty"].isdir()
    assert (found["small"].mode, found["small"].mtime, found["small"].uid) == (0o4711, 1_234_567_890, os.geteuid())
    back = tmp_path / "back"
    assert unpack(peer, back, done.stdout).result is not None
    assert (back / deep.relative_to(root) / "file").read_bytes() == b"x" * 700_001


def test_out_of_one_file_and_of_nothing(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert pack(peer, tmp_path / "f")["f"].size == 5
    (tmp_path / "d").mkdir()
    assert pack(peer, tmp_path / "d") == {}
    os.mkfifo(tmp_path / "p")
    assert failure(peer.file(FileOp.ARCHIVE_OUT, str(tmp_path / "p")))[0] == "type"
    missing = peer.file(FileOp.ARCHIVE_OUT, str(tmp_path / "no")).failure
    assert missing is not None and errno_name(missing.errno) == "ENOENT"


def test_out_limits_apply_before_the_bytes_are_read(peer: Peer, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(100 << 30)
    begin = time.monotonic()
    assert failure(peer.file(FileOp.ARCHIVE_OUT, str(tmp_path), max_bytes=1 << 30)) == ("limit", "EFBIG")
    assert time.monotonic() - begin < 2
    for i in range(50):
        (tmp_path / f"f{i}").touch()
    (tmp_path / "sparse").unlink()
    assert failure(peer.file(FileOp.ARCHIVE_OUT, str(tmp_path), max_entries=49)) == ("limit", "E2BIG")
    assert len(pack(peer, tmp_path, max_entries=50)) == 50
