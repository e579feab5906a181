"""An execution's output on the host's disk: an append-only ring of segment files.

    <folder>/<execution id>.<number>.log     head: magic, then the combined, stdout and stderr offsets it begins at
                                             records: stream u8, length u32, combined offset u64; then the bytes

The oldest segment goes when the ring is over its limit; what a reader then misses is a counted gap. Bytes are written
to the page cache before the agent hears of them, so a killed node loses nothing that it acknowledged; a torn record at
the end is cut off when the log is opened again. No file exists before the first byte.
"""

from __future__ import annotations

import asyncio
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bellglass import faultpoints
from bellglass.wire.guest import STDERR, STDOUT

_MAGIC = b"BGLOG1\0\0"
_HEAD = struct.Struct("<8sQQQ")
_RECORD = struct.Struct("<BxxxIQ")
SEGMENTS = 16
MIN_SEGMENT_BYTES = 256 * 1024
MAX_CHUNK_BYTES = 256 * 1024


class Chunk(NamedTuple):
    """Bytes of one stream (STDOUT or STDERR), or with stream 0 a gap of `length` bytes that are gone."""

    stream: int
    offset: int
    data: bytes
    length: int


@dataclass(slots=True)
class _Segment:
    number: int
    start: int
    """The combined offset of its first byte."""
    end: int
    """The combined offset behind its last byte."""
    size_bytes: int


