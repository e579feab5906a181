"""The guest protocol (docs/reference/guest-protocol.md): frame types, START and FILE payloads, and their answers.

Encoders are for the node, decoders for what the guest says. The decoders raise FrameError on anything malformed;
the node then closes the link, since it no longer knows what the agent means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

from bellglass.wire import tlv
from bellglass.wire.frames import MAX_DATA, FrameError, encode
from bellglass.wire.versions import Versions

PROTOCOLS = Versions(oldest=1, newest=1)
"""What this node speaks. An agent speaks one version: that of the release that started its sandbox."""
WINDOW_BYTES = 256 * 1024
STDIN, STDOUT, STDERR = 0, 1, 2
FLAG_DESCRIPTOR = 1  # on START: one descriptor rides on the frame's first byte
FLAG_MORE = 2  # on START: the payload goes on in the next START frame of the stream
MAX_START_BYTES = 2 * 1024 * 1024
MAX_OFFSET = 2**62
FEATURE_DIAL = 16
FEATURE_TERMINAL = 32
FEATURE_ATTRIBUTES = 64  # and FILE's owner and depth
FEATURE_WATCH = 128
_OFFSET = struct.Struct("<Q")
_INPUT = struct.Struct("<IQB")


class GuestType(IntEnum):
    HELLO = 1
    WELCOME = 2
    PING = 3
    PONG = 4
    START = 16
    STARTED = 17
    DATA = 18
    ACK = 19
    EOF = 20
    SIGNAL = 21
    EXIT = 22
    FAILED = 23
    RELEASE = 24
    ABORT = 25
    RESIZE = 26
    FILE = 32
    RESULT = 33
    DIAL = 34
    CONNECTED = 35


class StartFlag(IntFlag):
    STDIN_OPEN = 1
    USER_ENV = 2
    CREATE_CWD = 4


class FileOp(IntEnum):
    READ = 1
    WRITE = 2
    LIST = 3
    STAT = 4
    MKDIR = 5
    MOVE = 6
    REMOVE = 7
    ARCHIVE_OUT = 8
    ARCHIVE_IN = 9
    SYNC = 10
    WATCH = 11


class FileFlag(IntFlag):
    PARENTS = 1
    IN_PLACE = 2
    OVERWRITE = 4
    RECURSIVE = 8
    NO_FOLLOW = 16
    EXCLUSIVE = 32
    TRUNCATE = 64
    ATTRIBUTES = 128


class Input(NamedTuple):
    """How much of a program's standard input the agent has taken over all links, and whether its end."""

    received: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Hello:
    protocol: int
    features: int
    boot_id: bytes
    epoch: int
    version: str
    machine: str
    streams: dict[int, int]
    """Streams that the agent still holds, by id: the kind (16 START, 32 FILE)."""
    inputs: dict[int, Input] = field(default_factory=dict)
    """What the live streams with standard input have of it, by id. Empty from an agent before feature 8."""


@dataclass(frozen=True, slots=True)
class GuestExit:
    exit_code: int | None
    signal: int | None
    user_cpu_us: int
    system_cpu_us: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class GuestFailure:
    stage: str
    errno: int
    message: str


@dataclass(frozen=True, slots=True)
class Stat:
    """What the guest's kernel says of one path. Names are the guest's bytes, with surrogate escapes."""

    name: str
    type: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    allocated_bytes: int
    target: str | None
    inode: int
    user: str
    group: str
    attributes: dict[str, str]
    """`user.*` without that prefix."""
    attributes_cut: bool
    """There are more than were told."""
    resolved: str | None
    """Of a link that leads somewhere: the path without any link, and what is there."""
    target_type: str | None
    target_mode: int | None


@dataclass(frozen=True, slots=True)
class FileResult:
    entry: Stat | None
    bytes: int
    created: bool
    truncated: bool
    entries: int
    """Of an archive."""
    base: str | None
    """Where relative paths started, if the request left that to the agent."""


