"""A link's connection: frames in and out of one transport, handed to streams by their ids.

The first frame of each side is HELLO; nothing else is looked at before it fits. A peer that breaks the protocol loses
the link. When the link ends, every stream on it ends with NodeUnavailable and `peer_gone == "link"`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from bellglass import __version__
from bellglass.errors import NodeUnavailable, TooLarge, VersionMismatch
from bellglass.link.stream import FLAG_END, FLAG_MORE, LinkStream, LinkType, error_of_reset
from bellglass.wire import versions
from bellglass.wire.frames import HEADER, HEADER_SIZE, MAX_PAYLOAD, Frame, FrameError, FrameReader
from bellglass.wire.versions import Versions

PROTOCOLS = Versions(oldest=1, newest=1)
MAX_FULL_WINDOWS = 32
MAX_OPEN_BYTES = 32 * 1024 * 1024
HELD_BYTES = 64 * 1024
"""Frames that are written in one turn of the loop leave together, up to so much: each write wakes the peer."""
log = logging.getLogger("bellglass.link")
_WINDOW = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Identity:
    """What this side says in its HELLO and expects of the other one's."""

    role: str
    installation: str
    secret: str

    def hello(self) -> bytes:
        return json.dumps(
            {
                "protocol": PROTOCOLS.newest,
                "oldest_protocol": PROTOCOLS.oldest,
                "features": [],
                "role": self.role,
                "version": __version__,
                "installation": self.installation,
                "secret": self.secret,
            }
        ).encode()

    def check(self, payload: bytes) -> dict[str, Any]:
        """The peer's HELLO. Raises FrameError when it isn't one of this installation's, VersionMismatch when both sides
        share no protocol."""
        try:
            peer = json.loads(payload)
            secret, installation = str(peer["secret"]), peer["installation"]
            protocols = versions.told(peer["protocol"], peer.get("oldest_protocol"))
        except (ValueError, KeyError, TypeError) as error:
            raise FrameError("not a HELLO") from error
        if not hmac.compare_digest(secret.encode(), self.secret.encode()):
            raise FrameError("the secret is another installation's")
        if installation != self.installation:
            raise FrameError(f"installation {installation!r} instead of {self.installation!r}")
        if protocols is None:
            raise FrameError("a HELLO without a protocol version")
        who = f"the {peer.get('role', 'peer')} (version {peer.get('version', 'unknown')})"
        versions.agree(PROTOCOLS, protocols, who, hint="run server and node of one release: bellglass down, then up")
        return dict(peer)


