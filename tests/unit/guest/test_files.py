"""The agent's file operations: content, durability's outcome, rights, kinds of files, limits, undo."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from pathlib import Path

import pytest

from bellglass.wire import guest
from bellglass.wire.guest import FileFlag, FileOp

from .conftest import Peer, Stream, resident_bytes
from .file_checks import failure, leftovers, wait_until


def test_write_and_read(peer: Peer, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    written = peer.file(FileOp.WRITE, "a/b/file", base=str(tmp_path), input=data, flags=FileFlag.PARENTS)
    assert written.result is not None and written.result.entry is not None
    assert (written.result.bytes, written.result.created) == (len(data), True)
    assert (written.result.entry.size, written.result.entry.mode) == (len(data), 0o644)
    assert (tmp_path / "a/b/file").read_bytes() == data
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o755
    read = peer.file(FileOp.READ, str(tmp_path / "a/b/file"))
    assert read.stdout == data and read.order[0] == "RESULT"
    assert read.result is not None and read.result.entry is not None and read.result.entry.size == len(data)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("offset", "length", "expected"), [(0, 3, b"012"), (7, None, b"789"), (8, 50, b"89"), (10, 1, b"")]
)
def test_ranges(peer: Peer, tmp_path: Path, offset: int, length: int | None, expected: bytes) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert peer.file(FileOp.READ, str(tmp_path / "f"), offset=offset, length=length).stdout == expected


def test_empty_file(peer: Peer, tmp_path: Path) -> None:
    assert peer.file(FileOp.WRITE, str(tmp_path / "f"), input=b"").result is not None
    assert (tmp_path / "f").read_bytes() == b""
    assert peer.file(FileOp.READ, str(tmp_path / "f")).stdout == b""


def test_overwrite_leaves_no_tail_and_keeps_the_mode(peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10_000_000)
    path.chmod(0o4751)
    done = peer.file(FileOp.WRITE, str(path), input=b"short", mode=0o600)
    assert done.result is not None and done.result.created is False
    assert path.read_bytes() == b"short"
    assert path.stat().st_mode & 0o7777 == 0o751  # setuid is not for bytes that came from elsewhere


def test_mode_of_a_new_file(peer: Peer, tmp_path: Path) -> None:
    peer.file(FileOp.WRITE, str(tmp_path / "f"), input=b"x", mode=0o777)
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o777


def test_exclusive(peer: Peer, tmp_path: Path) -> None:
    for flags in (FileFlag.EXCLUSIVE, FileFlag.EXCLUSIVE | FileFlag.IN_PLACE):
        path = str(tmp_path / f"f{int(flags)}")
        assert peer.file(FileOp.WRITE, path, input=b"1", flags=flags).result is not None
        assert failure(peer.file(FileOp.WRITE, path, input=b"2", flags=flags)) == ("path", "EEXIST")
        assert Path(path).read_bytes() == b"1"


def test_in_place(peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    inode = path.stat().st_ino
    peer.file(FileOp.WRITE, str(path), input=b"AB", flags=FileFlag.IN_PLACE, offset=4)
    assert path.read_bytes() == b"0123AB6789" and path.stat().st_ino == inode
    peer.file(FileOp.WRITE, str(path), input=b"new", flags=FileFlag.IN_PLACE | FileFlag.TRUNCATE)
    assert path.read_bytes() == b"new" and path.stat().st_ino == inode


def test_sizes_and_limits(peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert peer.file(FileOp.WRITE, str(path), input=b"abc", expected_bytes=3, max_bytes=3).result is not None
    assert failure(peer.file(FileOp.WRITE, str(path), input=b"abcd", expected_bytes=3))[0] == "size"
    assert failure(peer.file(FileOp.WRITE, str(path), input=b"ab", expected_bytes=3))[0] == "size"
    assert failure(peer.file(FileOp.WRITE, str(path), input=b"x" * 5_000_000, max_bytes=100)) == ("limit", "EFBIG")
    assert path.read_bytes() == b"abc" and leftovers(tmp_path) == []


def test_special_files_answer_at_once(peer: Peer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    try:
        targets = [tmp_path / "fifo", tmp_path / "socket", "/dev/zero", "/dev/full", "/dev/null"]
        for target in targets:
            begin = time.monotonic()
            assert failure(peer.file(FileOp.READ, str(target)))[0] == "type"
            for flags in (FileFlag(0), FileFlag.IN_PLACE, FileFlag.IN_PLACE | FileFlag.TRUNCATE):
                assert failure(peer.file(FileOp.WRITE, str(target), input=b"x", flags=flags))[0] == "type"
            assert time.monotonic() - begin < 2
        for target in targets[:2]:
            assert stat.S_IFMT(os.lstat(target).st_mode) in (stat.S_IFIFO, stat.S_IFSOCK), "it was replaced"
        assert failure(peer.file(FileOp.READ, str(tmp_path))) == ("type", "EISDIR")
        assert failure(peer.file(FileOp.WRITE, str(tmp_path), input=b"x")) == ("type", "EISDIR")
        assert failure(peer.file(FileOp.WRITE, "/", input=b"x")) == ("type", "EISDIR")
    finally:
        listener.close()


def test_files_of_proc(peer: Peer) -> None:
    assert peer.file(FileOp.READ, "/proc/self/status").stdout.startswith(b"Name:")
    assert peer.file(FileOp.READ, "/proc/cpuinfo").stdout.startswith(b"processor")
    assert peer.file(FileOp.READ, "/proc/self/mem", length=10).failure is not None


def test_missing_and_bad_paths(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    assert failure(peer.file(FileOp.READ, str(tmp_path / "nope"))) == ("path", "ENOENT")
    assert failure(peer.file(FileOp.READ, str(tmp_path / "f" / "x"))) == ("path", "ENOTDIR")
    assert failure(peer.file(FileOp.WRITE, str(tmp_path / "no" / "f"), input=b"x")) == ("path", "ENOENT")
    assert failure(peer.file(FileOp.WRITE, str(tmp_path / ("n" * 256)), input=b"x")) == ("path", "ENAMETOOLONG")
    assert failure(peer.file(FileOp.READ, "x", base=str(tmp_path / "nope"))) == ("path", "ENOENT")
    assert peer.file(FileOp.READ, "a\0b").failure is not None
    assert peer.file(FileOp.READ, "x" * 5000).failure is not None
    assert peer.file(FileOp.READ, "x", base="relative").failure is not None


def test_write_through_links(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("d/link2")
    (tmp_path / "d" / "link2").symlink_to("real")
    (tmp_path / "dangling").symlink_to("d/fresh")
    (tmp_path / "loop").symlink_to("loop")
    peer.file(FileOp.WRITE, str(tmp_path / "link"), input=b"new")
    assert (tmp_path / "d" / "real").read_bytes() == b"new" and (tmp_path / "link").is_symlink()
    peer.file(FileOp.WRITE, str(tmp_path / "dangling"), input=b"fresh", flags=FileFlag.IN_PLACE)
    assert (tmp_path / "d" / "fresh").read_bytes() == b"fresh" and (tmp_path / "dangling").is_symlink()
    assert failure(peer.file(FileOp.WRITE, str(tmp_path / "loop"), input=b"x")) == ("path", "ELOOP")
    nofollow = peer.file(FileOp.WRITE, str(tmp_path / "link"), input=b"x", flags=FileFlag.NO_FOLLOW)
    assert failure(nofollow) == ("path", "ELOOP")
    assert failure(peer.file(FileOp.READ, str(tmp_path / "link"), flags=FileFlag.NO_FOLLOW)) == ("path", "ELOOP")


def test_abort_leaves_nothing(peer: Peer, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"before")
    stream = peer.file(FileOp.WRITE, str(target), input=None, wait=False)
    peer.feed(stream, b"x" * 3_000_000, eof=False)
    wait_until(lambda: leftovers(tmp_path) != [])
    peer.send(guest.encode_abort(stream.id))
    peer.wait(stream)
    assert failure(stream)[0] == "aborted"
    assert leftovers(tmp_path) == [] and target.read_bytes() == b"before"
    peer.release(stream)


def test_broken_link_undoes_a_write(peer: Peer, tmp_path: Path) -> None:
    stream = peer.file(FileOp.WRITE, str(tmp_path / "f"), wait=False)
    peer.feed(stream, b"x" * 3_000_000, eof=False)
    wait_until(lambda: leftovers(tmp_path) != [])
    peer.hang_up()
    peer.streams.clear()
    assert peer.accept().streams == {}
    wait_until(lambda: list(tmp_path.iterdir()) == [])
    wait_until(lambda: children(peer.agent.pid) == [])


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_end_of_the_agent_undoes_a_write(peer: Peer, tmp_path: Path) -> None:
    stream = peer.file(FileOp.WRITE, str(tmp_path / "f"), wait=False)
    peer.feed(stream, b"x" * 3_000_000, eof=False)
    wait_until(lambda: leftovers(tmp_path) != [])
    peer.agent.kill()
    peer.agent.wait()
    peer.agent.returncode = 0
    wait_until(lambda: leftovers(tmp_path) == [])
    assert not (tmp_path / "f").exists()


def test_stopped_worker_is_ended_by_abort(peer: Peer, tmp_path: Path) -> None:
    """The worker has the user's uid: the user can stop it."""
    stream = peer.file(FileOp.WRITE, str(tmp_path / "f"), wait=False)
    peer.feed(stream, b"x" * 1000, eof=False)
    wait_until(lambda: leftovers(tmp_path) != [])
    os.kill(int(children(peer.agent.pid)[0]), signal.SIGSTOP)
    peer.send(guest.encode_abort(stream.id))
    peer.wait(stream)
    assert failure(stream)[0] == "aborted" and leftovers(tmp_path) == []