def encode_start(
    stream: int,
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    user: str,
    flags: StartFlag,
    execution_id: str,
    oom_score_adj: int = 500,
    umask: int = 0o022,
    descriptor: bool = False,
    terminal: tuple[int, int] | None = None,
) -> list[bytes]:
    """START as one or more frames; a descriptor, if any, must be sent with the first byte of the first one. `terminal`:
    columns and rows of one to be made, instead of pipes."""
    payload = b"".join(
        [tlv.put(1, arg) for arg in argv]
        + [tlv.put(2, f"{key}={value}") for key, value in env.items()]
        + [tlv.put(3, cwd), tlv.put(4, user), tlv.put(5, int(flags)), tlv.put(6, oom_score_adj)]
        + [tlv.put(7, umask), tlv.put(8, execution_id)]
        + ([] if terminal is None else [tlv.put(9, terminal[0]), tlv.put(10, terminal[1])])
    )
    if len(payload) > MAX_START_BYTES:
        raise FrameError(f"a START of {len(payload)} bytes is over {MAX_START_BYTES}")
    pieces = [payload[i : i + MAX_DATA] for i in range(0, len(payload), MAX_DATA)]
    frames = []
    for index, piece in enumerate(pieces):
        bits = FLAG_DESCRIPTOR if descriptor and index == 0 else 0
        bits |= FLAG_MORE if index < len(pieces) - 1 else 0
        frames.append(encode(GuestType.START, stream, piece, flags=bits))
    return frames


def encode_file(
    stream: int,
    operation: FileOp,
    path: str,
    *,
    user: str,
    base: str | None,
    second_path: str | None = None,
    flags: FileFlag = FileFlag(0),
    mode: int | None = None,
    offset: int | None = None,
    length: int | None = None,
    max_bytes: int | None = None,
    max_entries: int | None = None,
    expected_bytes: int | None = None,
    attributes: Mapping[str, str] | None = None,
    owner: str | None = None,
    depth: int | None = None,
    cache_bytes: int | None = None,
) -> bytes:
    """Without `base` relative paths start at the home of the owner, else of the user. `cache_bytes`: more than that to
    be read does not stay in the page cache."""
    if attributes is not None:
        flags |= FileFlag.ATTRIBUTES
    fields = [
        tlv.put(1, int(operation)),
        tlv.put(2, path),
        tlv.put(5, user),
        tlv.put(6, int(flags)),
    ]
    optional = {
        3: second_path,
        4: base,
        7: mode,
        8: offset,
        9: length,
        10: max_bytes,
        11: max_entries,
        12: expected_bytes,
        14: owner,
        15: depth,
        16: cache_bytes,
    }
    fields += [tlv.put(tag, value) for tag, value in optional.items() if value is not None]
    fields += [tlv.put(13, f"{name}\0{value}") for name, value in (attributes or {}).items()]
    return encode(GuestType.FILE, stream, b"".join(fields))


def encode_dial(stream: int, port: int) -> bytes:
    return encode(GuestType.DIAL, stream, tlv.put(1, port))


def encode_welcome(hostname: str, protocol: int = PROTOCOLS.newest) -> bytes:
    """`protocol` is the one that the agent's HELLO named."""
    return encode(GuestType.WELCOME, 0, tlv.put(1, protocol) + tlv.put(2, 0) + tlv.put(3, hostname))


def encode_data(stream: int, channel: int, offset: int, data: bytes | memoryview) -> bytes:
    return encode(GuestType.DATA, stream, b"".join((_OFFSET.pack(offset), data)), channel=channel)


def encode_ack(stream: int, channel: int, offset: int) -> bytes:
    return encode(GuestType.ACK, stream, _OFFSET.pack(offset), channel=channel)


def encode_eof(stream: int, channel: int, offset: int) -> bytes:
    return encode(GuestType.EOF, stream, _OFFSET.pack(offset), channel=channel)


def encode_signal(stream: int, signal: int, *, whole_tree: bool = True) -> bytes:
    return encode(GuestType.SIGNAL, stream, tlv.put(1, signal) + tlv.put(2, 0 if whole_tree else 1))


def encode_resize(stream: int, columns: int, rows: int) -> bytes:
    return encode(GuestType.RESIZE, stream, tlv.put(1, columns) + tlv.put(2, rows))


def encode_release(stream: int) -> bytes:
    return encode(GuestType.RELEASE, stream)


def encode_abort(stream: int) -> bytes:
    return encode(GuestType.ABORT, stream)


def decode_offset(payload: bytes | memoryview) -> tuple[int, memoryview]:
    """The offset at the head of DATA, ACK and EOF, and what follows."""
    if len(payload) < _OFFSET.size:
        raise FrameError(f"an offset of {len(payload)} bytes")
    return _OFFSET.unpack_from(payload)[0], memoryview(payload)[_OFFSET.size :]