class Cursor:
    """Where a reader stands: the next combined offset, and the place in its segment if that is known."""

    __slots__ = ("_number", "_position", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._number = -1
        self._position = 0


class ExecutionLog:
    """Written by one execution, read by any number of cursors. All offsets count both streams together."""

    def __init__(self, folder: Path, execution_id: str, limit_bytes: int) -> None:
        self.total_bytes = 0
        self.stream_bytes = {STDOUT: 0, STDERR: 0}
        self.lost_bytes = 0
        """What the host's disk did not take."""
        self.finished = False
        self.on_append: Callable[[int, int, bytes | memoryview], None] | None = None
        """Gets the stream, the combined offset and the bytes, once the file has them."""
        self._folder = folder
        self._id = execution_id
        self.limit_bytes = limit_bytes
        self._segment_bytes = max(limit_bytes // SEGMENTS, MIN_SEGMENT_BYTES)
        self._segments: list[_Segment] = []
        self._fd: int | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    @classmethod
    def reopen(
        cls, folder: Path, execution_id: str, limit_bytes: int, *, totals: Mapping[int, int] | None = None
    ) -> ExecutionLog:
        """The log as it lies on the disk. `totals`: the bytes of each stream, of a finished execution; without them the
        last segment is read through, and a torn record at its end cut off."""
        log = cls(folder, execution_id, limit_bytes)
        for number, path in _files(folder, execution_id):
            log._load_head(number, path)
        if totals is not None:
            log.stream_bytes = dict(totals)
            log.total_bytes = sum(totals.values())
            if log._segments:
                log._segments[-1].end = log.total_bytes
        elif log._segments:
            log._load_last()
        return log

    @property
    def start(self) -> int:
        """The combined offset of the oldest byte that is still there."""
        return self._segments[0].start if self._segments else self.total_bytes

    @property
    def truncated(self) -> bool:
        return self.start > 0 or self.lost_bytes > 0

    # --- writing ----------------------------------------------------------------------------------------

    def append(self, stream: int, data: bytes | memoryview) -> int:
        """Write, and answer the combined offset of the first byte. What the host's disk does not take is counted."""
        offset = self.total_bytes
        self.total_bytes += len(data)
        try:
            self._write(stream, offset, data)
        except OSError:
            self.lost_bytes += len(data)
            self._close_file()  # the next write begins a segment of its own behind the gap
        else:
            if self.on_append is not None:
                self.on_append(stream, offset, data)
        self.stream_bytes[stream] += len(data)
        faultpoints.reach("node.exec.output_logged")
        self._wake()
        return offset

    def finish(self) -> None:
        """No more output: followers end once they have read all. Safe to repeat."""
        self.finished = True
        self._close_file()
        self._wake()

    def close(self) -> None:
        """The node stops; the log can go on after `reopen`."""
        self._close_file()
        self._wake()

    def delete(self) -> None:
        """Remove the files. Safe to repeat."""
        self._close_file()
        for _, path in _files(self._folder, self._id):
            path.unlink(missing_ok=True)
        self._segments.clear()

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, cursor: Cursor, limit_bytes: int = MAX_CHUNK_BYTES) -> list[Chunk]:
        """What follows the cursor, at most `limit_bytes`; empty at the end."""
        chunks: list[Chunk] = []
        size = 0
        while cursor.offset < self.total_bytes and size < limit_bytes:
            segment = self._segment_at(cursor.offset)
            if segment is None or segment.start > cursor.offset:
                end = self.total_bytes if segment is None else segment.start
                chunks.append(Chunk(0, cursor.offset, b"", end - cursor.offset))
                cursor.offset = end
                continue
            before = cursor.offset
            for chunk in self._read_segment(segment, cursor, limit_bytes - size):
                chunks.append(chunk)
                size += chunk.length
            if cursor.offset == before:  # the file was damaged or taken away
                chunks.append(Chunk(0, cursor.offset, b"", segment.end - cursor.offset))
                cursor.offset = segment.end
        return chunks

    async def seek(self, cursor: Cursor) -> None:
        """Find the cursor's place. In a thread: a segment of a hostile program's single bytes has many records."""
        segment = self._segment_at(cursor.offset)
        if segment is None or cursor.offset <= segment.start:
            return
        try:
            fd = os.open(self._path(segment.number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            position = await asyncio.to_thread(self._seek, fd, segment, cursor.offset)
        finally:
            os.close(fd)
        cursor._number, cursor._position = segment.number, position

    async def wait(self, cursor: Cursor) -> bool:
        """Until there is something behind the cursor (True) or the log is finished and read to its end (False)."""
        while cursor.offset >= self.total_bytes:
            if self.finished:
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return True

    # --- inside -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._id}.{number}.log"

    def _write(self, stream: int, offset: int, data: bytes | memoryview) -> None:
        if self._fd is not None and self._segments[-1].size_bytes >= self._segment_bytes:
            self._close_file()
        if self._fd is None:
            self._begin_segment(offset)
        segment = self._segments[-1]
        assert self._fd is not None
        written = os.writev(self._fd, (_RECORD.pack(stream, len(data), offset), data))
        if written != _RECORD.size + len(data):
            os.ftruncate(self._fd, segment.size_bytes)
            raise OSError(f"{written} of {len(data)} bytes written")
        segment.size_bytes += written
        segment.end = offset + len(data)

    def _begin_segment(self, offset: int) -> None:
        number = self._segments[-1].number + 1 if self._segments else 0
        head = _HEAD.pack(_MAGIC, offset, self.stream_bytes[STDOUT], self.stream_bytes[STDERR])
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._fd = os.open(self._path(number), flags, 0o600)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self._path(number), flags, 0o600)
        if os.write(self._fd, head) != len(head):
            raise OSError("a segment's head was not written")
        self._segments.append(_Segment(number, offset, offset, len(head)))
        while len(self._segments) > 1 and sum(s.size_bytes for s in self._segments) > (
            self.limit_bytes - self._segment_bytes
        ):
            self._path(self._segments.pop(0).number).unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _segment_at(self, offset: int) -> _Segment | None:
        """The one that holds `offset`, else the next one behind it."""
        return next((segment for segment in self._segments if segment.end > offset), None)

    def _read_segment(self, segment: _Segment, cursor: Cursor, limit_bytes: int) -> Iterator[Chunk]:
        """Records behind the cursor out of one read of the file; neighbours of one stream come as one chunk."""
        own = self._fd if segment is self._segments[-1] else None
        try:
            fd = os.open(self._path(segment.number), os.O_RDONLY | os.O_CLOEXEC) if own is None else own
        except FileNotFoundError:
            return
        try:
            known = cursor._number == segment.number
            position = cursor._position if known else self._seek(fd, segment, cursor.offset)
            size = min(segment.size_bytes - position, max(limit_bytes, MAX_CHUNK_BYTES) + _RECORD.size)
            block = os.pread(fd, size, position)
        finally:
            if own is None:
                os.close(fd)
        view = memoryview(block)
        joined: list[memoryview] = []
        stream, begin, at, left = 0, cursor.offset, 0, limit_bytes
        while at + _RECORD.size <= len(block):
            kind, length, offset = _RECORD.unpack_from(block, at)
            end = at + _RECORD.size + length
            skip = cursor.offset - offset
            if end > len(block) or skip < 0:
                break
            if joined and kind != stream:
                yield _chunk(stream, begin, joined)
                joined, begin = [], cursor.offset
            if skip < length:
                stream, taken = kind, min(length - skip, left)
                joined.append(view[at + _RECORD.size + skip : at + _RECORD.size + skip + taken])
                cursor.offset += taken
                left -= taken
            at = end if cursor.offset >= offset + length else at
            cursor._number, cursor._position = segment.number, position + at
            if left <= 0:
                break
        if joined:
            yield _chunk(stream, begin, joined)

    def _seek(self, fd: int, segment: _Segment, offset: int) -> int:
        """The position of the record that holds `offset`."""
        position = _HEAD.size
        if offset <= segment.start:
            return position
        block = os.pread(fd, segment.size_bytes, 0)
        while position + _RECORD.size <= len(block):
            _, length, begin = _RECORD.unpack_from(block, position)
            if begin + length > offset:
                break
            position += _RECORD.size + length
        return position

    def _load_head(self, number: int, path: Path) -> None:
        """Take a file of an earlier life into account. The one before it ends where it begins: what lies between was
        lost to the disk, and reads as a gap."""
        with path.open("rb") as file:
            raw = file.read(_HEAD.size)
            if len(raw) < _HEAD.size or not raw.startswith(_MAGIC):
                return
            _, start, stdout, stderr = _HEAD.unpack(raw)
            if self._segments:
                self._segments[-1].end = start
            self._segments.append(_Segment(number, start, start, os.fstat(file.fileno()).st_size))
            self.stream_bytes = {STDOUT: stdout, STDERR: stderr}
            self.total_bytes = start

    def _load_last(self) -> None:
        segment = self._segments[-1]
        raw = self._path(segment.number).read_bytes()
        position, end = _HEAD.size, segment.start
        while position + _RECORD.size <= len(raw):
            stream, length, offset = _RECORD.unpack_from(raw, position)
            if position + _RECORD.size + length > len(raw) or stream not in self.stream_bytes or offset != end:
                break
            position += _RECORD.size + length
            end += length
            self.stream_bytes[stream] += length
        if position < len(raw):
            os.truncate(self._path(segment.number), position)
        segment.end, segment.size_bytes = end, position
        self.total_bytes = end


def _chunk(stream: int, offset: int, parts: list[memoryview]) -> Chunk:
    data = b"".join(parts)
    return Chunk(stream, offset, data, len(data))


def _files(folder: Path, execution_id: str) -> list[tuple[int, Path]]:
    """The segments by number. The oldest go first, so that number 0 shows that the numbers run on from there."""
    found: list[tuple[int, Path]] = []
    while (path := folder / f"{execution_id}.{len(found)}.log").exists():
        found.append((len(found), path))
    if found or not folder.is_dir():
        return found
    pattern = re.compile(re.escape(execution_id) + r"\.(\d{1,9})\.log")
    with os.scandir(folder) as entries:
        return sorted((int(m[1]), Path(e.path)) for e in entries if (m := pattern.fullmatch(e.name)))
