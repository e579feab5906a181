"""Folders as tar: packing a local one as a stream, and unpacking one that came out of a sandbox.

What comes out is written by an attacker. Python's own extraction filter is not in every 3.11, so all of it is checked
here: nothing is ever written through a link, links are made last and only those that stay inside are kept, no
special files, no set-uid bits, bounded headers, and a scratch folder beside the target that only moves into place
once everything was accepted.
"""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import IO, Any

from bellglass.errors import ArchiveRefused, FileExists, InvalidRequest
from bellglass.sdk._local import CHUNK

MAX_ENTRIES = 1_000_000
_BLOCK = tarfile.BLOCKSIZE
# The largest single read of a header: pax headers and long names are a few KiB, a hostile one says gigabytes.
_MAX_HEADER = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    header: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A folder's archive before it is read: its entries, its exact size, and the names that are left out."""

    entries: list[_Entry]
    size: int
    left_out: list[str]


def plan(folder: Path) -> Plan:
    """Look at a folder. Raises InvalidRequest where it is none, OSError for what can't be read."""
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is not a folder", hint="upload() copies a file")
    root = folder.resolve()
    entries: list[_Entry] = []
    left_out: list[str] = []
    for path in _walk(root):
        name = path.relative_to(root).as_posix()
        status = path.lstat()
        info = tarfile.TarInfo(name)
        info.mode = stat.S_IMODE(status.st_mode) & 0o777
        info.mtime = int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISREG(status.st_mode):
            info.size = status.st_size
        elif stat.S_ISLNK(status.st_mode) and _inside(path, root):
            info.type = tarfile.SYMTYPE
            info.linkname = str(path.readlink())
        else:
            left_out.append(name)
            continue
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        entries.append(_Entry(path, header, info.size))
    size = sum(len(entry.header) + _padded(entry.size) for entry in entries) + 2 * _BLOCK
    return Plan(entries, size, left_out)


