"""Files in and out: atomic and in place, parents, owner and mode, ranges, lists, moves, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bellglass.errors import (
    FileExists,
    FileMissing,
    FilePermission,
    FileTypeMismatch,
    InvalidRequest,
    TooLarge,
)


@pytest.fixture
def here(shared_box: Any, request: pytest.FixtureRequest) -> str:
    """A folder of the test's own."""
    name = f"/home/user/{request.node.name[:60].translate({ord(c): '_' for c in '[]/ '})}"
    shared_box.files.mkdir(name)
    return name


def ownership(box: Any, path: str) -> str:
    return box.exec(["stat", "-c", "%U:%G:%a", path]).stdout.strip()


def test_a_write_is_seen_at_once_every_time(shared_box: Any, here: str) -> None:
    for number in range(200):
        shared_box.files.write_text(f"{here}/n", f"{number}\n")
        assert shared_box.exec(["cat", f"{here}/n"]).stdout == f"{number}\n"


def test_overwriting_leaves_no_tail(shared_box: Any, here: str) -> None:
    shared_box.files.write_bytes(f"{here}/f", b"x" * 10_000_000)
    shared_box.files.write_bytes(f"{here}/f", b"y" * 1024)
    assert shared_box.files.read_bytes(f"{here}/f") == b"y" * 1024
    assert shared_box.exec(["ls", "-A", here]).stdout == "f\n", "no temporary file is left"


def test_readers_see_the_old_or_the_new_file(shared_box: Any, here: str) -> None:
    """Atomic: a program that reads in a loop never sees a mixture or nothing."""
    shared_box.files.write_bytes(f"{here}/f", b"0" * 100_000)
    program = (
        "import sys,time\nend=time.time()+3\nseen=set()\n"
        "while time.time()<end:\n d=open(sys.argv[1],'rb').read(); seen.add((len(d), len(set(d))))\nprint(seen)"
    )
    reader = shared_box.start(["python3", "-c", program, f"{here}/f"])
    while reader.status().state == "running":
        for digit in b"123456789":
            shared_box.files.write_bytes(f"{here}/f", bytes([digit]) * 100_000)
    assert reader.wait().stdout == "{(100000, 1)}\n"


