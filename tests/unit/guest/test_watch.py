"""The agent's watch: what is told, in which order, and what becomes of it under storms and in odd places."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bellglass.wire import guest
from bellglass.wire.guest import FileFlag, FileOp
from bellglass.wire.guest_watch import Change, Changed, decode_change

from .conftest import Peer, Stream
from .file_checks import failure

C, W, R, N, M = Change.CREATE, Change.WRITE, Change.REMOVE, Change.RENAME, Change.CHMOD
IN_PLACE, PARENTS, TRUNCATE = FileFlag.IN_PLACE, FileFlag.PARENTS, FileFlag.TRUNCATE


class Watch:
    """One watch on the agent. Its records are read by `sync`."""

    def __init__(self, peer: Peer, path: Path | str, *, recursive: bool = True, limit: int = 1000) -> None:
        self.peer = peer
        self.stream: Stream = peer.file(
            FileOp.WATCH,
            str(path),
            flags=FileFlag.RECURSIVE if recursive else FileFlag(0),
            max_entries=limit,
            wait=False,
        )
        self.stream.needs_eof = True
        self.sent = 0
        self.at = 0
        self.changes: list[Changed] = []
        self._until(lambda change: change.kind == Change.READY)

    def _until(self, wanted: Callable[[Changed], bool]) -> None:
        while not any(wanted(change) for change in self._decode()):
            if self.stream.done:
                return
            self.peer.step()

    def _decode(self) -> list[Changed]:
        found, data = [], self.stream.stdout
        while len(data) - self.at >= 4:
            (length,) = struct.unpack_from("<I", data, self.at)
            if len(data) - self.at - 4 < length:
                break
            found.append(decode_change(data[self.at + 4 : self.at + 4 + length]))
            self.at += 4 + length
        self.changes += found
        return found

    def sync(self) -> list[tuple[Change, str]]:
        """What was told up to now and not taken yet."""
        token = self.sent + 1
        self.peer.send(guest.encode_data(self.stream.id, 0, self.sent, struct.pack("<Q", token)))
        self.sent += 8
        self._until(lambda change: change.kind == Change.SYNCED and change.token == token)
        changes = [
            (change.kind, change.name) for change in self.changes if change.kind not in (Change.SYNCED, Change.READY)
        ]
        self.changes.clear()
        return changes

    def end(self) -> None:
        self.peer.send(guest.encode_eof(self.stream.id, 0, self.sent))
        self.peer.wait(self.stream)
        self.peer.release(self.stream)


def test_the_kinds(peer: Peer, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    watch = Watch(peer, folder)
    (folder / "f").write_bytes(b"x")
    (folder / "f").chmod(0o600)
    (folder / "f").rename(folder / "g")
    (folder / "g").unlink()
    (folder / "s").symlink_to("/etc")
    assert watch.sync() == [(C, "f"), (W, "f"), (M, "f"), (N, "f"), (C, "g"), (R, "g"), (C, "s")]
    assert watch.sync() == []
    watch.end()
    assert watch.stream.result is not None and 1 in watch.stream.eof


def test_a_move_has_one_cookie(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "w/d").mkdir(parents=True)
    watch = Watch(peer, tmp_path / "w")
    (tmp_path / "w/d").rename(tmp_path / "w/e")
    watch._until(lambda change: change.kind == C)
    moved = [change for change in watch.changes if change.kind in (N, C)]
    assert [(change.name, change.folder) for change in moved] == [("d", True), ("e", True)]
    assert moved[0].cookie == moved[1].cookie != 0


@pytest.mark.parametrize("more", [{}, {"owner": "1234"}], ids=["own", "given"])
def test_a_write_in_place_is_three_events(peer: Peer, tmp_path: Path, more: dict[str, str]) -> None:
    if more and os.geteuid() != 0:
        pytest.skip("only root may give files away")
    (tmp_path / "w").mkdir()
    watch = Watch(peer, tmp_path / "w", recursive=False)
    path, flags = str(tmp_path / "w/f"), IN_PLACE | PARENTS | TRUNCATE
    peer.file(FileOp.WRITE, path, input=b"hello", flags=flags, attributes={}, **more)
    assert watch.sync() == [(C, "f"), (M, "f"), (W, "f")]
    peer.file(FileOp.WRITE, path, input=b"world", flags=flags, attributes={}, **more)
    assert set(watch.sync()) == {(W, "f")}, "once or twice: the kernel joins the cut and the bytes, or not"
    peer.file(FileOp.WRITE, path, input=b"", flags=flags, attributes={"k": "v"}, **more)
    assert watch.sync() == [(W, "f"), (M, "f")]


def test_new_folders_are_watched_and_looked_through(peer: Peer, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    watch = Watch(peer, folder)
    for number in range(30):  # faster than any watcher can follow
        deep = folder / f"{number}/a/b"
        deep.mkdir(parents=True)
        (deep / "f").write_bytes(b"x")
    told = watch.sync()
    for number in range(30):
        for name in ("", "/a", "/a/b", "/a/b/f"):
            assert told.count((C, f"{number}{name}")) == 1
        assert (W, f"{number}/a/b/f") in told
    (folder / "7/a/b/later").touch()
    assert (C, "7/a/b/later") in watch.sync()


def test_without_recursion_only_the_folder_itself(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "w/d").mkdir(parents=True)
    watch = Watch(peer, tmp_path / "w", recursive=False)
    (tmp_path / "w/d/f").touch()
    (tmp_path / "w/e/x").mkdir(parents=True)
    assert watch.sync() == [(C, "e")]


def test_moved_folders_keep_telling_from_where_they_are(peer: Peer, tmp_path: Path) -> None:
    folder, outside = tmp_path / "w", tmp_path / "out"
    (folder / "a/b/c").mkdir(parents=True)
    outside.mkdir()
    watch = Watch(peer, folder)
    (folder / "a").rename(folder / "z")
    assert watch.sync() == [(N, "a"), (C, "z")]
    (folder / "z/b/c/f").touch()
    assert (C, "z/b/c/f") in watch.sync()
    (folder / "z/b").rename(outside / "b")
    assert watch.sync() == [(N, "z/b")]
    time.sleep(0.05)
    (outside / "b/c/unseen").touch()
    assert watch.sync() == []
    (outside / "b").rename(folder / "back")
    assert set(watch.sync()) == {(C, "back"), (C, "back/c"), (C, "back/c/f"), (C, "back/c/unseen")}
    (folder / "back/c/seen").touch()
    assert (C, "back/c/seen") in watch.sync()


def test_the_watched_folder_goes(peer: Peer, tmp_path: Path) -> None:
    for kind, change in ((R, lambda path: path.rmdir()), (N, lambda path: path.rename(tmp_path / "elsewhere"))):
        (tmp_path / "w").mkdir()
        watch = Watch(peer, tmp_path / "w")
        change(tmp_path / "w")
        peer.wait(watch.stream)
        watch._decode()
        assert watch.stream.result is not None and [(c.kind, c.name) for c in watch.changes][1:] == [(kind, ".")]
        peer.release(watch.stream)


def test_what_cannot_be_watched(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for path, why in (("f", ("type", "ENOTDIR")), ("none", ("path", "ENOENT"))):
        assert failure(peer.file(FileOp.WATCH, str(tmp_path / path))) == why


def test_names_of_all_kinds(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    watch = Watch(peer, tmp_path / "w")
    names = ["new\nline", os.fsdecode(b"\xff\xfe"), "\u2028", "x" * 255, "-", " ", '"\\']
    for name in names:
        (tmp_path / "w" / name).mkdir()
        (tmp_path / "w" / name / name).touch()
    told = watch.sync()
    assert all(told.count((C, name)) == 1 and told.count((C, f"{name}/{name}")) == 1 for name in names)


def test_links_are_never_followed(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "w/d").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "w/loop").symlink_to(".")
    (tmp_path / "w/d/up").symlink_to("..")
    (tmp_path / "w/out").symlink_to(tmp_path / "out")
    watch = Watch(peer, tmp_path / "w")
    (tmp_path / "out/f").touch()
    (tmp_path / "w/d/again").symlink_to("..")
    assert watch.sync() == [(C, "d/again")]
    (tmp_path / "to-w").symlink_to("w")
    by_link = Watch(peer, tmp_path / "to-w")
    (tmp_path / "w/d/f").touch()
    assert (C, "d/f") in by_link.sync()


def test_too_many_folders_are_an_error(peer: Peer, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    for number in range(10):
        (folder / f"{number}").mkdir(parents=True)
    assert failure_of(peer, folder, 10) == "limit"
    watch = Watch(peer, folder, limit=11)
    assert watch.sync() == []
    (folder / "one more").mkdir()
    peer.wait(watch.stream)
    assert watch.stream.failure is not None and watch.stream.failure.stage == "limit"


def failure_of(peer: Peer, folder: Path, limit: int) -> str:
    stream = peer.file(FileOp.WATCH, str(folder), flags=FileFlag.RECURSIVE, max_entries=limit)
    assert stream.failure is not None
    return stream.failure.stage


def test_too_deep_a_tree_is_an_error_and_no_crash(peer: Peer, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    watch = Watch(peer, folder, limit=10_000)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    peer.wait(watch.stream)
    assert watch.stream.failure is not None and watch.stream.failure.stage == "limit"
    assert failure_of(peer, folder, 10_000) == "limit"
    shutil.rmtree(folder)


def test_a_storm_of_renames_ends_in_the_truth(peer: Peer, tmp_path: Path) -> None:
    """When it is over, each folder that is there tells, under the name that it has then."""
    folder = tmp_path / "w"
    (folder / "tree").mkdir(parents=True)
    watch = Watch(peer, folder, limit=100_000)
    stop = threading.Event()

    def storm(number: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            made = folder / f"{number}-{turn}/x/y"
            made.mkdir(parents=True)
            (made / "f").write_bytes(b"1")
            (folder / f"{number}-{turn}").rename(folder / "tree" / f"{number}-{turn}")
            (folder / "tree" / f"{number}-{turn}/x").rename(folder / f"{number}-{turn}-x")
            if turn % 3 == 0:
                shutil.rmtree(folder / f"{number}-{turn}-x")

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        watch.sync()
    stop.set()
    for thread in threads:
        thread.join()
    watch.sync()
    time.sleep(0.05)
    watch.sync()
    probes = []
    for path in [path for path in folder.rglob("*") if path.is_dir()][:3000]:
        (path / "probe").touch()
        probes.append((C, f"{path.relative_to(folder)}/probe"))
    told = set(watch.sync())
    assert [probe for probe in probes if probe not in told] == []


def test_exchanged_folders(peer: Peer, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "w" / name / f"in-{name}").mkdir(parents=True)
    watch = Watch(peer, tmp_path / "w")
    libc = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(tmp_path / "w/a"), os.fsencode(tmp_path / "w/b")
    assert libc.renameat2(-100, first, -100, second, 2) == 0
    watch.sync()
    time.sleep(0.05)
    for path in ("a/in-b/f", "b/in-a/f"):
        (tmp_path / "w" / path).touch()
    assert {name for kind, name in watch.sync() if kind == C} == {"a/in-b/f", "b/in-a/f"}


def test_a_reader_that_takes_nothing_costs_events_and_is_told_so(peer: Peer, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    watch = Watch(peer, folder)
    peer.acks = False
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(most + 10_000):  # more than the kernel keeps and the pipe and the window hold
        (folder / f"{'x' * 200}{number}").touch()
    (folder / "late").mkdir()
    peer.acks = True
    peer.acknowledge(watch.stream, 1)
    told = watch.sync()
    assert (Change.OVERFLOW, "") in told
    (folder / "late/f").touch()
    assert (C, "late/f") in watch.sync(), "folders made while it was lost are watched all the same"


def test_it_ends_with_its_stream(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    watches = [Watch(peer, tmp_path / "w") for _ in range(3)]
    children = Path(f"/proc/{peer.agent.pid}/task/{peer.agent.pid}/children")
    assert len(children.read_text().split()) == 3
    peer.send(guest.encode_abort(watches[0].stream.id))
    peer.wait(watches[0].stream)
    assert watches[0].stream.failure is not None and watches[0].stream.failure.stage == "aborted"
    peer.release(watches[1].stream)
    peer.hang_up()
    peer.accept()
    deadline = time.monotonic() + 10
    while children.read_text().split():
        assert time.monotonic() < deadline
        time.sleep(0.01)
