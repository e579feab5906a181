"""One live link to a guest agent: frames in and out of a non-blocking socket on the event loop.

The peer is hostile. A turn of the loop takes at most one read and `FRAMES_PER_TURN` frames from it, so one that floods
frames costs the others a bounded wait, and the budget says for how long it is left alone when its turns cost too much;
while more than `WRITE_LIMIT_BYTES` wait to be written (a peer that sends and never reads) nothing is read from it.
asyncio's transports can't pass descriptors, so the socket is driven by hand.

A peer that closes while it has unread bytes leaves EPOLLERR on a unix socket; libuv then stops watching and calls
nobody. So the loop watches an epoll descriptor that holds the socket: that one is just readable.
"""

from __future__ import annotations

import array
import asyncio
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from bellglass.node.guestlink.budget import CpuBudget
from bellglass.wire.frames import Frame, FrameError, FrameReader
from bellglass.wire.guest import GuestType

READ_BYTES = 512 * 1024
FRAMES_PER_TURN = 64
MAX_CONTROL_BYTES = 16 * 1024
"""Of every frame that isn't DATA: fields are cut out of them one by one, and the agent's own are no longer."""
_CONTROL_STEP_BYTES = 512
WRITE_LIMIT_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 256
SOCKET_BUFFER_BYTES = 1024 * 1024
_GATHER = 32

# One for all links: what a turn leaves of it is copied into the link's own reader before the loop goes on.
_read_buffer = bytearray(READ_BYTES)
_read_view = memoryview(_read_buffer)


class GuestConnection:
    """Owns `sock`. `on_frame` is called for each frame (a FrameError from it ends the link), `on_closed(reason)` once
    at the end, from the loop's own turn, never from within `send` or `close`."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[str], None],
        budget: CpuBudget,
    ) -> None:
        self.on_frame = on_frame
        self.closed = False
        self.violation: str | None = None
        """What the peer did that the protocol forbids, if that ended the link."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_closed = on_closed
        self._budget = budget
        self._pause: asyncio.TimerHandle | None = None
        self._reader = FrameReader()
        self._frames: Iterator[Frame] = iter(())
        self._reading = False
        self._busy = False
        self._queue: deque[tuple[memoryview, int | None]] = deque()
        self._queued_bytes = 0
        self._writing = False
        self._watch = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._watch.register(sock, select.EPOLLIN)
        sock.setblocking(False)
        # Best effort: the kernel cuts it at net.core.wmem_max.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)

    def start(self) -> None:
        self._resume_reading()

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def send(self, *frames: bytes | memoryview, descriptor: int | None = None) -> None:
        """Queue whole frames. `descriptor` rides on the first byte and is closed here, sent or not."""
        if self.closed:
            if descriptor is not None:
                os.close(descriptor)
            return
        for index, frame in enumerate(frames):
            self._queue.append((memoryview(frame), descriptor if index == 0 else None))
            self._queued_bytes += len(frame)
        if not self._writing:
            self._flush()

    def close(self, reason: str = "closed by the node") -> None:
        """End the link. Safe to repeat."""
        if self.closed:
            return
        self.closed = True
        self._pause_reading()
        if self._pause is not None:
            self._pause.cancel()
        if self._writing:
            self._loop.remove_writer(self._sock.fileno())
            self._writing = False
        for _, descriptor in self._queue:
            if descriptor is not None:
                os.close(descriptor)
        self._queue.clear()
        self._queued_bytes = 0
        self._watch.close()
        self._sock.close()
        self._loop.call_soon(self._on_closed, reason)

    def _is_full(self) -> bool:
        """What waits costs its bytes and the objects that hold them: of answers to empty PINGs mostly those."""
        return self._queued_bytes + PIECE_BYTES * len(self._queue) > WRITE_LIMIT_BYTES

    # --- reading ----------------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        if not (self.closed or self._reading or self._busy or self._pause) and not self._is_full():
            self._reading = True
            self._loop.add_reader(self._watch.fileno(), self._readable)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._watch.fileno())

    def _readable(self) -> None:
        began = time.thread_time()
        try:
            count = self._sock.recv_into(_read_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"reading from the agent: {error}")
            return
        if count == 0:
            self.close("the agent hung up")
            return
        self._frames = self._reader.feed(_read_view[:count])
        self._turn(began)

    def _dispatch(self) -> None:
        self._turn(time.thread_time())

    def _turn(self, began: float) -> None:
        """Frames of the last read, as many as fit into this turn, which began when the thread had run for so long."""
        self._pause = None
        self._busy = False  # what frees the queue meanwhile must not schedule a second turn
        if self.closed:
            return
        try:
            self._busy = self._handle_frames()
        except FrameError as error:
            self.violation = str(error)
            self.close(f"the agent broke the protocol: {error}")
            return
        if self.closed:
            return
        if self._busy:
            self._reader.keep()
        pause_s = self._budget.spend(time.thread_time() - began)
        if pause_s or self._busy:
            self._pause_reading()
        if pause_s:
            self._pause = self._loop.call_later(pause_s, self._dispatch if self._busy else self._pause_over)
        elif not self._busy:
            self._resume_reading()
        elif not self._is_full():
            self._loop.call_soon(self._dispatch)  # else `_drop` goes on once the peer has read

    def _handle_frames(self) -> bool:
        """Whether more frames of the last read wait. Raises FrameError."""
        left = FRAMES_PER_TURN
        for frame in self._frames:
            if frame.type != GuestType.DATA:
                if len(frame.payload) > MAX_CONTROL_BYTES:
                    raise FrameError(f"a frame of type {frame.type} with {len(frame.payload)} bytes")
                left -= len(frame.payload) // _CONTROL_STEP_BYTES
            self.on_frame(frame)
            left -= 1
            if self.closed or left <= 0 or self._is_full():
                return True
        return False

    def _pause_over(self) -> None:
        self._pause = None
        self._resume_reading()

    # --- writing ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        queue = self._queue
        while queue:
            data, descriptor = queue[0]
            try:
                if descriptor is not None:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
                    sent = self._sock.sendmsg([data], rights)
                else:
                    sent = self._sock.sendmsg(self._gathered())
            except (BlockingIOError, InterruptedError):
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError as error:
                self.close(f"writing to the agent: {error}")
                return
            if descriptor is not None:
                os.close(descriptor)
                queue[0] = (data, None)
            self._drop(sent)
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _gathered(self) -> list[memoryview]:
        buffers: list[memoryview] = []
        for data, descriptor in self._queue:
            if descriptor is not None or len(buffers) == _GATHER:
                break
            buffers.append(data)
        return buffers

    def _drop(self, sent: int) -> None:
        queue = self._queue
        was_full = self._is_full()
        self._queued_bytes -= sent
        while sent:
            data, descriptor = queue[0]
            if sent < len(data):
                queue[0] = (data[sent:], descriptor)
                break
            sent -= len(data)
            queue.popleft()
        if was_full and not self._is_full() and self._pause is None:
            if self._busy:
                self._loop.call_soon(self._dispatch)
            else:
                self._resume_reading()
