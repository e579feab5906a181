"""An execution's output on its way: from the agent's frames into the log, acknowledged as far as its reader is.

Only what lies in the log is acknowledged, and only while the reader that may block the program keeps up: the window of
what is not acknowledged is what holds the program back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bellglass.node.executions.log import Cursor, ExecutionLog
from bellglass.node.executions.starter import Starter
from bellglass.node.executions.windows import Incoming
from bellglass.wire import guest
from bellglass.wire.frames import Frame, FrameError
from bellglass.wire.guest import STDERR, STDOUT


class Output:
    """`acknowledge(channel, offset)` sends an ACK."""

    def __init__(self, log: ExecutionLog, acknowledge: Callable[[int, int], object]) -> None:
        self.log = log
        self._send = acknowledge
        self._incoming = {channel: Incoming(channel) for channel in (STDOUT, STDERR)}
        self._starter = Starter(self.acknowledge)
        self._due = False
        self._closed = False

    @property
    def ended(self) -> bool:
        """Both streams, as far as the agent says."""
        return all(incoming.ended for incoming in self._incoming.values())

    def resume(self, *, keep_place: bool) -> None:
        """Go on behind what the log has. `keep_place`: the reader that started it may come back."""
        self._incoming = {channel: Incoming(channel, self.log.stream_bytes[channel]) for channel in (STDOUT, STDERR)}
        if keep_place:
            self._starter.keep_place(self.log.total_bytes)

    def link_restored(self) -> None:
        for incoming in self._incoming.values():
            incoming.link_restored()

    def data(self, frame: Frame) -> int:
        """How many bytes of a DATA frame were new; those that the host can't store count too. Raises FrameError."""
        offset, data = guest.decode_offset(frame.payload)
        new = self._channel(frame).accept(offset, data)
        if new:
            self.log.append(frame.channel, new)
        if not self._due:
            # Once for all frames of this turn: each wakes the agent.
            self._due = True
            asyncio.get_running_loop().call_soon(self.acknowledge)
        return len(new)

    def end_of_stream(self, frame: Frame) -> None:
        """EOF of one channel. Raises FrameError."""
        self._channel(frame).end(guest.decode_offset(frame.payload)[0])

    def acknowledge(self) -> None:
        self._due = False
        if self._closed or self._starter.holds_back(self.log.total_bytes):
            return
        for channel, incoming in self._incoming.items():
            if (offset := incoming.due()) is not None:
                self._send(channel, offset)

    def starter_attached(self, cursor: Cursor) -> None:
        """This reader may block the program from now on."""
        self._starter.attach(cursor)

    def reader_detached(self, cursor: Cursor, *, keep_place: bool = True) -> None:
        self._starter.detach(cursor, keep_place=keep_place)
        self.acknowledge()

    def let_go(self) -> None:
        """Nobody holds the program back any more; who reads on, reads from the log."""
        self._starter.free()

    def close(self) -> None:
        """Nothing is acknowledged any more."""
        self._closed = True
        self.let_go()

    def _channel(self, frame: Frame) -> Incoming:
        if frame.channel not in self._incoming:
            raise FrameError(f"output on channel {frame.channel}")
        return self._incoming[frame.channel]
