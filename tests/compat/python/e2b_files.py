"""Files of the synchronous client."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request

import pytest
from e2b import FileType, InvalidArgumentException, NotFoundException, Sandbox, SandboxException

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.mark.parametrize("octets", [False, True])
def test_written_is_read(sandbox: Sandbox, folder: str, octets: bool) -> None:
    for content in ("", "text €", b"\x00\xff" * 1000, io.BytesIO(b"from a file"), io.StringIO("text of a file")):
        info = sandbox.files.write(f"{folder}/new/deep/file", content, use_octet_stream=octets)
        assert (info.path, info.name, info.type) == (f"{folder}/new/deep/file", "file", FileType.FILE)
        raw = content.getvalue() if hasattr(content, "getvalue") else content
        assert sandbox.files.read(info.path, format="bytes") == (raw.encode() if isinstance(raw, str) else raw)
    found = sandbox.files.get_info(f"{folder}/new/deep/file")
    assert (found.owner, found.group, found.mode, found.permissions) == ("user", "user", 0o644, "-rw-r--r--")
    parent = sandbox.files.get_info(f"{folder}/new/deep")
    assert (parent.owner, parent.mode, parent.permissions, parent.type) == ("user", 0o755, "drwxr-xr-x", FileType.DIR)


def test_relative_paths_begin_at_home(sandbox: Sandbox) -> None:
    assert sandbox.files.write("at home", "x").path == "/home/user/at home"
    assert sandbox.files.write("of root", "x", user="root").path == "/root/of root"
    assert sandbox.files.read("of root", user="root") == "x"
    assert sandbox.commands.run("cat 'at home'").stdout == "x"
    assert sandbox.files.get_info("/root/of root").owner == "root"


def test_what_is_written_over_keeps_its_inode_and_owner(sandbox: Sandbox, folder: str) -> None:
    sandbox.files.write(f"{folder}/a", "long content")
    before = sandbox.commands.run(f"chmod 600 {folder}/a; stat -c '%i %a' {folder}/a").stdout
    sandbox.files.write(f"{folder}/a", "short")
    assert sandbox.commands.run(f"stat -c '%i %a' {folder}/a; cat {folder}/a").stdout == before + "short"


def test_several_files_at_once(sandbox: Sandbox, folder: str) -> None:
    names = [f"{folder}/{name}" for name in ("plain", 'with "quotes"', "ü €", "a;b=c", "deep/er/one")]
    written = sandbox.files.write_files([{"path": name, "data": f"of {name}"} for name in names])
    assert [info.path for info in written] == names
    for name in names:
        assert sandbox.files.read(name) == f"of {name}"
    assert sandbox.files.write_files([]) == []


@pytest.mark.parametrize("packed", [False, True])
def test_packed_on_the_way(sandbox: Sandbox, folder: str, packed: bool) -> None:
    content = "again and again. " * 100_000
    sandbox.files.write(f"{folder}/packed", content, gzip=packed)
    assert sandbox.commands.run(f"wc -c < {folder}/packed").stdout.strip() == str(len(content))
    assert sandbox.files.read(f"{folder}/packed", gzip=packed) == content
    assert b"".join(sandbox.files.read(f"{folder}/packed", format="stream", gzip=packed)).decode() == content


def test_a_stream_may_be_left_early(sandbox: Sandbox, folder: str) -> None:
    sandbox.commands.run(f"truncate -s 50M {folder}/big")
    stream = sandbox.files.read(f"{folder}/big", format="stream")
    assert len(next(iter(stream))) > 0
    stream.close()
    assert sandbox.commands.run("echo well").stdout == "well\n"


def test_what_is_missing(sandbox: Sandbox, folder: str) -> None:
    missing = f"{folder}/missing"
    assert sandbox.files.exists(folder) is True
    assert sandbox.files.exists(missing) is False
    for call in (
        lambda: sandbox.files.read(missing),
        lambda: sandbox.files.read(missing, format="stream"),
        lambda: sandbox.files.get_info(missing),
        lambda: sandbox.files.list(missing),
        lambda: sandbox.files.rename(missing, f"{folder}/new"),
    ):
        with pytest.raises(NotFoundException):
            call()
    sandbox.files.remove(missing)


def test_what_is_of_another_kind(sandbox: Sandbox, folder: str) -> None:
    sandbox.files.write(f"{folder}/file", "x")
    for call in (
        lambda: sandbox.files.read(folder),
        lambda: sandbox.files.write(folder, "x"),
        lambda: sandbox.files.list(f"{folder}/file"),
        lambda: sandbox.files.make_dir(f"{folder}/file"),
        lambda: sandbox.files.list(folder, depth=0),
    ):
        with pytest.raises(InvalidArgumentException):
            call()


def test_folders(sandbox: Sandbox, folder: str) -> None:
    assert sandbox.files.make_dir(f"{folder}/a/b") is True
    assert sandbox.files.make_dir(f"{folder}/a/b") is False
    found = sandbox.files.get_info(f"{folder}/a/b")
    assert (found.type, found.owner, found.permissions) == (FileType.DIR, "user", "drwxr-xr-x")
    sandbox.files.write(f"{folder}/a/b/c", "x")
    sandbox.files.remove(f"{folder}/a")
    assert not sandbox.files.exists(f"{folder}/a")


def test_lists_go_as_deep_as_wanted(sandbox: Sandbox, folder: str) -> None:
    for name in ("z", "b/two", "b/one/deep", "a.b"):
        sandbox.files.write(f"{folder}/{name}", name)
    sandbox.commands.run(f"ln -s b {folder}/link")

    def listed(depth: int) -> list[str]:
        return [entry.path.removeprefix(f"{folder}/") for entry in sandbox.files.list(folder, depth=depth)]

    assert listed(1) == ["a.b", "b", "link", "z"]
    assert listed(2) == ["a.b", "b", "b/one", "b/two", "link", "z"]
    assert listed(3) == listed(9) == ["a.b", "b", "b/one", "b/one/deep", "b/two", "link", "z"]
    assert [entry.type for entry in sandbox.files.list(folder)] == [
        FileType.FILE, FileType.DIR, FileType.DIR, FileType.FILE,
    ]  # fmt: skip


def test_links(sandbox: Sandbox, folder: str) -> None:
    sandbox.files.write(f"{folder}/target", "12345")
    sandbox.commands.run("ln -s target link; ln -s nowhere dangling", cwd=folder)
    found = sandbox.files.get_info(f"{folder}/link")
    assert (found.type, found.symlink_target, found.mode) == (FileType.FILE, f"{folder}/target", 0o644)
    assert found.permissions == "Lrwxrwxrwx"
    assert sandbox.files.get_info(f"{folder}/target").symlink_target is None
    assert sandbox.files.get_info(f"{folder}/dangling").name == "dangling"
    assert sandbox.files.get_info("/tmp").permissions == "dtrwxrwxrwx"


def test_moves(sandbox: Sandbox, folder: str) -> None:
    sandbox.files.write(f"{folder}/old", "content")
    assert sandbox.files.rename(f"{folder}/old", f"{folder}/made/new").path == f"{folder}/made/new"
    assert sandbox.files.read(f"{folder}/made/new") == "content"
    assert not sandbox.files.exists(f"{folder}/old")
    sandbox.files.write(f"{folder}/other", "other")
    sandbox.files.rename(f"{folder}/made/new", f"{folder}/other")
    assert sandbox.files.read(f"{folder}/other") == "content"


@pytest.mark.parametrize("octets", [False, True])
def test_metadata(sandbox: Sandbox, folder: str, octets: bool) -> None:
    metadata = {"author": "me", "purpose": "a test"}
    path = f"{folder}/kept"
    assert sandbox.files.write(path, "x", metadata=metadata, use_octet_stream=octets).metadata == metadata
    assert sandbox.files.get_info(path).metadata == metadata
    assert sandbox.files.list(folder)[0].metadata == metadata
    assert sandbox.files.rename(path, f"{folder}/moved").metadata == metadata
    program = f"import os; os.setxattr('{folder}/moved', 'user.e2b.outside', b'seen')"
    sandbox.commands.run(f'python3 -c "{program}"')
    assert sandbox.files.get_info(f"{folder}/moved").metadata == metadata | {"outside": "seen"}
    assert sandbox.files.write(f"{folder}/moved", "x", metadata={"new": "1"}).metadata == {"new": "1"}
    assert sandbox.files.write(f"{folder}/moved", "x").metadata is None
    assert sandbox.files.get_info(f"{folder}/moved").metadata is None


def fetch(url: str, data: bytes | None = None, kind: str = "application/octet-stream") -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=data, headers={"content-type": kind} if data is not None else {})
    try:
        with OPENER.open(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_signed_addresses_need_no_key(sandbox: Sandbox, folder: str) -> None:
    path = f"{folder}/signed +ü&.txt"
    sandbox.files.write(path, "signed content")
    assert fetch(sandbox.download_url(path)) == (200, b"signed content")
    assert fetch(sandbox.download_url(path, user="root")) == (200, b"signed content")
    assert fetch(sandbox.download_url(path, use_signature_expiration=120)) == (200, b"signed content")
    status, body = fetch(sandbox.download_url(path, use_signature_expiration=-120))
    assert (status, json.loads(body)) == (401, {"code": 401, "message": "signature is already expired"})
    assert fetch(sandbox.download_url(path).replace("signed", "other"))[0] == 401
    assert fetch(sandbox.download_url(path), b"a read is no write")[0] == 401
    status, body = fetch(sandbox.upload_url(f"{folder}/up", use_signature_expiration=120), b"uploaded")
    assert (status, json.loads(body)[0]["path"]) == (200, f"{folder}/up")
    assert sandbox.files.read(f"{folder}/up") == "uploaded"


def test_a_full_disk_is_told_as_such(sandbox: Sandbox, folder: str) -> None:
    sandbox.commands.run(f"fallocate -l $(df --output=avail -B1 {folder} | tail -1) {folder}/all || true")
    try:
        with pytest.raises(SandboxException) as caught:
            sandbox.files.write(f"{folder}/more", b"x" * 2_000_000)
        assert type(caught.value).__name__ == "NotEnoughSpaceException"
    finally:
        sandbox.commands.run(f"rm -f {folder}/all {folder}/more")
    sandbox.files.write(f"{folder}/more", b"x" * 2_000_000)
