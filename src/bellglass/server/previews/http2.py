"""One end of an HTTP/2 connection: frames by the library h2, streams as queues, windows both ways.

Reading never waits for writing: two ends that each wait for the other to read would stand still for ever. What a peer
can make this end say without reading it is bounded instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from bellglass.http1 import BadHead, Headers
from bellglass.server.previews.source import Cut, Source

MAX_STREAMS = 100
STREAM_WINDOW_BYTES = 128 * 1024
CONNECTION_WINDOW_BYTES = 1024 * 1024
MAX_HEADER_BYTES = 64 * 1024
UNSENT_BYTES = 64 * 1024
MAX_UNSENT_BYTES = 1024 * 1024
LAST_WORDS_S = 1.0
READ_BYTES = 16 * 1024
"""Read at once: it may be two thousand frames that say nothing, and others wait meanwhile."""
HEADER_TABLE_BYTES = 4096
"""What is remembered of headers that were sent, however much the peer would keep."""
_JOIN_BELOW_BYTES = 16 * 1024
_HEADERS = (events.ResponseReceived, events.InformationalResponseReceived, events.TrailersReceived)


class Reset(Exception):
    """The peer gave the stream up; `code` is its reason."""

    def __init__(self, code: int) -> None:
        super().__init__(f"reset with {code}")
        self.code = code


class Item(NamedTuple):
    """Of a stream, in order: `headers` (1xx ones too), `data`, and `end` on the last."""

    headers: Headers | None
    data: bytes | bytearray
    flow_bytes: int
    end: bool


class Stream:
    """What has come for one stream. `request` is what opened it, if the peer did."""

    def __init__(self, id: int, request: Headers | None = None) -> None:
        self.id = id
        self.request = request
        self.items: deque[Item] = deque()
        self.failure: Exception | None = None
        self.on_failure: Callable[[Exception], None] | None = None
        self.was_reset = False
        """By the peer."""
        self.ended_in = self.ended_out = False
        self.readable = asyncio.Event()
        self.writable = asyncio.Event()

    async def next(self) -> Item:
        """Raises Reset, or what ended the connection."""
        while not self.items:
            self.check()
            self.readable.clear()
            await self.readable.wait()
        return self.items.popleft()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure(error)
        self.readable.set()
        self.writable.set()

    def follow(self, other: Stream) -> None:
        """From now on what ends the other one ends this one too."""
        other.on_failure = self.fail
        if other.failure is not None:
            self.fail(other.failure)


class Endpoint:
    """`run` reads until the end; `on_request(stream)` is called for each stream that the peer opens."""

    def __init__(
        self,
        source: Source,
        send: Callable[[bytes], Awaitable[None]],
        on_request: Callable[[Stream], None] | None = None,
        on_reset: Callable[[], None] = lambda: None,
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self.going_away = False
        self._over = False
        client = on_request is None
        self._source = source
        self._send = send
        self._on_request = on_request
        self._on_reset = on_reset
        self._connection = H2Connection(H2Configuration(client_side=client, header_encoding=None))
        initial = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
        if client:
            initial[SettingCodes.ENABLE_PUSH] = 0
        self._connection.local_settings = Settings(client=client, initial_values=initial)
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(CONNECTION_WINDOW_BYTES - 65535)
        self._unsent = bytearray()
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._collect()

    async def run(self, ended: Exception) -> None:
        """Until the peer hangs up or breaks the rules; every stream then hears `ended`. Raises BadHead for broken
        rules, what source and send raise."""
        writer = asyncio.create_task(self._write())
        try:
            reading = asyncio.create_task(self._read())
            try:
                await asyncio.wait([writer, reading], return_when=asyncio.FIRST_COMPLETED)
                for task in (reading, writer):
                    if task.done():
                        await task
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        finally:
            self.going_away = self._over = True
            for stream in list(self.streams.values()):
                stream.fail(ended)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    @property
    def has_room(self) -> bool:
        """For one more stream of ours."""
        most = self._connection.remote_settings.max_concurrent_streams
        return not self.going_away and self._connection.open_outbound_streams < min(most, MAX_STREAMS)

    # --- streams ----------------------------------------------------------------------------------------

    def open(self, headers: Headers, *, end: bool) -> Stream:
        stream = Stream(self._connection.get_next_available_stream_id())
        self.streams[stream.id] = stream
        try:
            self.headers(stream, headers, end=end)
        except BaseException:
            del self.streams[stream.id]
            raise
        return stream

    def headers(self, stream: Stream, headers: Headers, *, end: bool) -> None:
        stream.check()
        try:
            self._connection.send_headers(stream.id, headers, end_stream=end)
        except ProtocolError as error:
            raise BadHead(str(error)) from None
        stream.ended_out = end
        self._collect()

    async def data(self, stream: Stream, data: bytes | bytearray) -> None:
        """Waits for the peer's windows, and for what is unsent."""
        view = memoryview(data)
        while view:
            stream.check()
            sent = self._send_some(stream, view)
            if sent == 0:
                stream.writable.clear()
                await stream.writable.wait()
                continue
            view = view[sent:]
            self._collect()
            while len(self._unsent) > UNSENT_BYTES and stream.failure is None:
                self._flushed.clear()
                await self._flushed.wait()

    def end(self, stream: Stream) -> None:
        stream.check()
        try:
            self._connection.end_stream(stream.id)
        except ProtocolError as error:
            raise BadHead(str(error)) from None
        stream.ended_out = True
        self._collect()

    def taken(self, stream: Stream, flow_bytes: int) -> None:
        """So much of what came was passed on: the peer may send as much again."""
        if flow_bytes and not self._over:
            try:
                self._connection.acknowledge_received_data(flow_bytes, stream.id)
            except ProtocolError:
                return  # the connection is at its end
            self._collect()

    def close(self, stream: Stream, code: ErrorCodes | int | None) -> None:
        """The stream is over; with a code it is reset, unless both ends have come."""
        if self.streams.pop(stream.id, None) is None:
            return
        if code is not None and not stream.was_reset and not (stream.ended_in and stream.ended_out) and not self._over:
            try:
                self._connection.reset_stream(stream.id, code)
            except ProtocolError:
                pass  # it has ended by itself
        # What nobody will take any more counts as taken for the connection's window.
        self.taken(stream, sum(item.flow_bytes for item in stream.items))
        stream.items.clear()
        self._collect()

    def go_away(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        if not self.going_away:
            self.going_away = True
            self._connection.close_connection(code)
            self._collect()

    # --- inside -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            data = await self._source.some(READ_BYTES)
            if not data:
                raise Cut
            try:
                for event in self._connection.receive_data(data):
                    self._on_event(event)
                self._bound_header_table()
                self._collect()
            except (ProtocolError, BadHead) as error:
                self._unsent += self._connection.data_to_send()  # GOAWAY
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await self._flush_rest()
                raise BadHead(f"broken HTTP/2: {error}") from None
            await asyncio.sleep(0)  # what was read already comes without waiting: others are to have their turn

    def _bound_header_table(self) -> None:
        """The library takes any size that the peer names, and keeps all changes of it until it next sends headers."""
        encoder = self._connection.encoder
        if encoder.table_size_changes:
            least = min(encoder.table_size_changes)
            encoder.header_table_size = size = min(encoder.header_table_size, HEADER_TABLE_BYTES)
            encoder.table_size_changes = [min(least, size), size]
            encoder.header_table.resized = True  # a size that was set twice counts as no change, and is not told

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            assert self._on_request is not None
            stream = Stream(event.stream_id, list(event.headers))
            self.streams[stream.id] = stream
            self._put(stream.id, Item(None, b"", 0, event.stream_ended is not None))
            self._on_request(stream)
        elif isinstance(event, _HEADERS):
            ended = getattr(event, "stream_ended", None) is not None
            self._put(event.stream_id, Item(list(event.headers), b"", 0, ended))
        elif isinstance(event, events.DataReceived):
            item = Item(None, event.data, event.flow_controlled_length, event.stream_ended is not None)
            if not self._put(event.stream_id, item):
                self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, events.StreamReset):
            if (known := self.streams.get(event.stream_id)) is not None:
                known.was_reset = True
                known.fail(Reset(int(event.error_code)))
                if not known.ended_out:  # else it was answered, and only the rest of its body is given up
                    self._on_reset()
        elif isinstance(event, events.WindowUpdated) and event.stream_id:
            if (known := self.streams.get(event.stream_id)) is not None:
                known.writable.set()
        elif isinstance(event, (events.WindowUpdated, events.RemoteSettingsChanged)):
            for each in self.streams.values():
                each.writable.set()
        elif isinstance(event, events.ConnectionTerminated):
            self.going_away = True
            last = event.last_stream_id or 0
            for each in self.streams.values():
                if self._on_request is None and each.id > last:
                    each.fail(Reset(int(ErrorCodes.REFUSED_STREAM)))

    def _send_some(self, stream: Stream, view: memoryview) -> int:
        """As much as the windows allow; 0 when that is nothing."""
        connection = self._connection
        try:
            room = min(connection.local_flow_control_window(stream.id), connection.max_outbound_frame_size, len(view))
            if room > 0:
                connection.send_data(stream.id, bytes(view[:room]))
        except ProtocolError as error:
            raise BadHead(str(error)) from None
        return max(room, 0)

    def _put(self, stream_id: int, item: Item) -> bool:
        """False for a stream that is known no more."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return False
        stream.ended_in |= item.end
        if item.headers is not None or item.data or item.flow_bytes or item.end:
            last = stream.items[-1] if stream.items else None
            if last is not None and last.headers is item.headers is None and len(last.data) < _JOIN_BELOW_BYTES:
                # Frames of single bytes as items of their own would cost a hundredfold in memory.
                joined = last.data if isinstance(last.data, bytearray) else bytearray(last.data)
                joined += item.data
                stream.items[-1] = Item(None, joined, last.flow_bytes + item.flow_bytes, item.end)
            else:
                stream.items.append(item)
            stream.readable.set()
        return True

    def _collect(self) -> None:
        self._unsent += self._connection.data_to_send()
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise BadHead("the peer makes us say more than it reads")
        if self._unsent:
            self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush_rest()

    async def _flush_rest(self) -> None:
        while self._unsent:
            data, self._unsent = bytes(self._unsent), bytearray()
            await self._send(data)
            self._flushed.set()
