"""Attributes, owners of what is made, and what records say of links: the agent alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bellglass.wire.guest import FileFlag, FileOp, Stat

from .conftest import Peer, Stream
from .file_checks import failure, leftovers

PARENTS, IN_PLACE, TRUNCATE = FileFlag.PARENTS, FileFlag.IN_PLACE, FileFlag.TRUNCATE


def described(stream: Stream) -> Stat:
    assert stream.result is not None and stream.result.entry is not None, stream.failure
    return stream.result.entry


def test_a_write_replaces_the_whole_set(peer: Peer, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    written = peer.file(FileOp.WRITE, path, input=b"x", attributes={"a": "1", "e2b.k": "v w"})
    assert described(written).attributes == {"a": "1", "e2b.k": "v w"}
    assert os.getxattr(path, "user.e2b.k") == b"v w"
    os.setxattr(path, "user.other", b"\xff")
    assert described(peer.file(FileOp.STAT, path)).attributes["other"] == "\udcff"
    kept = peer.file(FileOp.WRITE, path, input=b"y", flags=IN_PLACE)
    assert set(described(kept).attributes) == {"a", "e2b.k", "other"}, "in place without a set leaves it alone"
    replaced = peer.file(FileOp.WRITE, path, input=b"y", flags=IN_PLACE, attributes={"a": "2"})
    assert described(replaced).attributes == {"a": "2"}
    assert described(peer.file(FileOp.WRITE, path, input=b"y", flags=IN_PLACE, attributes={})).attributes == {}
    peer.file(FileOp.WRITE, path, input=b"x", attributes={"a": "1"})
    assert described(peer.file(FileOp.WRITE, path, input=b"x")).attributes == {}, "a new file has none"


def test_more_than_fits_is_refused_and_undone(peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert described(peer.file(FileOp.WRITE, str(path), input=b"old")).size == 3
    refused = peer.file(FileOp.WRITE, str(path), input=b"new", attributes={"a": "x" * 70_000})
    assert failure(refused) == ("limit", "E2BIG")
    assert path.read_bytes() == b"old" and leftovers(tmp_path) == []


def test_names_that_are_none(peer: Peer, tmp_path: Path) -> None:
    for name in ("", "x" * 251):
        refused = peer.file(FileOp.WRITE, str(tmp_path / "f"), input=b"x", attributes={name: "v"})
        assert failure(refused)[0] == "protocol"
    longest = peer.file(FileOp.WRITE, str(tmp_path / "f"), input=b"x", attributes={"x" * 250: "v"})
    assert described(longest).attributes == {"x" * 250: "v"}


def test_lists_have_them_to_a_bound(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    os.setxattr(tmp_path / "d", "user.of", b"folder")
    os.setxattr(tmp_path / "d/f", "user.of", b"file")
    entries = peer.entries(peer.file(FileOp.LIST, str(tmp_path), flags=FileFlag.RECURSIVE))
    assert {name: entry.attributes for name, entry in entries.items() if name.startswith("d")} == {
        "d": {"of": "folder"}, "d/f": {"of": "file"}
    }  # fmt: skip
    assert not entries["d"].attributes_cut


def test_many_attributes_are_cut_and_said_so(peer: Peer) -> None:
    folder = Path("/dev/shm") / f"bellglass-test-{os.getpid()}"
    folder.mkdir()
    try:
        for number in range(20):
            try:
                os.setxattr(folder, f"user.{number}", b"v" * 1000)
            except OSError:
                pytest.skip("tmpfs keeps no attributes in this kernel")
        entry = described(peer.file(FileOp.STAT, str(folder)))
        assert entry.attributes_cut and 7 <= len(entry.attributes) <= 8
    finally:
        folder.rmdir()


def test_links_say_where_they_lead(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o751)
    (tmp_path / "to-d").symlink_to("d")
    (tmp_path / "chain").symlink_to("to-d")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    entries = peer.entries(peer.file(FileOp.LIST, str(tmp_path)))
    chain = entries["chain"]
    assert (chain.type, chain.target, chain.resolved) == ("l", "to-d", str(tmp_path.resolve() / "d"))
    assert (chain.target_type, chain.target_mode) == ("d", 0o751)
    for name in ("broken", "loop"):
        assert (entries[name].type, entries[name].resolved, entries[name].target_type) == ("l", None, None)
    assert entries["d"].resolved is None


def test_depth(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "1/2/3").mkdir(parents=True)
    for depth, names in ((1, {"1"}), (2, {"1", "1/2"}), (3, {"1", "1/2", "1/2/3"}), (9, {"1", "1/2", "1/2/3"})):
        found = peer.file(FileOp.LIST, str(tmp_path), flags=FileFlag.RECURSIVE, depth=depth)
        assert {name for name in peer.entries(found) if not name.startswith("agent")} == names
    assert failure(peer.file(FileOp.LIST, str(tmp_path), depth=0))[0] == "protocol"


def test_without_a_base_it_is_the_home(peer: Peer) -> None:
    home = described(peer.file(FileOp.STAT, ".", base=None))
    assert home.type == "d"
    told = peer.file(FileOp.LIST, ".", base=None, max_entries=1).result
    assert told is not None and told.base == os.path.expanduser("~")
    assert peer.file(FileOp.STAT, ".", base="/").result.base is None  # type: ignore[union-attr]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_is_made_becomes_the_owners(peer: Peer, tmp_path: Path) -> None:
    mine = os.geteuid()
    (tmp_path / "there").mkdir()
    for number, more in enumerate(({}, {"flags": PARENTS | IN_PLACE | TRUNCATE})):
        options = {"flags": PARENTS, **more}
        path = f"there/{number}/b/f"
        written = peer.file(FileOp.WRITE, path, base=str(tmp_path), input=b"x", owner="1234", **options)
        assert (described(written).uid, described(written).gid, described(written).mode) == (1234, 1234, 0o644)
        assert (tmp_path / f"there/{number}").stat().st_uid == 1234 and (tmp_path / "there").stat().st_uid == mine
        again = peer.file(FileOp.WRITE, path, base=str(tmp_path), input=b"y", owner="4321", **options)
        assert described(again).uid == 1234, "what is there keeps its owner"
    made = peer.file(FileOp.MKDIR, "x/y", base=str(tmp_path), owner="1234", flags=PARENTS)
    assert described(made).uid == 1234 and (tmp_path / "x").stat().st_uid == 1234
    moved = peer.file(
        FileOp.MOVE, "x/y", base=str(tmp_path), second_path="to/here", owner="77", flags=PARENTS
    )  # fmt: skip
    assert described(moved).uid == 1234 and (tmp_path / "to").stat().st_uid == 77
    assert failure(peer.file(FileOp.STAT, ".", owner="nobody-of-that-name"))[0] == "user"
