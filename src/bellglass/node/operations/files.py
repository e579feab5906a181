"""file.*: the operations on one path or tree. The kernel inside decides what may be done; here bytes are moved."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from bellglass.errors import AgentLost, Conflict, FileExists, FileMissing, InvalidRequest, LimitExceeded, TooLarge
from bellglass.link import LinkStream
from bellglass.node.app import Node
from bellglass.node.files import info, lists
from bellglass.node.files.lists import StatReader
from bellglass.node.files.stream import FileStream
from bellglass.node.live import LiveSandbox
from bellglass.node.params import Params, check_encodable
from bellglass.wire.frames import FrameError
from bellglass.wire.guest import FileFlag, FileOp, FileResult, Stat

MAX_LISTED = 10_000
RENDERED_AT_ONCE = 64
"""In a turn of the loop, which is others' too."""
MAX_HEAD_BYTES = 128 * 1024
MAX_SIZELESS_BYTES = 16 * 1024 * 1024
DEFAULT_ARCHIVE_ENTRIES = 1_000_000
HOME = "~"


class Request:
    """What all of them have: the sandbox, the user, and the folder that relative paths start at."""

    def __init__(self, node: Node, params: Params, *, reads: bool = False) -> None:
        find = node.sandboxes.readable if reads else node.sandboxes.live
        self.live: LiveSandbox = find(params.text("sandbox_id", limit=64), params.integer("generation"))
        self.params = params
        self.user = params.text("user", None, limit=256) or self.live.spec.user
        self.owner = params.text("owner", None, limit=256)
        self.base = params.text("base", None) or self.live.spec.workdir
        """`~`: the home of the owner, else of the user; where that is, the agent says."""
        if self.base != HOME and not self.base.startswith("/"):
            raise InvalidRequest(f"base: {self.base!r} is not an absolute path", details={"field": "base"})

    @property
    def cache_bytes(self) -> int:
        """What is read beyond it would push out of the sandbox's page cache what its programs have there."""
        return self.live.spec.memory_bytes // 2

    def path(self, name: str = "path") -> str:
        path = self.params.text(name)
        if not path:
            raise InvalidRequest(f"{name} is empty", details={"field": name})
        return str(path)

    def absolute(self, path: str, result: FileResult) -> str:
        return info.absolute(result.base or "/" if self.base == HOME else self.base, path)

    def describe(self, result: FileResult, path: str, *, sha256: str | None = None) -> dict[str, Any]:
        """FileInfo of what the agent says is at `path`."""
        if result.entry is None:
            raise AgentLost("the sandbox's agent answered without saying what it did", hint="try again")
        return info.render(result.entry, self.absolute(path, result), sha256=sha256)

    def open(self, operation: FileOp, path: str, *, flags: FileFlag = FileFlag(0), **fields: Any) -> FileStream:
        base = None if self.base == HOME else self.base
        return FileStream(
            self.live, operation, path, user=self.user, owner=self.owner, base=base, flags=flags, **fields
        )

    async def run(self, operation: FileOp, path: str, *, flags: FileFlag = FileFlag(0), **fields: Any) -> FileResult:
        """An operation without bytes."""
        async with self.open(operation, path, flags=flags, **fields) as stream:
            return await stream.result()


class _Found:
    """The entries of a list, within bounds: `cut` tells that some were left out. `let_go` at the end."""

    def __init__(self, live: LiveSandbox) -> None:
        self.stats: list[Stat] = []
        self.cut = False
        self._live = live
        self._size = self._held = 0

    def add(self, stats: list[Stat], size: int) -> None:
        """Raises LimitExceeded."""
        self._size += size
        self.cut = self.cut or self._size > lists.MAX_LIST_BYTES
        if self.cut:
            return
        more = size + lists.ENTRY_BYTES * len(stats)
        if self._live.listed_bytes + more > lists.MAX_HELD_BYTES:
            raise LimitExceeded(
                "lists that are under way in this sandbox hold as much as they may together",
                hint="wait for one to end, or list with a smaller limit",
            )
        self._live.listed_bytes += more
        self._held += more
        self.stats += stats

    def let_go(self) -> None:
        self._live.listed_bytes -= self._held


