"""Tar in and out: what leads outside is refused as a whole, bombs hit their limit early, nothing half is left."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bellglass.errors import FileExists


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, data: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


GOOD = member("good/file", b"good")


@pytest.fixture
def put(shared_box: Any, api: httpx2.Client, request: pytest.FixtureRequest) -> Callable[..., httpx2.Response]:
    """Sends a tar into a fresh folder; `put.folder` is where."""
    folder = "/home/user/" + "".join(c if c.isalnum() else "_" for c in request.node.name[:80])

    def send(content: Any, **query: Any) -> httpx2.Response:
        return api.put(
            f"/v1/sandboxes/{shared_box.id}/files/archive",
            params={"path": folder, "parents": "true", **query},
            content=content,
        )

    send.folder = folder  # type: ignore[attr-defined]
    return send


def left(box: Any, folder: str) -> str:
    """Everything in the folder, and temporary folders beside it."""
    return box.exec(f"find {folder} -mindepth 1 2>/dev/null; ls -A /home/user | grep '^\\.bellglass' || true").stdout


def test_a_good_archive(shared_box: Any, put: Any) -> None:
    answer = put(
        tar_of(
            member("a", b"1"),
            member("d/", b"", type=tarfile.DIRTYPE, mode=0o755),
            member("d/e/f", b"2" * 100_000, mode=0o755, uid=0, gid=0, uname="root"),
            member("l", b"", type=tarfile.SYMTYPE, linkname="d/e/f"),
            member("h", b"", type=tarfile.LNKTYPE, linkname="a"),
            member("long/" + "n" * 200, b"3"),
            member("é☕", b"4"),
        )
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == 100_003
    folder = put.folder
    assert shared_box.exec(["stat", "-c", "%U:%G:%a:%s", f"{folder}/d/e/f"]).stdout == "user:user:755:100000\n"
    assert shared_box.exec(["readlink", f"{folder}/l"]).stdout == "d/e/f\n"
    assert shared_box.files.read_text(f"{folder}/h") == "1"
    assert shared_box.files.read_text(f"{folder}/long/{'n' * 200}") == "3"
    assert shared_box.files.read_text(f"{folder}/é☕") == "4"


EVIL = {
    "parent": [member("../../x")],
    "parent inside": [member("a/../../x")],
    "absolute": [member("/tmp/absolute")],
    "directory entry outside": [member("../dir", b"", type=tarfile.DIRTYPE)],
    "file through a link": [member("l", b"", type=tarfile.SYMTYPE, linkname="/tmp"), member("l/x")],
    "link over a link": [
        member("l", b"", type=tarfile.SYMTYPE, linkname=".."),
        member("l/m", b"", type=tarfile.SYMTYPE, linkname="/etc"),
    ],
    "hard link outside": [member("h", b"", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "hard link to a parent": [member("h", b"", type=tarfile.LNKTYPE, linkname="../../../etc/passwd")],
    "character device": [member("c", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [member("b", b"", type=tarfile.BLKTYPE, devmajor=7, devminor=0)],
    "fifo": [member("p", b"", type=tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("name", EVIL)
def test_what_leads_outside_is_refused_as_a_whole(shared_box: Any, put: Any, name: str) -> None:
    answer = put(tar_of(GOOD, *EVIL[name]))
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["code"] == "archive_refused"
    assert left(shared_box, put.folder) == "", "no partial extraction"
    assert shared_box.exec("ls /tmp/x /tmp/absolute /home/x /home/user/x 2>/dev/null").stdout == ""


def test_setuid_bits_are_dropped(shared_box: Any, put: Any) -> None:
    assert put(tar_of(member("s", b"x", mode=0o6755))).status_code == 200
    assert shared_box.exec(["stat", "-c", "%a", f"{put.folder}/s"]).stdout == "755\n"


@pytest.mark.parametrize("content", [b"no tar at all" * 100, b"\x1f\x8b" + b"z" * 1000, tar_of(GOOD)[:700]])
def test_what_is_no_tar_is_refused(shared_box: Any, put: Any, content: bytes) -> None:
    answer = put(content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "archive_refused"), answer.text
    assert left(shared_box, put.folder) == ""


def test_a_bomb_of_entries_is_stopped_early(shared_box: Any, put: Any, push: Any) -> None:
    """Ten million empty files; the limit stops it long before."""

    def entries() -> Iterator[bytes]:
        for folder in range(10_000):
            names = (f"{folder:04}/{number:04}" for number in range(1000))
            yield b"".join(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT) for name in names)

    path = f"/v1/sandboxes/{shared_box.id}/files/archive?path={put.folder}&parents=true"
    pushed = push("PUT", path, entries(), length=10_000_000 * 512)
    assert pushed.status in (413, 422, 507), pushed
    assert pushed.sent_bytes < 1_000_000 * 512
    assert left(shared_box, put.folder) == ""


def test_a_bomb_of_bytes_stops_at_the_disk(box: Any, push: Any) -> None:
    """1 GB of zeros into a sandbox whose disk is 1 GiB and partly used: refused as a whole, room given back."""
    box.exec(["fallocate", "-l", "700M", "filler"])
    free = int(box.exec("df --output=avail -B1 . | tail -1").stdout)
    info = tarfile.TarInfo("zeros")
    info.size = 1_000_000_000

    def zeros() -> Iterator[bytes]:
        yield info.tobuf(tarfile.GNU_FORMAT)
        for _ in range(1000):
            yield bytes(1_000_000)

    pushed = push("PUT", f"/v1/sandboxes/{box.id}/files/archive?path=bomb&parents=true", zeros(), length=1_000_000_512)
    assert (pushed.status, pushed.error["code"]) == (507, "disk_full")
    assert pushed.sent_bytes < 500_000_000
    deadline = time.monotonic() + 10
    while abs(int(box.exec("df --output=avail -B1 . | tail -1").stdout) - free) > 1 << 20:
        assert time.monotonic() < deadline, "what was unpacked is still there"
        time.sleep(0.2)
    assert left(box, "bomb") == ""


def test_out(shared_box: Any, api: httpx2.Client) -> None:
    setup = "mkdir -p out/d && cd out && echo 1 > a && echo 2 > d/b && ln -s a l && mkfifo p && truncate -s 1G sparse"
    assert shared_box.exec(setup).ok
    shared_box.exec(["rm", "out/sparse"])
    answer = api.get(f"/v1/sandboxes/{shared_box.id}/files/archive", params={"path": "out"})
    assert answer.status_code == 200
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        names = {entry.name.strip("./") for entry in archive.getmembers()}
        names = {name.removeprefix("out/") for name in names}
        assert {"a", "d/b", "l"} <= names and "p" not in names
    missing = api.get(f"/v1/sandboxes/{shared_box.id}/files/archive", params={"path": "none"})
    assert missing.status_code == 404


def test_a_folder_goes_up_again_and_replaces_what_is_there(shared_box: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("first")
    shared_box.files.upload_dir(tmp_path, "again")
    shared_box.files.write_text("again/other", "stays")
    (tmp_path / "a").write_text("second")
    with pytest.raises(FileExists):
        shared_box.files.upload_dir(tmp_path, "again", overwrite=False)
    assert shared_box.files.read_text("again/a") == "first"
    shared_box.files.upload_dir(tmp_path, "again")
    assert shared_box.files.read_text("again/a") == "second"
    assert shared_box.files.read_text("again/other") == "stays"
