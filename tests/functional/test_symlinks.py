"""Links inside a sandbox lead inside the sandbox: the host's files are out of reach whatever they point at."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bellglass.errors import FileMissing, FilePermission


@pytest.fixture
def links(box: Any, canary: Path) -> str:
    script = f"""
    mkdir -p /home/user/links && cd /home/user/links
    ln -s {canary} canary; ln -s /etc/shadow shadow; ln -s / up; ln -s /etc/newfile dangling
    ln -s ../../../../../../../../../../../etc far; ln -s /proc/self/root root; ln -s /proc/1/root init
    ln -s loop loop
    """
    assert box.exec(script).ok
    return "/home/user/links"


def test_links_stay_inside(box: Any, links: str, canary: Path, api: httpx2.Client) -> None:
    files = box.files
    for name in ("canary", f"far/{canary.name}", f"up/etc/{canary.name}", f"root/etc/{canary.name}"):
        with pytest.raises(FileMissing):
            files.read_text(f"{links}/{name}")
    for name in ("shadow", "dangling"):
        with pytest.raises(FilePermission):
            files.write_text(f"{links}/{name}", "x")
    with pytest.raises(FilePermission):
        files.read_text(f"{links}/shadow")
    path = f"/v1/sandboxes/{box.id}/files"
    # As the sandbox's root it all works, on the sandbox's own files.
    shadow = api.get(path, params={"path": f"{links}/shadow", "user": "root"})
    assert shadow.status_code == 200 and shadow.text != Path("/etc/shadow").read_text()
    for name in ("canary", "dangling", "up/tmp/x/y", "root/tmp/by-root"):
        answer = api.put(path, params={"path": f"{links}/{name}", "user": "root", "parents": "true"}, content=b"inside")
        assert answer.status_code in (200, 201), (name, answer.text)
    assert box.exec(["cat", str(canary), "/etc/newfile", "/tmp/x/y"], user="root").stdout == "inside" * 3
    assert not Path("/etc/newfile").exists() and not Path("/tmp/x/y").exists() and not Path("/tmp/by-root").exists()
    loop = api.get(path, params={"path": f"{links}/loop"})
    assert 400 <= loop.status_code < 500


def test_a_folder_of_links_goes_out_as_links(box: Any, links: str, canary: Path, api: httpx2.Client) -> None:
    answer = api.get(f"/v1/sandboxes/{box.id}/files/archive", params={"path": links, "user": "root"})
    assert answer.status_code == 200
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        members = {Path(member.name).name: member for member in archive.getmembers()}
        assert members["shadow"].issym() and members["up"].issym() and members["canary"].linkname == str(canary)
    assert b"host canary" not in answer.content


def test_removing_a_folder_of_links_removes_the_links(box: Any, links: str, canary: Path, api: httpx2.Client) -> None:
    answer = api.delete(f"/v1/sandboxes/{box.id}/files", params={"path": links, "recursive": "true", "user": "root"})
    assert answer.status_code == 204
    assert not box.files.exists(links)
    assert box.exec(["ls", "/"]).stdout.split() > [] and box.files.exists("/etc/passwd")


def test_replacing_a_link_writes_its_target(box: Any) -> None:
    box.exec("echo old > target; ln -s target link")
    box.files.write_text("link", "new")
    assert box.exec("cat target; readlink link").stdout == "newtarget\n"