def test_killed_worker_is_a_failure(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 50_000_000)
    stream = peer.file(FileOp.READ, str(tmp_path / "f"), wait=False)
    peer.acks = False
    peer.until(lambda: stream.received[1] > 0)
    os.kill(int(children(peer.agent.pid)[0]), signal.SIGKILL)
    peer.acks, stream.keep = True, False
    peer.acknowledge(stream, 1)
    peer.until(lambda: stream.failure is not None)
    assert 1 not in stream.eof, "a torn read ended like a whole one"


def test_reader_that_is_too_slow_costs_no_memory(peer: Peer, tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        file.truncate(200_000_000)
    peer.acks = False
    stream = peer.file(FileOp.READ, str(tmp_path / "f"), wait=False)
    stream.keep = False
    peer.until(lambda: stream.received[1] == 1 << 20)
    with pytest.raises(TimeoutError):
        peer.step(0.3)
    assert resident_bytes(peer.agent.pid) < 2_500_000
    peer.acks = True
    peer.acknowledge(stream, 1)
    peer.wait(stream, 60)
    assert stream.received[1] == 200_000_000


def test_list(peer: Peer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "file").write_bytes(b"12345")
    (root / "link").symlink_to("d")
    os.mkfifo(root / "fifo")
    odd = os.fsdecode(b"odd\xff\nname")
    (root / odd).write_bytes(b"")
    flat = peer.entries(peer.file(FileOp.LIST, str(root)))
    assert {name: entry.type for name, entry in flat.items()} == {"d": "d", "link": "l", "fifo": "p", odd: "f"}
    assert flat["link"].target == "d"
    deep = peer.file(FileOp.LIST, "root", base=str(tmp_path), flags=FileFlag.RECURSIVE)
    assert peer.entries(deep)["d/e/file"].size == 5 and len(peer.entries(deep)) == 6
    assert deep.order[-2:] == ["EOF", "RESULT"] and deep.result is not None and deep.result.truncated is False
    cut = peer.file(FileOp.LIST, str(root), flags=FileFlag.RECURSIVE, max_entries=2)
    assert len(peer.entries(cut)) == 2 and cut.result is not None and cut.result.truncated is True
    assert failure(peer.file(FileOp.LIST, str(root / odd))) == ("type", "ENOTDIR")
    assert peer.entries(peer.file(FileOp.LIST, str(root / "d" / "e" / ".."))).keys() == {"e"}


def test_large_folder(peer: Peer, tmp_path: Path) -> None:
    for i in range(3000):
        (tmp_path / f"name-{i:060}").touch()
    assert len(peer.entries(peer.file(FileOp.LIST, str(tmp_path)))) == 3000


def test_stat(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 10_000)
    (tmp_path / "f").chmod(0o6755)
    os.utime(tmp_path / "f", ns=(1, -1_500_000_000))
    (tmp_path / "l").symlink_to("f")
    entry = peer.file(FileOp.STAT, "l", base=str(tmp_path)).result
    assert entry is not None and entry.entry is not None
    real = (tmp_path / "f").stat()
    assert (entry.entry.type, entry.entry.size, entry.entry.mode) == ("f", 10_000, 0o6755)
    assert (entry.entry.mtime_ns, entry.entry.inode) == (-1_500_000_000, real.st_ino)
    assert (entry.entry.uid, entry.entry.gid) == (real.st_uid, real.st_gid)
    assert entry.entry.allocated_bytes == real.st_blocks * 512
    link = peer.file(FileOp.STAT, str(tmp_path / "l"), flags=FileFlag.NO_FOLLOW).result
    assert link is not None and link.entry is not None and (link.entry.type, link.entry.target) == ("l", "f")
    assert failure(peer.file(FileOp.STAT, str(tmp_path / "nope"))) == ("path", "ENOENT")


def test_mkdir(peer: Peer, tmp_path: Path) -> None:
    def mkdir(path: str, flags: FileFlag = FileFlag(0), mode: int | None = None) -> Stream:
        return peer.file(FileOp.MKDIR, path, base=str(tmp_path), flags=flags, mode=mode)

    made = mkdir("a", mode=0o1777).result
    assert made is not None and made.created and (tmp_path / "a").stat().st_mode & 0o7777 == 0o1777
    assert failure(mkdir("a")) == ("path", "EEXIST")
    again = mkdir("a", FileFlag.PARENTS).result
    assert again is not None and not again.created
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o1777, "an existing folder was changed"
    assert failure(mkdir("x/y")) == ("path", "ENOENT")
    assert mkdir("x/y/z/", FileFlag.PARENTS).result is not None and (tmp_path / "x/y/z").is_dir()
    (tmp_path / "f").touch()
    assert failure(mkdir("f", FileFlag.PARENTS)) == ("type", "EEXIST")
    assert failure(mkdir("f/g", FileFlag.PARENTS))[1] == "ENOTDIR"
    assert mkdir("/", FileFlag.PARENTS).result is not None


def test_move(peer: Peer, tmp_path: Path) -> None:
    def move(source: str, destination: str, flags: FileFlag = FileFlag(0)) -> Stream:
        return peer.file(FileOp.MOVE, source, second_path=destination, base=str(tmp_path), flags=flags)

    (tmp_path / "f").write_bytes(b"f")
    (tmp_path / "g").write_bytes(b"g")
    assert failure(move("f", "g")) == ("path", "EEXIST")
    assert move("f", "g", FileFlag.OVERWRITE).result is not None
    assert (tmp_path / "g").read_bytes() == b"f" and not (tmp_path / "f").exists()
    assert failure(move("g", "new/place")) == ("path", "ENOENT")
    assert move("g", "new/place", FileFlag.PARENTS).result is not None
    assert move("new", "newer").result is not None and (tmp_path / "newer/place").read_bytes() == b"f"
    assert failure(move("newer", "newer/inside"))[1] == "EINVAL"
    assert failure(move("gone", "x")) == ("path", "ENOENT")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")
def test_move_to_another_file_system(peer: Peer, tmp_path: Path) -> None:
    away = Path("/dev/shm") / f"bellglass-test-{os.getpid()}"
    if away.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("one file system only")
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / "f").write_bytes(b"x" * 3_000_000)
    (tree / "d" / "f").chmod(0o640)
    (tree / "l").symlink_to("d/f")
    try:
        assert peer.file(FileOp.MOVE, str(tree), second_path=str(away)).result is not None
        assert not tree.exists() and (away / "d/f").stat().st_mode & 0o777 == 0o640
        assert os.readlink(away / "l") == "d/f" and (away / "d/f").stat().st_size == 3_000_000
        assert peer.file(FileOp.MOVE, str(away), second_path=str(tree)).result is not None
        assert (tree / "d/f").read_bytes() == b"x" * 3_000_000 and not away.exists()
        assert leftovers(tmp_path) == []
    finally:
        if away.exists():
            peer.file(FileOp.REMOVE, str(away), flags=FileFlag.RECURSIVE)