def pack(planned: Plan) -> Iterator[bytes]:
    """The archive, in pieces. Raises InvalidRequest when a file got shorter meanwhile."""
    waiting = bytearray()
    for entry in planned.entries:
        waiting += entry.header
        if entry.size:
            # A name that became a link since then must not be followed.
            descriptor = os.open(entry.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                left = entry.size
                while left:
                    chunk = file.read(min(CHUNK, left))
                    if not chunk:
                        raise InvalidRequest(f"{entry.path} became {left} bytes shorter while it was sent")
                    left -= len(chunk)
                    waiting += chunk
                    if len(waiting) >= CHUNK:
                        yield bytes(waiting)
                        waiting.clear()
            waiting += bytes(_padded(entry.size) - entry.size)
        if len(waiting) >= CHUNK:
            yield bytes(waiting)
            waiting.clear()
    waiting += bytes(2 * _BLOCK)
    yield bytes(waiting)


def _walk(root: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail):
        folders.sort()
        for name in sorted(folders + files):
            yield Path(folder) / name


def _inside(link: Path, root: Path) -> bool:
    if link.readlink().is_absolute():
        return False
    try:
        resolved = Path(os.path.realpath(link))
    except OSError:
        return False
    return resolved.is_relative_to(root)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


class _Headers:
    """The archive as tarfile sees it: forwards only, and never much at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lowest = 0
        self.size = file.seek(0, os.SEEK_END)
        file.seek(0)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        # tarfile reads the byte before the next header, to see that the file reaches that far.
        if whence != os.SEEK_SET or offset < self._lowest - 1:
            raise ArchiveRefused("the archive leads back into itself")
        return self._file.seek(offset)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise ArchiveRefused(f"the archive has a header of {size} bytes")
        return self._file.read(size)

    def passed(self, offset: int) -> None:
        if offset < self._lowest or offset > self.size + _BLOCK:
            raise ArchiveRefused("the archive leads back into itself, or past its end")
        self._lowest = offset


class Extraction:
    """Unpacks an archive (a seekable file) into the folder `target`."""

    def __init__(self, file: IO[bytes], target: Path, *, max_entries: int = MAX_ENTRIES) -> None:
        self._file = file
        self._target = target
        self._max_entries = max_entries
        self._left_out: list[str] = []
        self._links: dict[Path, str] = {}
        self._folders: dict[Path, tuple[int, int]] = {}

    def run(self) -> list[str]:
        """Returns the names that were left out. Raises ArchiveRefused, FileExists, OSError; then nothing is there but
        what was (and, where an existing folder is merged into, the entries that came before the conflict)."""
        if self._target.is_symlink() or (self._target.exists() and not self._target.is_dir()):
            raise FileExists(f"{self._target} is there and is not a folder")
        parent = self._target.parent
        parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=parent, prefix=".bellglass-"))
        try:
            self._unpack(scratch)
            self._make_links(scratch)
            for folder, (mode, mtime) in reversed(self._folders.items()):
                folder.chmod(mode)
                os.utime(folder, (mtime, mtime))
            if not self._target.exists():
                scratch.chmod(0o777 & ~_umask())
                scratch.rename(self._target)
            else:
                _merge(scratch, self._target)
        finally:
            rmtree(scratch, ignore_errors=True)  # moved away already, when all went well
        return self._left_out

    def _unpack(self, scratch: Path) -> None:
        headers = _Headers(self._file)
        try:
            with tarfile.open(fileobj=headers, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:  # type: ignore[call-overload]
                count = 0
                while (entry := archive.next()) is not None:
                    archive.members = []  # it keeps them all otherwise
                    headers.passed(archive.offset)
                    count += 1
                    if count > self._max_entries:
                        raise ArchiveRefused(f"the archive has over {self._max_entries} entries")
                    self._add(scratch, entry, headers.size)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
            raise ArchiveRefused(f"the archive can't be read: {error}") from error

    def _add(self, scratch: Path, entry: tarfile.TarInfo, end: int) -> None:
        parts = _parts(entry.name)
        place = scratch.joinpath(*parts)
        if not parts:
            return
        _make_parents(scratch, parts[:-1], self._links)
        if entry.isdir():
            self._no_link(place, entry.name)
            place.mkdir(exist_ok=True)
            # Set at the end: one without write permission would refuse its own content.
            self._folders[place] = ((entry.mode & 0o755) | 0o700, _time(entry))
        elif entry.issym():
            if place.exists():
                raise ArchiveRefused(f"{entry.name!r} is in the archive twice, once as a link")
            self._links[place] = entry.linkname
        elif entry.isreg() and not entry.issparse():
            self._no_link(place, entry.name)
            if entry.size < 0 or entry.offset_data + entry.size > end:
                raise ArchiveRefused(f"{entry.name!r} is cut off")
            self._copy(entry, place)
        elif entry.islnk():
            self._no_link(place, entry.name)
            self._hard_link(scratch, entry, place)
        else:
            self._left_out.append(entry.name)

    def _no_link(self, place: Path, name: str) -> None:
        if place in self._links:
            raise ArchiveRefused(f"{name!r} is in the archive twice, once as a link")

    def _copy(self, entry: tarfile.TarInfo, place: Path) -> None:
        position = self._file.tell()
        self._file.seek(entry.offset_data)
        place.unlink(missing_ok=True)
        with open(place, "xb", buffering=0) as out:
            left = entry.size
            while left:
                chunk = self._file.read(min(CHUNK, left))
                if not chunk:
                    raise ArchiveRefused(f"{entry.name!r} is cut off")
                left -= len(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[out.write(view) :]
        place.chmod((entry.mode & 0o755) | 0o600)
        os.utime(place, (_time(entry), _time(entry)))
        self._file.seek(position)

    def _hard_link(self, scratch: Path, entry: tarfile.TarInfo, place: Path) -> None:
        source = scratch.joinpath(*_parts(entry.linkname))
        if source in self._links or not source.is_file() or source.is_symlink():
            self._left_out.append(entry.name)
            return
        place.unlink(missing_ok=True)
        os.link(source, place)

    def _make_links(self, scratch: Path) -> None:
        """All of them, and then away with those that lead outside: a chain is only whole once all are there."""
        for place, aim in self._links.items():
            if not aim or aim.startswith("/") or Path(aim).is_absolute() or "\0" in aim:
                self._left_out.append(place.relative_to(scratch).as_posix())
                continue
            place.symlink_to(aim)
        root = os.path.realpath(scratch)
        again = True
        while again:  # without one link another can lead elsewhere
            again = False
            for place in self._links:
                if place.is_symlink() and not Path(os.path.realpath(place)).is_relative_to(root):
                    place.unlink()
                    self._left_out.append(place.relative_to(scratch).as_posix())
                    again = True


def _parts(name: str) -> list[str]:
    """A name taken apart. Raises ArchiveRefused for one that leads outside."""
    if "\0" in name or name.startswith("/") or (os.sep == "\\" and (":" in name or "\\" in name)):
        raise ArchiveRefused(f"{name!r} is not a name inside the archive")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveRefused(f"{name!r} leads out of the archive")
    return parts


def _make_parents(scratch: Path, parts: list[str], links: dict[Path, Any]) -> None:
    place = scratch
    for part in parts:
        place /= part
        if place in links:
            raise ArchiveRefused(f"{place.relative_to(scratch).as_posix()!r} is a link and has entries below it")
        place.mkdir(exist_ok=True)


def _merge(source: Path, target: Path) -> None:
    """Move what `source` holds into `target`, which exists. Links at the target are replaced, never followed."""
    for child in sorted(source.iterdir()):
        place = target / child.name
        is_folder = child.is_dir() and not child.is_symlink()
        there = place.is_dir() and not place.is_symlink()
        if is_folder and there:
            _merge(child, place)
        elif there or (is_folder and (place.exists() or place.is_symlink())):
            raise FileExists(f"{place}: {'a folder' if there else 'no folder'} is there already")
        else:
            child.replace(place)


def _time(entry: tarfile.TarInfo) -> int:
    return int(min(max(entry.mtime, 0), 2**33))


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