def test_the_answer_holds_the_sum_of_what_was_written(shared_box: Any, here: str) -> None:
    data = bytes(range(256)) * 3001
    info = shared_box.files.write_bytes(f"{here}/f", data)
    assert (info.size, info.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert shared_box.exec(["sha256sum", f"{here}/f"]).stdout.split()[0] == info.sha256


def test_in_place_writes(shared_box: Any, here: str, api: httpx2.Client) -> None:
    shared_box.files.write_text(f"{here}/f", "0123456789")
    inode = shared_box.exec(["stat", "-c", "%i", f"{here}/f"]).stdout
    path = f"/v1/sandboxes/{shared_box.id}/files"

    def put(content: bytes, **query: Any) -> httpx2.Response:
        return api.put(path, params={"path": f"{here}/f", "mode": "in_place", **query}, content=content)

    assert put(b"AB", offset=3).status_code == 200
    assert shared_box.files.read_text(f"{here}/f") == "012AB56789"
    assert put(b"end", offset=12).status_code == 200
    assert shared_box.files.read_bytes(f"{here}/f") == b"012AB56789\0\0end"
    assert put(b"new", truncate="true").status_code == 200
    assert shared_box.files.read_text(f"{here}/f") == "new"
    assert shared_box.exec(["stat", "-c", "%i", f"{here}/f"]).stdout == inode, "the same file throughout"
    assert put(b"x", offset=-1).status_code == 422


def test_parents_owner_and_mode(shared_box: Any, here: str, api: httpx2.Client) -> None:
    tmp_before = ownership(shared_box, "/tmp")
    shared_box.files.mkdir("/tmp/a-folder")
    shared_box.files.write_text("/tmp/b-folder/c/file", "x")
    assert tmp_before == "root:root:1777" == ownership(shared_box, "/tmp"), "what was there is left alone"
    assert ownership(shared_box, "/tmp/a-folder") == "user:user:755"
    assert ownership(shared_box, "/tmp/b-folder/c") == "user:user:755"
    assert ownership(shared_box, "/tmp/b-folder/c/file") == "user:user:644"
    path = f"/v1/sandboxes/{shared_box.id}/files"
    made = api.put(path, params={"path": f"{here}/x", "permissions": "0750"}, content=b"#!/bin/sh\necho ran")
    assert made.status_code == 201 and made.json()["mode"] == "0750"
    assert shared_box.exec([f"{here}/x"]).stdout == "ran\n"
    again = api.put(path, params={"path": f"{here}/x"}, content=b"#!/bin/sh\necho again")
    assert again.status_code == 200 and ownership(shared_box, f"{here}/x") == "user:user:750", "a mode is kept"
    root = api.put(path, params={"path": "/root/by-root", "user": "root"}, content=b"r")
    assert root.status_code == 201 and (root.json()["user"], root.json()["uid"]) == ("root", 0)
    no_parents = api.put(path, params={"path": f"{here}/none/x", "parents": "false"}, content=b"")
    assert (no_parents.status_code, no_parents.json()["error"]["code"]) == (404, "file_not_found")


def test_the_kernel_of_the_sandbox_says_who_may(shared_box: Any, here: str) -> None:
    shared_box.files.write_text(f"{here}/f", "x")
    shared_box.exec(["chmod", "0444", f"{here}/f"])
    for path in (f"{here}/f", "/root/x", "/etc/passwd", "/proc/version", "/x"):
        with pytest.raises(FilePermission):
            shared_box.files.write_text(path, "no")
    with pytest.raises(FilePermission):
        shared_box.files.read_text("/etc/shadow")
    with pytest.raises(FilePermission):
        shared_box.files.remove("/etc/passwd")
    assert shared_box.files.read_text(f"{here}/f") == "x"


def test_ranges(shared_box: Any, here: str, api: httpx2.Client) -> None:
    data = bytes(range(256)) * 8000
    shared_box.files.write_bytes(f"{here}/f", data)
    path, params = f"/v1/sandboxes/{shared_box.id}/files", {"path": f"{here}/f"}
    for asked, start, end in (
        ("bytes=0-0", 0, 1),
        ("bytes=1000-1999", 1000, 2000),
        ("bytes=2000000-", 2_000_000, len(data)),
        ("bytes=-5", len(data) - 5, len(data)),
        ("bytes=100-99999999", 100, len(data)),
    ):
        answer = api.get(path, params=params, headers={"Range": asked})
        assert (answer.status_code, answer.content) == (206, data[start:end]), asked
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(data)}"
    whole = api.get(path, params=params)
    assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "bytes")
    assert int(whole.headers["content-length"]) == len(data) and whole.content == data
    info = json.loads(whole.headers["x-bellglass-file-info"])
    assert (info["type"], info["size"]) == ("file", len(data))
    beyond = api.get(path, params=params, headers={"Range": f"bytes={len(data)}-"})
    assert beyond.status_code == 416
    head = api.head(path, params=params)
    assert (head.status_code, int(head.headers["content-length"]), head.content) == (200, len(data), b"")
    parts = [(n * 500_000, min((n + 1) * 500_000, len(data))) for n in range(5)]

    def part(bounds: tuple[int, int]) -> bytes:
        start, end = bounds
        return api.get(path, params=params, headers={"Range": f"bytes={start}-{end - 1}"}).content

    with ThreadPoolExecutor(5) as pool:
        assert b"".join(pool.map(part, parts)) == data


def test_lists(shared_box: Any, here: str, api: httpx2.Client) -> None:
    shared_box.exec("mkdir -p d/e; touch d/e/f 'with blank' -- -dash; printf abc > b; ln -s /etc/passwd l", cwd=here)
    entries = {entry.name: entry for entry in shared_box.files.list(here)}
    assert set(entries) == {"d", "with blank", "-dash", "b", "l"}
    assert (entries["b"].size, entries["b"].mode, entries["b"].user) == (3, "0644", "user")
    assert (entries["l"].type, entries["l"].target) == ("symlink", "/etc/passwd")
    deep = {entry.path for entry in shared_box.files.list(here, recursive=True)}
    assert {f"{here}/d/e/f", f"{here}/d/e", f"{here}/b"} <= deep
    answer = api.get(f"/v1/sandboxes/{shared_box.id}/files/list", params={"path": here, "limit": 2}).json()
    assert (len(answer["items"]), answer["truncated"]) == (2, True)
    with pytest.raises(FileTypeMismatch):
        shared_box.files.list(f"{here}/b")
    with pytest.raises(FileMissing):
        shared_box.files.list(f"{here}/none")


def test_a_big_folder_is_listed(shared_box: Any, here: str) -> None:
    shared_box.exec(["python3", "-c", "for i in range(5000): open(f'name-{i:05}-' + 'x' * 100, 'w')"], cwd=here)
    with pytest.raises(TooLarge):
        shared_box.files.list(here)
    assert len({entry.name for entry in shared_box.files.list(here, limit=10_000)}) == 5000