class Connection(asyncio.Protocol):
    """Either end. `on_open` is called for a stream that the peer opened; a dialer passes None and refuses them."""

    def __init__(self, identity: Identity, on_open: Callable[[LinkStream, dict[str, Any]], None] | None) -> None:
        self.closed = asyncio.Event()
        self.answers = on_open is not None
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._identity = identity
        self._on_open = on_open
        self._reader = FrameReader()
        self._streams: dict[int, LinkStream] = {}
        self._grown: set[int] = set()
        self._opening: dict[int, bytes] = {}
        self._next_id = 1
        self._highest_remote_id = 0
        self._transport: asyncio.WriteTransport | None = None
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._held: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._flush_due = False

    # --- asyncio.Protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.set_write_buffer_limits(high=2 * 1024 * 1024)
        self.write(LinkType.HELLO, 0, self._identity.hello())

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._on_frame(frame)
        except FrameError as error:
            self._break(str(error))
        except VersionMismatch as error:
            # Each side finds it out by itself: a HELLO is the first thing that both send.
            self.ready.set_exception(error)
            self.ready.exception()
            self._break(error.message)

    def pause_writing(self) -> None:
        self._unpaused.clear()

    def resume_writing(self) -> None:
        self._unpaused.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._held.clear()
        self._unpaused.set()
        error = NodeUnavailable("the link between server and node broke", hint="it is made again by itself; retry")
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # seen: a dialer may have given up waiting
        for stream in list(self._streams.values()):
            stream.on_gone("link", error)
        self._streams.clear()
        self.closed.set()

    # --- for streams and their users --------------------------------------------------------------------

    def open(self, op: str, params: dict[str, Any], *, request_id: str | None, end: bool) -> LinkStream:
        """Raises NodeUnavailable without a transport, TooLarge for what the peer would give the whole link up for."""
        if self._transport is None:
            raise NodeUnavailable("the link between server and node is down", hint="it is made again by itself; retry")
        payload = json.dumps({"op": op, "params": params, "request_id": request_id}, separators=(",", ":")).encode()
        if len(payload) > MAX_OPEN_BYTES:
            raise TooLarge(
                f"the request takes {len(payload)} bytes on its way to the node, the most is {MAX_OPEN_BYTES}",
                hint="characters that are not ASCII take six bytes each: give inputs as b64, or write the files later",
                details={"limit_bytes": MAX_OPEN_BYTES},
            )
        stream_id, self._next_id = self._next_id, self._next_id + 2
        stream = LinkStream(self, stream_id, op, request_id)
        self._streams[stream_id] = stream
        # A create carries its inputs: what is over one frame goes on in further OPEN frames of the stream.
        pieces = [payload[i : i + MAX_PAYLOAD] for i in range(0, len(payload), MAX_PAYLOAD)]
        for piece in pieces[:-1]:
            self.write(LinkType.OPEN, stream_id, piece, flags=FLAG_MORE)
        self.write(LinkType.OPEN, stream_id, pieces[-1], flags=FLAG_END if end else 0)
        if end:
            stream.mark_local_end()
        return stream

    def write(self, type: LinkType, stream_id: int, payload: bytes | memoryview = b"", *, flags: int = 0) -> None:
        """`payload` is not copied, and must stay as it is."""
        if self._transport is None:
            return
        self._held += (HEADER.pack(len(payload), type, 0, flags, stream_id), payload)
        self._held_bytes += HEADER_SIZE + len(payload)
        if self._held_bytes >= HELD_BYTES:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_held)

    async def drain(self) -> None:
        if not self._unpaused.is_set():
            await self._unpaused.wait()

    def may_grow(self, stream_id: int) -> bool:
        """Whether this stream gets a full window: so many have one at a time."""
        if len(self._grown) >= MAX_FULL_WINDOWS:
            return False
        self._grown.add(stream_id)
        return True

    def forget(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self._grown.discard(stream_id)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    # --- inside -----------------------------------------------------------------------------------------

    def _flush_held(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self._held and self._transport is not None:
            held, self._held, self._held_bytes = self._held, [], 0
            self._transport.writelines(held)

    def _break(self, why: str) -> None:
        log.warning("link broken off: %s", why)
        if self._transport is not None:
            self._transport.abort()

    def _on_frame(self, frame: Frame) -> None:
        if not self.ready.done():
            if frame.type != LinkType.HELLO:
                raise FrameError(f"frame type {frame.type} before HELLO")
            self.ready.set_result(self._identity.check(bytes(frame.payload)))
            return
        if frame.type == LinkType.OPEN:
            self._on_open_frame(frame)
            return
        if frame.type == LinkType.PING:
            self.write(LinkType.PONG, 0, frame.payload)
            return
        stream = self._streams.get(frame.stream)
        if stream is None:
            return  # it was reset from this side while the frame was under way
        payload = frame.payload if isinstance(frame.payload, bytes) else bytes(frame.payload)
        if frame.type == LinkType.DATA:
            stream.on_data(payload)
        elif frame.type == LinkType.WINDOW:
            stream.on_window(_WINDOW.unpack(payload)[0] if len(payload) == _WINDOW.size else 0)
        elif frame.type == LinkType.HEAD:
            stream.on_head(payload, more=bool(frame.flags & FLAG_MORE))
        elif frame.type == LinkType.RESET:
            stream.on_gone("reset", error_of_reset(payload, stream.op))
            return
        if frame.type == LinkType.END or (frame.flags & FLAG_END and frame.type == LinkType.HEAD):
            stream.on_end()

    def _on_open_frame(self, frame: Frame) -> None:
        if self._on_open is None:
            raise FrameError("the peer opened a stream towards a dialer")
        held = self._opening.get(frame.stream)
        if held is None and frame.stream <= self._highest_remote_id:
            raise FrameError(f"stream {frame.stream} was opened twice")
        self._highest_remote_id = max(self._highest_remote_id, frame.stream)
        payload = (held or b"") + bytes(frame.payload)
        if frame.flags & FLAG_MORE:
            if len(payload) > MAX_OPEN_BYTES:
                raise FrameError(f"an OPEN over {MAX_OPEN_BYTES} bytes")
            self._opening[frame.stream] = payload
            return
        self._opening.pop(frame.stream, None)
        try:
            request = json.loads(payload)
            op, params, request_id = str(request["op"]), dict(request["params"]), request.get("request_id")
        except (ValueError, KeyError, TypeError) as error:
            raise FrameError("an OPEN that is not a request") from error
        stream = LinkStream(self, frame.stream, op, request_id)
        self._streams[frame.stream] = stream
        if frame.flags & FLAG_END:
            stream.on_end()
        self._on_open(stream, params)