def test_remove(peer: Peer, tmp_path: Path) -> None:
    def remove(path: str, flags: FileFlag = FileFlag(0)) -> Stream:
        return peer.file(FileOp.REMOVE, path, base=str(tmp_path), flags=flags)

    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "f").touch()
    (tmp_path / "tree" / "d").mkdir(parents=True)
    (tmp_path / "tree" / "out").symlink_to(canary)
    (tmp_path / "link").symlink_to(canary)
    assert remove("link").result is not None and not (tmp_path / "link").is_symlink()
    assert failure(remove("tree")) == ("path", "ENOTEMPTY")
    assert remove("tree", FileFlag.RECURSIVE).result is not None and not (tmp_path / "tree").exists()
    assert (canary / "f").exists(), "a link was followed"
    assert failure(remove("tree", FileFlag.RECURSIVE)) == ("path", "ENOENT")
    assert failure(remove("/", FileFlag.RECURSIVE))[1] == "EINVAL"
    assert failure(remove("canary/..", FileFlag.RECURSIVE))[1] == "EINVAL"


def test_remove_a_very_deep_tree(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    fd = os.open(tmp_path / "deep", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("dddddddddd", dir_fd=fd)
        inner = os.open("dddddddddd", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    assert peer.file(FileOp.REMOVE, str(tmp_path / "deep"), flags=FileFlag.RECURSIVE).result is not None
    assert not (tmp_path / "deep").exists()


def test_sync(peer: Peer) -> None:
    assert peer.file(FileOp.SYNC, "/").result is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
class TestAsAnotherUser:
    USER = "65534"

    def test_rights_are_the_users(self, peer: Peer, tmp_path: Path) -> None:
        for parent in [tmp_path, *tmp_path.parents]:
            if parent.stat().st_uid == 0 and parent.name.startswith(("pytest-", "popen-", "test_")):
                parent.chmod(0o755)
        mine = tmp_path / "mine"
        mine.mkdir()
        os.chown(mine, 65534, 65534)
        written = peer.file(FileOp.WRITE, str(mine / "f"), input=b"x", user=self.USER)
        assert written.result is not None and (mine / "f").stat().st_uid == 65534
        assert failure(peer.file(FileOp.WRITE, str(tmp_path / "f"), input=b"x", user=self.USER)) == ("path", "EACCES")
        (mine / "f").chmod(0o444)
        assert failure(peer.file(FileOp.WRITE, str(mine / "f"), input=b"x", user=self.USER)) == ("path", "EACCES")
        secret = tmp_path / "secret"
        secret.write_bytes(b"")
        secret.chmod(0o600)
        assert failure(peer.file(FileOp.READ, str(secret), user=self.USER)) == ("path", "EACCES")
        # root replaces the file of somebody: it stays theirs
        peer.file(FileOp.WRITE, str(mine / "f"), input=b"root", user="0")
        assert (mine / "f").stat().st_uid == 65534 and (mine / "f").read_bytes() == b"root"