def test_moves_and_removals(shared_box: Any, here: str) -> None:
    files = shared_box.files
    files.write_text(f"{here}/a", "a")
    files.write_text(f"{here}/b", "b")
    with pytest.raises(FileExists):
        files.move(f"{here}/a", f"{here}/b")
    files.move(f"{here}/a", f"{here}/b", overwrite=True)
    assert (files.exists(f"{here}/a"), files.read_text(f"{here}/b")) == (False, "a")
    with pytest.raises(FileMissing):
        files.move(f"{here}/none", f"{here}/c")
    files.write_text(f"{here}/d/e", "e")
    with pytest.raises(FileExists):
        files.remove(f"{here}/d")
    files.remove(f"{here}/d", recursive=True)
    assert not files.exists(f"{here}/d")
    with pytest.raises(FileMissing):
        files.remove(f"{here}/d")
    files.remove(f"{here}/d", missing_ok=True)
    files.mkdir(f"{here}/m/n/o")
    files.mkdir(f"{here}/m/n/o")
    with pytest.raises(FileExists):
        files.mkdir(f"{here}/m", exist_ok=False)
    with pytest.raises(FileExists):
        files.mkdir(f"{here}/b")


@pytest.mark.parametrize("name", ["é☕", "a b", "-rf", "a\nb", "'\"`$(x)", "%2e%2e", "a?b#c&d=e", "x" * 255])
def test_odd_names(shared_box: Any, here: str, name: str) -> None:
    shared_box.files.write_text(f"{here}/{name}", "odd")
    assert shared_box.files.read_text(f"{here}/{name}") == "odd"
    assert [entry.name for entry in shared_box.files.list(here)] == [name]
    shared_box.files.remove(f"{here}/{name}")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 256, "/" + "d/" * 3000])
def test_names_that_no_kernel_takes(shared_box: Any, path: str) -> None:
    for call in (shared_box.files.read_bytes, lambda p: shared_box.files.write_text(p, "x"), shared_box.files.stat):
        with pytest.raises((InvalidRequest, FileTypeMismatch)):
            call(path)


def test_relative_paths_start_at_the_workdir(new_box: Callable[..., Any]) -> None:
    box = new_box(workdir="/tmp/work")
    box.files.write_text("r", "relative")
    assert box.exec("pwd; cat r").stdout == "/tmp/work\nrelative"
    assert box.files.read_text("/tmp/work/r") == "relative"
    box.files.write_text("../up", "up")
    assert box.exec(["cat", "/tmp/up"]).stdout == "up"


def test_local_files_and_folders(shared_box: Any, here: str, tmp_path: Path) -> None:
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "src/one").write_bytes(b"\0one")
    (tmp_path / "src/deep/two").write_text("two")
    (tmp_path / "src/deep/two").chmod(0o755)
    (tmp_path / "src/link").symlink_to("one")
    shared_box.files.upload_dir(tmp_path / "src", f"{here}/up")
    assert ownership(shared_box, f"{here}/up/deep/two") == "user:user:755"
    assert shared_box.exec(["readlink", f"{here}/up/link"]).stdout == "one\n"
    shared_box.files.download_dir(f"{here}/up", tmp_path / "back")
    assert (tmp_path / "back/one").read_bytes() == b"\0one"
    assert (tmp_path / "back/deep/two").stat().st_mode & 0o777 == 0o755
    shared_box.files.upload(tmp_path / "src/one", f"{here}/single")
    shared_box.files.download(f"{here}/single", tmp_path / "single")
    assert (tmp_path / "single").read_bytes() == b"\0one"


def test_a_body_over_the_limit_is_refused_before_it_is_read(shared_box: Any, here: str, push: Any) -> None:
    pushed = push("PUT", f"/v1/sandboxes/{shared_box.id}/files?path={here}/f", iter([b""]), length=65 << 30)
    assert (pushed.status, pushed.error["code"]) == (413, TooLarge.code)
    assert not shared_box.files.exists(f"{here}/f")


def test_half_an_upload_is_no_file(shared_box: Any, here: str, api: httpx2.Client) -> None:
    path = f"/v1/sandboxes/{shared_box.id}/files"

    def body() -> Any:
        yield b"half"
        raise RuntimeError("the client gave up")

    with pytest.raises(RuntimeError):
        api.put(path, params={"path": f"{here}/f"}, content=body(), headers={"Content-Length": "1000"})
    shared_box.files.write_text(f"{here}/after", "x")
    names = shared_box.exec(f"sleep 0.5; ls -A {here}").stdout
    assert names == "after\n"
