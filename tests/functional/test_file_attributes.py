"""Attributes of files, owners of what is made, what lists say of links and levels: through API and SDK."""

from __future__ import annotations

import pytest

from bellglass import Sandbox
from bellglass.errors import FilePermission, InvalidRequest, NotSupported, TooLarge


def test_attributes_are_the_kernels_own(shared_box: Sandbox) -> None:
    files = shared_box.files
    info = files.write_text("attributes/f", "x", attributes={"e2b.origin": "upload é", "b": ""})
    assert info.attributes == {"e2b.origin": "upload é", "b": ""} and not info.attributes_cut
    seen = shared_box.exec(
        ["python3", "-c", "import os; print(os.getxattr('attributes/f', 'user.e2b.origin').decode())"]
    )
    assert seen.stdout == "upload é\n", seen
    shared_box.exec(["python3", "-c", "import os; os.setxattr('attributes/f', 'user.inside', b'1')"], check=True)
    assert files.stat("attributes/f").attributes["inside"] == "1"
    assert files.list("attributes")[0].attributes["inside"] == "1"
    assert files.write_text("attributes/f", "y", in_place=True).attributes["b"] == ""
    assert files.write_text("attributes/f", "z", in_place=True, attributes={"only": "1"}).attributes == {"only": "1"}
    assert files.write_text("attributes/f", "z").attributes == {}


def test_attributes_that_cannot_be(shared_box: Sandbox) -> None:
    files = shared_box.files
    files.write_text("attributes/kept", "old", attributes={"n" * 250: "v"})
    for wrong in ({"n" * 251: "v"}, {"": "v"}, {"n": "v" * 8192}):
        with pytest.raises(InvalidRequest, match="attributes"):
            files.write_text("attributes/kept", "new", attributes=wrong)
    with pytest.raises(TooLarge, match="attributes"):  # ours would let them pass, the sandbox's file system doesn't
        files.write_text("attributes/kept", "new", attributes={"n": "v" * 8000})
    with pytest.raises(NotSupported):
        files.write_text("/proc/self/comm", "new", attributes={"n": "v"}, in_place=True, user="root")
    assert files.read_text("attributes/kept") == "old"


def test_what_is_made_becomes_the_owners(shared_box: Sandbox) -> None:
    files = shared_box.files
    with pytest.raises(FilePermission):
        files.write_text("/srv/owned/a/f", "x")
    info = files.write_text("/srv/owned/a/f", "x", user="root", owner="user", in_place=True)
    folder = files.stat("/srv/owned")
    assert (info.user, info.mode, folder.user, folder.mode) == ("user", "0644", "user", "0755")
    assert files.stat("/srv").user == "root"
    files.move("/srv/owned/a/f", "/srv/owned/b/c/f", parents=True)
    assert files.read_text("/srv/owned/b/c/f") == "x"


def test_levels_and_links(shared_box: Sandbox) -> None:
    shared_box.exec(
        "mkdir -p levels/b/c levels/b-1 levels/a; touch levels/b/c/f; ln -s b/c levels/link; ln -s no levels/x"
    )
    listed = shared_box.files.list("levels", depth=2)
    assert [entry.path.partition("levels/")[2] for entry in listed] == ["a", "b", "b/c", "b-1", "link", "x"]
    link, broken = listed[4], listed[5]
    assert (link.type, link.target, link.target_type) == ("symlink", "b/c", "dir")
    assert link.resolved == f"{shared_box.workdir}/levels/b/c" and (broken.resolved, broken.target) == (None, "no")
    assert len(shared_box.files.list("levels", recursive=True)) == 7
