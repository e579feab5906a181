"""Archives that came out of a sandbox: whatever they say, nothing outside of the target is touched."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bellglass import ArchiveRefused, BellglassError, FileExists
from bellglass.sdk._tar import Extraction, pack, plan

Entry = tuple[str, bytes, dict[str, object]]


def archive(*entries: Entry, format: int = tarfile.PAX_FORMAT) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, content, more in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return buffer


def file(name: str, content: bytes = b"x", **more: object) -> Entry:
    return name, content, more


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return name, b"", {"type": kind, "linkname": to}


def folder(name: str) -> Entry:
    return name, b"", {"type": tarfile.DIRTYPE}


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("untouched")
    return outside / "canary"


@pytest.fixture
def unpack(tmp_path: Path, canary: Path) -> Callable[..., list[str]]:
    def run(*entries: Entry, format: int = tarfile.PAX_FORMAT) -> list[str]:
        try:
            return Extraction(archive(*entries, format=format), tmp_path / "target").run()
        finally:
            assert canary.read_text() == "untouched"
            assert sorted(os.listdir(tmp_path)) in (["outside"], ["outside", "target"]), "something lies beside"

    return run


def test_what_is_ordinary_is_unpacked(unpack: Callable[..., list[str]], tmp_path: Path) -> None:
    left_out = unpack(
        folder("d"), file("d/f", b"content", mode=0o644), file("./run", mode=0o4755), link("l", "d/f"), link("h", "d/f",
        tarfile.LNKTYPE), file("made/on/the/way"), link("d/up", "../run"), link("dangling", "nothing/here"),
    )  # fmt: skip
    target = tmp_path / "target"
    assert left_out == []
    assert (target / "d/f").read_bytes() == (target / "l").read_bytes() == (target / "h").read_bytes() == b"content"
    assert stat.S_IMODE((target / "run").stat().st_mode) == 0o755
    assert (target / "dangling").is_symlink() and (target / "made/on/the/way").exists()


@pytest.mark.parametrize("name", ["../x", "/abs", "a/../../x", "..", "a/..", "outside/../../outside/canary"])
@pytest.mark.parametrize("make", [file, folder, lambda name: link(name, "a")], ids=["file", "folder", "link"])
def test_names_that_lead_outside_are_refused(unpack: Callable[..., list[str]], name: str, make: Callable[..., Entry],
                                             tmp_path: Path) -> None:  # fmt: skip
    with pytest.raises(ArchiveRefused):
        unpack(file("good"), make(name))
    assert not (tmp_path / "target").exists(), "a part of it was kept"


@pytest.mark.parametrize(
    "aim", ["/etc/passwd", "../outside", "..", "../../outside/canary", "d/../../outside", ""], ids=repr
)
def test_links_that_lead_outside_are_left_out(unpack: Callable[..., list[str]], aim: str, tmp_path: Path) -> None:
    assert unpack(folder("d"), link("evil", aim), link("good", "d")) == ["evil"]
    assert not (tmp_path / "target/evil").is_symlink() and (tmp_path / "target/good").is_symlink()


def test_chains_of_links_are_seen_as_a_whole(unpack: Callable[..., list[str]], tmp_path: Path) -> None:
    # Each alone looks harmless: `s` is the root, so `s/..` is above it.
    left_out = unpack(folder("a"), folder("a/b"), link("a/b/s", "../.."), link("evil", "a/b/s/../outside/canary"))
    assert left_out == ["evil"]
    assert not (tmp_path / "target/evil").exists()


@pytest.mark.parametrize(
    "entries",
    [
        [link("l", "../outside"), file("l/canary", b"changed")],
        [link("l", "."), file("l/x")],
        [link("l", "../outside/canary"), file("l", b"changed")],
        [file("l", b"first"), link("l", "../outside/canary")],
        [link("l", "../outside"), folder("l")],
        [link("l", "../outside"), link("l/deeper", "x")],
        [link("l", "../outside/canary"), link("l", "x", tarfile.LNKTYPE)],
    ],
    ids=["through", "through-dot", "onto", "twice", "folder", "below", "hard"],
)
def test_nothing_is_written_through_a_link(unpack: Callable[..., list[str]], entries: list[Entry]) -> None:
    with pytest.raises(ArchiveRefused):
        unpack(*entries)


@pytest.mark.parametrize("aim", ["../outside/canary", "/etc/passwd", "nothing", "l"])
def test_hard_links_only_lead_to_files_inside(unpack: Callable[..., list[str]], aim: str, canary: Path) -> None:
    links = canary.stat().st_nlink
    try:
        assert unpack(link("l", "../outside/canary"), link("h", aim, tarfile.LNKTYPE)) == ["h", "l"]
    except ArchiveRefused:
        pass
    assert canary.stat().st_nlink == links


def test_special_files_are_left_out(unpack: Callable[..., list[str]], tmp_path: Path) -> None:
    kinds = {"c": tarfile.CHRTYPE, "b": tarfile.BLKTYPE, "p": tarfile.FIFOTYPE}
    assert unpack(*[(name, b"", {"type": kind}) for name, kind in kinds.items()], file("f")) == ["c", "b", "p"]
    assert os.listdir(tmp_path / "target") == ["f"]


def test_headers_are_bounded(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("././@PaxHeader")
    huge.type, huge.size = tarfile.XHDTYPE, 8 << 30
    for block in (huge.tobuf(tarfile.GNU_FORMAT), _longname(8 << 30)):
        data = io.BytesIO(block + b"x" * 512)
        with pytest.raises(ArchiveRefused, match="header"):
            Extraction(data, tmp_path / "target").run()


def _longname(size: int) -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
    return info.tobuf(tarfile.GNU_FORMAT)


def test_entries_are_bounded(tmp_path: Path) -> None:
    many = archive(*[file(str(number), b"") for number in range(11)])
    assert Extraction(many, tmp_path / "good", max_entries=11).run() == []
    with pytest.raises(ArchiveRefused, match="over 10 entries"):
        Extraction(many, tmp_path / "target", max_entries=10).run()
    assert not (tmp_path / "target").exists()


def test_an_archive_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    whole = archive(file("a", b"1" * 5000), file("b", b"2" * 5000)).getvalue()
    for length in (100, 600, 3000, 6200, 9000):
        with pytest.raises(ArchiveRefused):
            Extraction(io.BytesIO(whole[:length]), tmp_path / "target").run()
        assert os.listdir(tmp_path) == []


def test_an_existing_folder_is_merged_and_its_links_are_not_followed(
    unpack: Callable[..., list[str]], tmp_path: Path, canary: Path
) -> None:
    target = tmp_path / "target"
    (target / "d").mkdir(parents=True)
    (target / "d/stays").write_text("stays")
    (target / "link").symlink_to(canary)
    unpack(file("d/new", b"new"), file("link", b"changed"))
    assert (target / "d/stays").read_text() == "stays" and (target / "d/new").read_bytes() == b"new"
    assert not (target / "link").is_symlink() and (target / "link").read_bytes() == b"changed"
    (target / "out").symlink_to(canary.parent)
    with pytest.raises(FileExists):
        unpack(file("out/canary", b"changed"))
    with pytest.raises(FileExists):
        unpack(file("d", b"a file where a folder is"))
    with pytest.raises(FileExists):
        Extraction(archive(file("x")), canary).run()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_archives_are_refused_or_harmless(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    whole = bytearray(archive(folder("d"), file("d/f", b"1" * 700), link("l", "d"), file("n" * 120)).getvalue())
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)):
        whole[position] = data.draw(st.integers(0, 255))
    try:
        Extraction(io.BytesIO(bytes(whole)), root / "target").run()
    except (BellglassError, OSError):
        pass
    assert set(os.listdir(root)) <= {"target"}


def test_packing_follows_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_bytes(b"x" * 1000)
    (source / "loop").symlink_to("loop")
    (source / "absolute").symlink_to(source / "d")
    (source / "inside").symlink_to("d/f")
    planned = plan(source)
    data = b"".join(pack(planned))
    assert len(data) == planned.size
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert sorted(tar.getnames()) == ["d", "d/f", "inside", "loop"]
        assert all(entry.uid == 0 and entry.uname == "" for entry in tar)
    assert planned.left_out == ["absolute"]