def decode_hello(payload: bytes | memoryview) -> Hello:
    fields = tlv.parse(payload)
    streams: dict[int, int] = {}
    for raw in fields.get(7, [])[:4096]:
        if len(raw) != 5:
            raise FrameError("a live stream that is not 5 bytes")
        streams[int.from_bytes(raw[:4], "little")] = raw[4]
    inputs: dict[int, Input] = {}
    for raw in fields.get(8, [])[:4096]:
        if len(raw) != 13:
            raise FrameError("the input of a live stream that is not 13 bytes")
        stream, received, ended = _INPUT.unpack(raw)
        if received > MAX_OFFSET:
            raise FrameError(f"{received} bytes of standard input")
        inputs[stream] = Input(received, bool(ended))
    return Hello(
        protocol=tlv.number(fields, 1, 0) or 0,
        features=tlv.number(fields, 2, 0) or 0,
        boot_id=fields.get(3, [b""])[-1][:16],
        epoch=tlv.number(fields, 4, 0) or 0,
        version=tlv.text(fields, 5, limit=64),
        machine=tlv.text(fields, 6, limit=64),
        streams=streams,
        inputs=inputs,
    )


def decode_exit(payload: bytes | memoryview) -> GuestExit:
    fields = tlv.parse(payload)
    code, signal = tlv.number(fields, 1), tlv.number(fields, 2)
    if (code is None) == (signal is None):
        raise FrameError("EXIT needs an exit code or a signal, and not both")
    if (code is not None and code > 255) or (signal is not None and not 1 <= signal <= 64):
        raise FrameError(f"EXIT with code {code}, signal {signal}")
    return GuestExit(
        exit_code=code,
        signal=signal,
        user_cpu_us=tlv.number(fields, 3, 0) or 0,
        system_cpu_us=tlv.number(fields, 4, 0) or 0,
        peak_rss_bytes=tlv.number(fields, 5, 0) or 0,
    )


def decode_failure(payload: bytes | memoryview) -> GuestFailure:
    fields = tlv.parse(payload)
    return GuestFailure(
        stage=tlv.text(fields, 1, limit=64),
        errno=min(tlv.number(fields, 2, 0) or 0, 4095),
        message=tlv.text(fields, 3, limit=8192),
    )


def decode_pid(payload: bytes | memoryview) -> int:
    pid = tlv.number(tlv.parse(payload), 1, 0) or 0
    if not 0 < pid < 2**31:
        raise FrameError(f"STARTED with pid {pid}")
    return pid


def decode_stat(payload: bytes | memoryview) -> Stat:
    fields = tlv.parse(payload)
    kind = fields.get(2, [b"?"])[-1][:1].decode("ascii", "replace")
    if kind not in tuple("fdlpscb"):
        raise FrameError(f"a stat record of type {kind!r}")
    target_type = tlv.text(fields, 15, limit=1) if 15 in fields else None
    if target_type is not None and target_type not in tuple("fdlpscb"):
        raise FrameError(f"a link to a file of type {target_type!r}")
    raw_mtime = (tlv.number(fields, 7, 0) or 0) & (2**64 - 1)
    return Stat(
        name=tlv.text(fields, 1, limit=8192),
        type=kind,
        mode=(tlv.number(fields, 3, 0) or 0) & 0o7777,
        uid=(tlv.number(fields, 4, 0) or 0) & 0xFFFFFFFF,
        gid=(tlv.number(fields, 5, 0) or 0) & 0xFFFFFFFF,
        size=tlv.number(fields, 6, 0) or 0,
        mtime_ns=raw_mtime - 2**64 if raw_mtime >= 2**63 else raw_mtime,
        allocated_bytes=tlv.number(fields, 8, 0) or 0,
        target=tlv.text(fields, 9, limit=8192) if 9 in fields else None,
        inode=tlv.number(fields, 10, 0) or 0,
        user=tlv.text(fields, 11, limit=256),
        group=tlv.text(fields, 12, limit=256),
        attributes=_attributes(fields.get(13, ())),
        attributes_cut=17 in fields,
        resolved=tlv.text(fields, 14, limit=8192) if target_type is not None else None,
        target_type=target_type,
        target_mode=(tlv.number(fields, 16, 0) or 0) & 0o7777 if target_type is not None else None,
    )


def _attributes(raw: Iterable[bytes]) -> dict[str, str]:
    attributes = {}
    for element in raw:
        name, end, value = element.partition(b"\0")
        if not end or not name:
            raise FrameError("an attribute without a name")
        attributes[name.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
    return attributes


def decode_result(payload: bytes | memoryview) -> FileResult:
    fields = tlv.parse(payload)
    return FileResult(
        entry=decode_stat(fields[1][-1]) if 1 in fields else None,
        bytes=tlv.number(fields, 2, 0) or 0,
        created=bool(tlv.number(fields, 3, 0)),
        truncated=bool(tlv.number(fields, 4, 0)),
        entries=tlv.number(fields, 5, 0) or 0,
        base=tlv.text(fields, 6, limit=8192) if 6 in fields else None,
    )
