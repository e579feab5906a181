"""A blocking peer that speaks the guest protocol with a real agent process over a unix socket.

The agent runs as an ordinary process here: it is not PID 1, and without root `user` can only be the caller. The peer
checks what the protocol promises about order and offsets while it reads, so that every test is also a test of those.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bellglass.wire import guest, tlv
from bellglass.wire.frames import Frame, FrameReader
from bellglass.wire.guest import FileFlag, FileOp, GuestType, StartFlag

AGENT = Path(
    os.environ.get("BELLGLASS_TEST_AGENT")
    or Path(guest.__file__).parents[1] / "_agent" / f"bellglass-agent-{platform.machine()}"
)
READ_TIMEOUT_S = 20.0


@dataclass
class Stream:
    """What has come from the agent for one stream."""

    id: int
    file: bool = False
    dial: bool = False
    family: int | None = None
    pid: int | None = None
    output: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    eof: dict[int, int] = field(default_factory=dict)
    stdin_acked: int = 0
    exit: guest.GuestExit | None = None
    failure: guest.GuestFailure | None = None
    result: guest.FileResult | None = None
    order: list[str] = field(default_factory=list)
    keep: bool = True
    received: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    acked: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})

    @property
    def stdout(self) -> bytes:
        return bytes(self.output[1])

    @property
    def stderr(self) -> bytes:
        return bytes(self.output[2])

    @property
    def done(self) -> bool:
        if self.failure is not None:
            return True
        if not self.file and not self.dial:
            return self.exit is not None
        return self.result is not None and (not self.needs_eof or 1 in self.eof)

    needs_eof: bool = False


class Peer:
    def __init__(self, folder: Path, *prefix: str) -> None:
        self.path = folder / "agent.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(4)
        self.listener.settimeout(READ_TIMEOUT_S)
        self.agent = subprocess.Popen([*prefix, str(AGENT), str(self.path)], stdin=subprocess.DEVNULL)
        self.next_id = 1
        self.streams: dict[int, Stream] = {}
        self.pongs: list[bytes] = []
        self.acks = True
        self.connection: socket.socket | None = None
        self.hello: guest.Hello | None = None

    # the link

    def accept(self, *, welcome: bool = True) -> guest.Hello:
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(READ_TIMEOUT_S)
        self.reader = FrameReader()
        self.queue: list[Frame] = []
        frame = self.read()
        assert frame.type == GuestType.HELLO
        self.hello = guest.decode_hello(frame.payload)
        for stream in self.streams.values():
            stream.order.append("link")
        if welcome:
            self.send(guest.encode_welcome("test"))
        return self.hello

    def hang_up(self) -> None:
        """Break the link and forget all that was not acknowledged: the agent has to send it again."""
        assert self.connection is not None
        self.connection.close()
        self.connection = None
        for stream in self.streams.values():
            stream.eof.clear()
            stream.exit = stream.failure = stream.pid = None
            for channel in (1, 2):
                del stream.output[channel][stream.acked[channel] :]
                stream.received[channel] = stream.acked[channel]

    def acknowledge(self, stream: Stream, channel: int) -> None:
        stream.acked[channel] = stream.received[channel]
        self.send(guest.encode_ack(stream.id, channel, stream.acked[channel]))

    def send(self, data: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(data)

    def send_with_descriptor(self, data: bytes, fd: int) -> None:
        assert self.connection is not None
        sent = socket.send_fds(self.connection, [data], [fd])
        self.connection.sendall(data[sent:])

    def read(self, timeout_s: float = READ_TIMEOUT_S) -> Frame:
        """The next frame. Raises TimeoutError, or EOFError when the agent hung up."""
        assert self.connection is not None
        deadline = time.monotonic() + timeout_s
        while not self.queue:
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            data = self.connection.recv(1 << 18)
            if not data:
                raise EOFError
            self.queue.extend(self.reader.feed(data))
        return self.queue.pop(0)

    def step(self, timeout_s: float = READ_TIMEOUT_S) -> Frame:
        """Read one frame and take it in, checking offsets and order."""
        frame = self.read(timeout_s)
        if frame.type == GuestType.PONG:
            self.pongs.append(bytes(frame.payload))
            return frame
        stream = self.streams[frame.stream]
        name = GuestType(frame.type).name
        stream.order.append(name)
        if frame.type == GuestType.STARTED:
            stream.pid = guest.decode_pid(frame.payload)
        elif frame.type == GuestType.DATA:
            assert stream.file or stream.pid is not None or stream.family is not None, "DATA before STARTED"
            offset, data = guest.decode_offset(frame.payload)
            channel = frame.channel
            assert channel not in stream.eof, "DATA after EOF"
            have = stream.received[channel]
            assert offset <= have, f"a gap: {offset} after {have}"
            fresh = data[have - offset :]
            if stream.keep:
                stream.output[channel] += fresh
            stream.received[channel] += len(fresh)
            if self.acks:
                self.acknowledge(stream, channel)
        elif frame.type == GuestType.EOF:
            offset, _ = guest.decode_offset(frame.payload)
            assert offset == stream.received[frame.channel]
            stream.eof[frame.channel] = offset
        elif frame.type == GuestType.ACK:
            stream.stdin_acked, _ = guest.decode_offset(frame.payload)
        elif frame.type == GuestType.EXIT:
            assert set(stream.eof) == {1, 2}, "EXIT before both EOFs"
            stream.exit = guest.decode_exit(frame.payload)
        elif frame.type == GuestType.FAILED:
            stream.failure = guest.decode_failure(frame.payload)
        elif frame.type == GuestType.CONNECTED:
            assert stream.order == ["CONNECTED"], "something before CONNECTED"
            stream.family = tlv.number(tlv.parse(frame.payload), 1)
        elif frame.type == GuestType.RESULT:
            assert not stream.dial or 1 in stream.eof, "RESULT before EOF"
            stream.result = guest.decode_result(frame.payload)
        else:
            raise AssertionError(f"unexpected {name}")
        return frame

    def wait(self, stream: Stream, timeout_s: float = READ_TIMEOUT_S) -> Stream:
        deadline = time.monotonic() + timeout_s
        while not stream.done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.step(left)
        return stream

    def until(self, condition: Any, timeout_s: float = READ_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.step(max(0.001, deadline - time.monotonic()))

    def release(self, stream: Stream) -> None:
        self.send(guest.encode_release(stream.id))
        self.streams.pop(stream.id, None)

    # executions

    def start(
        self,
        *argv: str,
        env: dict[str, str] | None = None,
        stdin: bool = False,
        descriptor: int | None = None,
        flags: StartFlag = StartFlag(0),
        **more: Any,
    ) -> Stream:
        stream = self._new()
        frames = guest.encode_start(
            stream.id,
            argv=argv,
            env={"PATH": "/usr/bin:/bin"} if env is None else env,
            cwd=more.pop("cwd", "/"),
            user=more.pop("user", str(os.geteuid())),
            flags=flags | (StartFlag.STDIN_OPEN if stdin else 0),
            execution_id="test",
            oom_score_adj=more.pop("oom_score_adj", 500),
            descriptor=descriptor is not None,
            **more,
        )
        if descriptor is not None:
            self.send_with_descriptor(frames[0], descriptor)
            frames = frames[1:]
        for frame in frames:
            self.send(frame)
        return stream

    def run(self, *argv: str, timeout_s: float = READ_TIMEOUT_S, input: bytes | None = None, **more: Any) -> Stream:
        stream = self.start(*argv, stdin=input is not None, **more)
        if input is not None:
            self.feed(stream, input)
        self.wait(stream, timeout_s)
        self.send(guest.encode_release(stream.id))
        return stream

    def feed(self, stream: Stream, data: bytes, *, eof: bool = True) -> None:
        """Send input within the window of an execution, reading whatever comes meanwhile."""
        window = guest.WINDOW_BYTES
        sent = 0
        while sent < len(data) and stream.failure is None:
            while sent - stream.stdin_acked >= window and stream.failure is None:
                self.step()
            part = data[sent : sent + min(65536, window - (sent - stream.stdin_acked))]
            if not part:
                break
            self.send(guest.encode_data(stream.id, 0, sent, part))
            sent += len(part)
        if eof:
            self.send(guest.encode_eof(stream.id, 0, sent))

    # dials

    def dial(self, port: int) -> Stream:
        stream = self._new()
        stream.dial = True
        self.send(guest.encode_dial(stream.id, port))
        return stream

    # files

    def file(
        self,
        operation: FileOp,
        path: str,
        *,
        input: bytes | None = None,
        flags: FileFlag = FileFlag(0),
        wait: bool = True,
        **more: Any,
    ) -> Stream:
        stream = self._new()
        stream.file = True
        stream.needs_eof = operation in (FileOp.READ, FileOp.LIST, FileOp.ARCHIVE_OUT)
        more.setdefault("base", "/")
        more.setdefault("user", str(os.geteuid()))
        self.send(guest.encode_file(stream.id, operation, path, flags=flags, **more))
        if input is not None:
            self.feed(stream, input)
        if wait:
            self.wait(stream)
            self.send(guest.encode_release(stream.id))
        return stream

    def entries(self, stream: Stream) -> dict[str, guest.Stat]:
        """The records of a list, by name."""
        data, position, found = stream.stdout, 0, {}
        while position < len(data):
            (length,) = struct.unpack_from("<I", data, position)
            record = guest.decode_stat(data[position + 4 : position + 4 + length])
            found[record.name] = record
            position += 4 + length
        return found

    def _new(self) -> Stream:
        stream = self.streams[self.next_id] = Stream(self.next_id)
        self.next_id += 1
        return stream

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.listener.close()
        if self.agent.poll() is None:
            self.agent.terminate()
        try:
            code = self.agent.wait(10)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            self.agent.wait()
            raise
        assert code == 0, f"the agent ended with {code}"


def errno_name(number: int) -> str:
    return errno.errorcode[number]


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def silent_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A peer whose agent has not been welcomed."""
    if not AGENT.exists():
        pytest.fail(f"{AGENT} is missing: run `make agent`")
    peer = Peer(tmp_path_factory.mktemp("agent"))
    try:
        yield peer
    finally:
        peer.close()


@pytest.fixture
def peer(silent_peer: Peer) -> Peer:
    silent_peer.accept()
    return silent_peer