def _flags(**chosen: bool) -> FileFlag:
    flags = FileFlag(0)
    for name, value in chosen.items():
        if value:
            flags |= FileFlag[name.upper()]
    return flags


def attributes_of(params: Params) -> dict[str, str] | None:
    """The set that replaces the file's; None leaves it alone. Raises InvalidRequest."""
    attributes: dict[str, str] | None = params.mapping("attributes", None)
    for name, value in (attributes or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "\0" in name:
            raise InvalidRequest(f"attributes: {name!r} is not a name with a text", details={"field": "attributes"})
        check_encodable(name + value, "attributes")
    return attributes


async def read(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params, reads=True)
    path, offset = request.path(), params.integer("offset", 0)
    length = params.integer("length", None)
    operation = request.open(FileOp.READ, path, offset=offset, length=length, cache_bytes=request.cache_bytes)
    async with operation:
        described = request.describe(await operation.result(), path)
        if described["size"] == 0:
            await _read_sizeless(operation, described, stream)
            return
        expected = max(described["size"] - offset, 0)
        expected = expected if length is None else min(expected, length)
        await stream.send_head({"result": {"info": described, "length": expected}})
        left = expected
        async for chunk in operation.chunks():
            await stream.send(chunk[:left])  # if it grew, the caller gets what was promised
            left -= len(chunk)
            if left < 0:
                break
    if left > 0:
        raise Conflict(f"{path}: became shorter while it was read", hint="read it again")
    await stream.end()


async def _read_sizeless(operation: FileStream, described: dict[str, Any], stream: LinkStream) -> None:
    """Empty, or a file of /proc or /sys: its size shows only when it was read to the end."""
    parts, size = [], 0
    async for chunk in operation.chunks():
        size += len(chunk)
        if size > MAX_SIZELESS_BYTES:
            raise TooLarge(f"{operation.path}: has no size and gives more than {MAX_SIZELESS_BYTES} bytes")
        parts.append(bytes(chunk))
    await stream.send_head({"result": {"info": described, "length": size}})
    for part in parts:
        await stream.send(part)
    await stream.end()


async def write(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params)
    path = request.path()
    in_place, most = params.flag("in_place"), params.integer("max_bytes", None)
    digest, size = hashlib.sha256(), 0
    operation = request.open(
        FileOp.WRITE,
        path,
        flags=_flags(
            parents=params.flag("parents"),
            in_place=in_place,
            exclusive=params.flag("exclusive"),
            truncate=in_place and params.flag("truncate"),
        ),
        mode=params.integer("mode_bits", None, most=0o7777),
        offset=params.integer("offset", 0) if in_place else None,
        max_bytes=most,
        expected_bytes=params.integer("expected_bytes", None),
        attributes=attributes_of(params),
    )
    async with node.disk.writing(), operation:
        async for chunk in stream:
            node.disk.check()
            size += len(chunk)
            if most is not None and size > most:
                raise TooLarge(f"{path}: more than {most} bytes", details={"limit": most})
            digest.update(chunk)
            await operation.send(chunk)
        result = await operation.end()
    described = request.describe(result, path, sha256=digest.hexdigest())
    await stream.send_head({"result": {"info": described, "created": result.created, "bytes": size}}, end=True)


async def list_folder(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params, reads=True)
    path = request.path()
    limit = params.integer("limit", 1000, least=1, most=MAX_LISTED)
    reader, found = StatReader(limit), _Found(request.live)
    depth = params.integer("depth", None, least=1)
    flags = _flags(recursive=params.flag("recursive") or depth is not None)
    try:
        async with request.open(FileOp.LIST, path, flags=flags, max_entries=limit, depth=depth) as operation:
            try:
                async for chunk in operation.chunks():
                    for start in range(0, len(chunk), lists.TURN_BYTES):
                        piece = chunk[start : start + lists.TURN_BYTES]
                        async with request.live.list_turn():
                            found.add(list(reader.feed(piece)), len(piece))
                reader.finish()
            except FrameError as error:
                raise AgentLost(f"the sandbox's agent sent a list that is none: {error}") from error
            result = await operation.result()
        folder = request.absolute(path, result)
        # Each folder before what is in it, names by their bytes.
        found.stats.sort(key=lambda stat: os.fsencode(stat.name).split(b"/"))
        entries: list[dict[str, Any]] = []
        parts: list[str] = []
        for start in range(0, len(found.stats), RENDERED_AT_ONCE):
            async with request.live.list_turn():
                stats = found.stats[start : start + RENDERED_AT_ONCE]
                rendered = [info.render(stat, info.absolute(folder, stat.name)) for stat in stats]
                parts.append(json.dumps(rendered, separators=(",", ":"))[1:-1])
                entries += rendered
        truncated = result.truncated or found.cut
        if sum(map(len, parts)) <= MAX_HEAD_BYTES:
            await stream.send_head({"result": {"entries": entries, "truncated": truncated}}, end=True)
        else:
            await stream.send_head({"result": {}})
            told = f'{{"entries":[{",".join(parts)}],"truncated":{json.dumps(truncated)}}}'
            await stream.send(told.encode("ascii"))
    finally:
        found.let_go()


async def stat(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params, reads=True)
    path = request.path()
    result = await request.run(FileOp.STAT, path, flags=_flags(no_follow=not params.flag("follow", True)))
    await stream.send_head({"result": {"info": request.describe(result, path)}}, end=True)


async def mkdir(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params)
    path = request.path()
    exist_ok, mode = params.flag("exist_ok", True), params.integer("mode_bits", None, most=0o7777)
    flags = _flags(parents=params.flag("parents"))
    try:
        async with node.disk.writing():
            result = await request.run(FileOp.MKDIR, path, flags=flags, mode=mode)
    except FileExists:
        if not exist_ok:
            raise
        result = await request.run(FileOp.STAT, path)
        if request.describe(result, path)["type"] != "dir":
            raise
    if not result.created and not exist_ok:
        raise FileExists(f"{path}: exists already", hint="allow it with exist_ok", details={"field": "path"})
    described = request.describe(result, path)
    await stream.send_head({"result": {"info": described, "created": result.created}}, end=True)


async def move(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params)
    source, destination = request.path("source"), request.path("destination")
    flags = _flags(overwrite=params.flag("overwrite"), parents=params.flag("parents"))
    async with node.disk.writing():
        result = await request.run(FileOp.MOVE, source, flags=flags, second_path=destination)
    described = request.describe(result, destination)
    await stream.send_head({"result": {"info": described}}, end=True)


async def remove(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params)
    path = request.path()
    try:
        await request.run(FileOp.REMOVE, path, flags=_flags(recursive=params.flag("recursive")))
    except FileMissing:
        if not params.flag("missing_ok"):
            raise
    await stream.send_head({"result": {}}, end=True)


async def archive_read(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params, reads=True)
    path = request.path()
    operation = request.open(
        FileOp.ARCHIVE_OUT,
        path,
        max_bytes=params.integer("max_bytes", None),
        max_entries=params.integer("max_entries", DEFAULT_ARCHIVE_ENTRIES),
    )
    async with operation:
        async for chunk in operation.chunks():
            if not stream.head_sent:  # what fails before the first byte still has a status of its own
                await stream.send_head({"result": {}})
            await stream.send(chunk)
        await operation.result()
    if not stream.head_sent:
        await stream.send_head({"result": {}})
    await stream.end()


async def archive_write(node: Node, params: Params, stream: LinkStream) -> None:
    request = Request(node, params)
    path = request.path()
    operation = request.open(
        FileOp.ARCHIVE_IN,
        path,
        flags=_flags(parents=params.flag("parents"), overwrite=params.flag("overwrite", True)),
        max_bytes=params.integer("max_bytes", None),
        max_entries=params.integer("max_entries", DEFAULT_ARCHIVE_ENTRIES),
    )
    async with node.disk.writing(), operation:
        async for chunk in stream:
            node.disk.check()
            await operation.send(chunk)
        result = await operation.end()
    await stream.send_head({"result": {"entries": result.entries, "bytes": result.bytes}}, end=True)
