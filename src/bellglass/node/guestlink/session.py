"""The session with one sandbox's agent: links one after the other, and the streams that outlive them.

The agent dials again whenever its link ends; each link begins with its HELLO, which lists the executions it still
holds. A stream of ours that it lists goes on, one of its that we don't know is released (which kills it). Stream ids
count up and are never used again, also not by a restarted node: the next one comes from the caller, who stores it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from bellglass import faultpoints
from bellglass.errors import AgentLost, BellglassError, VersionMismatch
from bellglass.node.drivers.base import Handle
from bellglass.node.guestlink.budget import CpuBudget
from bellglass.node.guestlink.connection import GuestConnection
from bellglass.node.guestlink.stream import GuestStream
from bellglass.wire import guest, versions
from bellglass.wire.frames import Frame, FrameError, encode
from bellglass.wire.guest import GuestType, Hello

HELLO_TIMEOUT_S = 5.0
DIAL_TIMEOUT_S = 60.0
LINK_WAIT_S = 10.0
RELINK_MIN_S = 0.01
RELINK_MAX_S = 1.0
LONG_LINK_S = 5.0
RELEASE_DELAY_S = 0.002
MAX_PING_BYTES = 64
MAX_IGNORED_FRAMES = 1_000_000
"""Of one link. An honest agent has a few on their way when a stream is released."""
KNOWN_TYPES = frozenset(GuestType)
MISMATCH_HINT = "install the release that started the sandbox, or delete the sandbox"
log = logging.getLogger("bellglass.guest")


class GuestSession:
    """Runs from `start` to `close`. `next_stream_id` answers an id that was never used in this sandbox. Up to
    `highest_id` an earlier life of the node may have used them: the agent may still speak of those."""

    def __init__(
        self, handle: Handle, *, hostname: str, next_stream_id: Callable[[], int], highest_id: int = 0
    ) -> None:
        self.hello: Hello | None = None
        self.links = 0
        self.ends = 0
        self.violations = 0
        self.ignored_frames = 0
        """On the link that is up."""
        self.budget = CpuBudget()
        self._handle = handle
        self._hostname = hostname
        self._next_stream_id = next_stream_id
        self._highest_id = highest_id
        self._streams: dict[int, GuestStream] = {}
        self._releases: list[int] = []
        self._connection: GuestConnection | None = None
        self._link_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed: BellglassError | None = None
        self._mismatch: VersionMismatch | None = None
        self._pong: asyncio.Future[bytes | None] | None = None

    # --- for the sandbox --------------------------------------------------------------------------------

    def start(self) -> None:
        name = f"guest:{self._handle.sandbox_id}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def wait_link(self, deadline: float) -> Hello:
        """Until a link is up. Raises AgentLost at the deadline (loop time), VersionMismatch, or why the session was
        closed."""
        try:
            async with asyncio.timeout_at(deadline):
                while self._connection is None:
                    if self._closed is not None:
                        raise self._closed
                    if self._mismatch is not None:
                        raise self._mismatch
                    self._link_up.clear()
                    await self._link_up.wait()
        except TimeoutError:
            raise AgentLost(
                "the sandbox's agent does not answer", hint="try again; if it stays so, delete the sandbox"
            ) from None
        assert self.hello is not None
        return self.hello

    async def answers(self, deadline: float) -> bool:
        """Whether the agent is there now: until the deadline (loop time) it answers a PING over the link."""
        if self._connection is None:
            return False
        token, self._pong = os.urandom(16), asyncio.get_running_loop().create_future()
        pong = self._pong
        self._connection.send(encode(GuestType.PING, 0, token))
        try:
            async with asyncio.timeout_at(deadline):
                return await pong == token
        except TimeoutError:
            return False

    async def close(self, error: BellglassError) -> None:
        """No link any more; every stream hears `error`. Safe to repeat."""
        if self._closed is None:
            self._closed = error
            self._link_up.set()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            streams, self._streams = list(self._streams.values()), {}
            for stream in streams:
                stream.session_closed(error)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- for streams ------------------------------------------------------------------------------------

    @property
    def link_is_up(self) -> bool:
        return self._connection is not None

    @property
    def closed(self) -> BellglassError | None:
        return self._closed

    def attach(self, stream: GuestStream) -> None:
        """Give the stream an id, and let it begin (`link_restored`) now or once there is a link."""
        if self._closed is not None:
            raise self._closed
        # Before it, so that the end of a failed start can't reach what is started under the same id next.
        self._send_releases()
        stream.id = self._next_stream_id()
        self.adopt(stream)
        if self._connection is not None:
            stream.link_restored(known=False)

    def adopt(self, stream: GuestStream) -> None:
        """A stream that has its id from an earlier life of the node; before `start`, or from `attach`."""
        stream.session = self
        self._highest_id = max(self._highest_id, stream.id)
        self._streams[stream.id] = stream

    def send(self, *frames: bytes | memoryview, descriptor: int | None = None) -> bool:
        """Send now, or answer False (and close the descriptor) without a link: the stream will hear `link_restored`."""
        connection = self._connection
        if connection is not None:
            connection.send(*frames, descriptor=descriptor)
            return True
        if descriptor is not None:
            os.close(descriptor)
        return False

    def release(self, stream: GuestStream) -> None:
        """The stream is over: the agent may forget it, and what still comes for it is ignored. Safe to repeat."""
        if self._streams.pop(stream.id, None) is None:
            return
        self.budget.earn_stream()
        # Not at once: waking the agent now would have it run before whoever waits for this stream's end.
        if not self._releases:
            asyncio.get_running_loop().call_later(RELEASE_DELAY_S, self._send_releases)
        self._releases.append(stream.id)

    # --- inside -----------------------------------------------------------------------------------------

    def _send_releases(self) -> None:
        """What a broken link keeps from being sent, the next HELLO brings up again."""
        if not self._releases:
            return
        frames, self._releases = [guest.encode_release(stream_id) for stream_id in self._releases], []
        if self._connection is not None:
            self._connection.send(*frames)
            faultpoints.reach("node.exec.released")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RELINK_MIN_S
        while self._closed is None:
            began = loop.time()
            try:
                sock = await self._handle.connect(began + DIAL_TIMEOUT_S)
            except AgentLost:
                if loop.time() - began < 1.0:
                    await asyncio.sleep(RELINK_MAX_S)  # a driver that gives up at once must not spin us
                continue
            ended: asyncio.Future[str] = loop.create_future()
            greeting: asyncio.Future[Hello] = loop.create_future()
            connection = GuestConnection(sock, _hello_into(greeting), _reason_into(ended), self.budget)
            try:
                connection.start()
                waited: list[asyncio.Future[Any]] = [ended, greeting]
                await asyncio.wait(waited, timeout=HELLO_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
                mismatch = greeting.exception() if greeting.done() else None
                if isinstance(mismatch, VersionMismatch):
                    reason, self._mismatch = mismatch.message, mismatch
                    self._link_up.set()  # who waits for a link is not to wait for one that can't come
                elif greeting.done() and not connection.closed:
                    self._link_begins(connection, greeting.result())
                    reason = await ended
                    if loop.time() - began > LONG_LINK_S and connection.violation is None:
                        pause_s = RELINK_MIN_S
                else:
                    reason = "it ended before HELLO" if connection.closed else "no HELLO came"
            except Exception:  # without another link the sandbox would be lost to everybody
                log.exception("the link of %s", self._handle.sandbox_id)
                reason = "the node could not go on with it"
            finally:
                connection.close()
                self._link_ended(connection)
            self._tell_end(reason)
            # An agent that hangs up for ever costs a link a second, no more.
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RELINK_MAX_S)

    def _link_begins(self, connection: GuestConnection, hello: Hello) -> None:
        self.hello, self._mismatch = hello, None
        self.links += 1
        self.ignored_frames = 0
        self._connection = connection
        connection.on_frame = self._frame_received
        connection.send(guest.encode_welcome(self._hostname, hello.protocol))
        for stream_id in hello.streams:
            if stream_id not in self._streams:
                connection.send(guest.encode_abort(stream_id), guest.encode_release(stream_id))
        for stream in list(self._streams.values()):
            stream.link_restored(known=stream.id in hello.streams)
        self._link_up.set()

    def _link_ended(self, connection: GuestConnection) -> None:
        if connection.violation is not None:
            self.violations += 1
        if self._connection is connection:
            self._connection = None
            self._pong_came(None)
            for stream in list(self._streams.values()):
                stream.link_lost()

    def _frame_received(self, frame: Frame) -> None:
        if frame.type not in KNOWN_TYPES:
            self._ignore()  # a newer agent's, whatever stream it names
            return
        stream = self._streams.get(frame.stream)
        if stream is not None:
            stream.frame_received(frame)
        elif frame.stream == 0:
            self._link_frame(frame)
        elif frame.stream > self._highest_id:
            raise FrameError(f"stream {frame.stream} was never opened")
        else:
            self._ignore()  # it crossed our RELEASE

    def _ignore(self) -> None:
        self.ignored_frames += 1
        if self.ignored_frames > MAX_IGNORED_FRAMES:
            raise FrameError(f"{MAX_IGNORED_FRAMES} frames that mean nothing")

    def _link_frame(self, frame: Frame) -> None:
        if frame.type == GuestType.PING:
            if len(frame.payload) > MAX_PING_BYTES:
                raise FrameError(f"a PING of {len(frame.payload)} bytes")
            assert self._connection is not None
            self._connection.send(encode(GuestType.PONG, 0, frame.payload))
        elif frame.type == GuestType.PONG and self._pong is not None and not self._pong.done():
            self._pong_came(frame.payload)
        elif frame.type == GuestType.HELLO:
            raise FrameError("a second HELLO")
        else:
            self._ignore()

    def _tell_end(self, reason: str) -> None:
        """The first links' ends and then ever fewer: an agent that breaks them by the thousand fills no log."""
        self.ends += 1
        if self.ends & (self.ends - 1) == 0:
            log.info(
                "link of %s ended: %s (end %d, %d for broken rules)",
                *(self._handle.sandbox_id, reason, self.ends, self.violations),
            )

    def _pong_came(self, payload: bytes | memoryview | None) -> None:
        if self._pong is not None and not self._pong.done():
            self._pong.set_result(None if payload is None else bytes(payload))


def _hello_into(greeting: asyncio.Future[Hello]) -> Callable[[Frame], None]:
    def on_frame(frame: Frame) -> None:
        if frame.type != GuestType.HELLO or frame.stream != 0 or greeting.done():
            raise FrameError(f"frame type {frame.type} where HELLO was due")
        hello = guest.decode_hello(frame.payload)
        if (theirs := versions.told(hello.protocol)) is None:
            raise FrameError(f"protocol {hello.protocol}")
        try:
            versions.agree(
                guest.PROTOCOLS, theirs, f"the sandbox's agent (version {hello.version})", hint=MISMATCH_HINT
            )
        except VersionMismatch as error:
            greeting.set_exception(error)
        else:
            greeting.set_result(hello)

    return on_frame


def _reason_into(ended: asyncio.Future[str]) -> Callable[[str], None]:
    def on_closed(reason: str) -> None:
        if not ended.done():  # cancelled with the task that awaited it
            ended.set_result(reason)

    return on_closed
