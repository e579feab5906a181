"""What differs between async and sync, asyncio's half. `_sync/_compat.py` is written by hand with the same names.

The pool speaks through a backend of our own: it keeps hold of its sockets, so that the connections of a loop that is
closed (a second `asyncio.run`), of a forked child, or of a client that was just dropped can be closed without that
loop. asyncio's transports can't, and warn instead. TLS goes through anyio, which has no such way.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import httpcore2

from bellglass.sdk._http import KEEPALIVE_S, LARGE_READ, MAX_CONNECTIONS, SMALL_READ, SMALL_WRITE, is_readable

sleep = asyncio.sleep
AsyncLock = asyncio.Lock
_READS_PER_TURN = 32


class _Stream(httpcore2.AsyncNetworkStream):
    """A connected socket. The head of a request and its small body leave in one piece: they come as two writes, and a
    server that is woken for the first has nothing to do yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting = b""
        self._size = SMALL_READ
        self._reads = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._reads += 1
            if self._reads % _READS_PER_TURN == 0:
                await asyncio.sleep(0)  # data that is always there must not starve the other tasks
            async with asyncio.timeout(timeout):
                if self._waiting:
                    await self._flush()
                data = await asyncio.get_running_loop().sock_recv(self._sock, self._size)
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(f"nothing came for {timeout} s") from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error
        self._size = LARGE_READ if len(data) == self._size else SMALL_READ
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if len(self._waiting) + len(buffer) < SMALL_WRITE:
            self._waiting += buffer
            return
        try:
            async with asyncio.timeout(timeout):
                waiting, self._waiting = self._waiting, b""
                loop = asyncio.get_running_loop()
                if waiting:
                    await loop.sock_sendall(self._sock, waiting)
                await loop.sock_sendall(self._sock, buffer)
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(f"nothing was taken for {timeout} s") from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, b""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, waiting)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a server that hung up may have said why before: the read tells

    async def send(self, buffer: bytes) -> None:
        """Bytes that wait for nothing: of a connection whose directions go on beside each other."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, buffer)
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._sock.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return is_readable(self._sock)
        if info == "send":
            return self.send
        return self._sock if info == "socket" else None


class _Backend(httpcore2.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                return _Stream(await self._connect(host, port))
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout} s") from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error

    async def _connect(self, host: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                self._sockets.add(sock)
                return sock
        raise failure or OSError(f"{host} has no address")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def abandon(self) -> None:
        """Close every socket, without a word to those that may use them and without their loop."""
        for sock in list(self._sockets):
            sock.close()


class _Pool:
    def __init__(self, scheme: str) -> None:
        self.backend = _Backend() if scheme == "http" else None
        self.pool = httpcore2.AsyncConnectionPool(
            max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_S, network_backend=self.backend
        )

    def abandon(self) -> None:
        if self.backend is not None:
            self.backend.abandon()


def _abandon_all(pools: dict[Any, _Pool]) -> None:
    for pool in pools.values():
        pool.abandon()
    pools.clear()


class AsyncPools:
    """A connection pool for each event loop and process that asks."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._pid = os.getpid()
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        weakref.finalize(self, _abandon_all, self._pools)

    def get(self) -> httpcore2.AsyncConnectionPool:
        if self._pid != os.getpid():
            _abandon_all(self._pools)
            self._pid = os.getpid()
        loop = asyncio.get_running_loop()
        found = self._pools.get(loop)
        if found is None:
            for other in [other for other in self._pools if other.is_closed()]:
                self._pools.pop(other).abandon()
            found = self._pools[loop] = _Pool(self._scheme)
        return found.pool

    async def aclose(self) -> None:
        found = self._pools.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.pool.aclose()
        _abandon_all(self._pools)


class AsyncBackground:
    """A task beside the caller. `failure` is what ended it early."""

    def __init__(
        self, work: Callable[[AsyncBackground], Awaitable[None]], on_failure: Callable[[], Awaitable[None]]
    ) -> None:
        self.failure: BaseException | None = None
        self.stopped = self.busy = False
        self._task = asyncio.ensure_future(self._run(work, on_failure))

    async def _run(
        self, work: Callable[[AsyncBackground], Awaitable[None]], on_failure: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await work(self)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  it is raised again by whoever waits for the execution
            self.failure = error
            await on_failure()

    async def stop(self) -> None:
        self.stopped = True
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error


def half_close(stream: httpcore2.AsyncNetworkStream) -> None:
    """Nothing more is sent; what comes can still be read."""
    sock = stream.get_extra_info("socket")
    try:
        sock.shutdown(socket.SHUT_WR)
    except (OSError, AttributeError):
        pass  # it is gone already, or is no plain socket: then the server's own close ends it


def hang_up(stream: httpcore2.AsyncNetworkStream) -> None:
    """Whoever waits for bytes of it finds its end."""
    sock = stream.get_extra_info("socket")
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):
        pass  # it is gone already, or wrapped by a loop that has no such call: closing it does


async def acquired(lock: AsyncLock, within_s: float) -> bool:
    """The lock, unless another holds it for so long."""
    try:
        async with asyncio.timeout(within_s):
            return await lock.acquire()
    except TimeoutError:
        return False


async def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


async def call(function: Callable[..., Any], *arguments: Any) -> None:
    """Call what the user gave: a function, or a coroutine function."""
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


async def pieces(source: Any) -> AsyncIterator[Any]:
    """The items of an iterable or an async one; an iterator that blocks does so in a thread."""
    if hasattr(source, "__aiter__"):
        async for item in source:
            yield item
        return
    iterator = iter(source)
    end = object()
    while (item := await asyncio.to_thread(next, iterator, end)) is not end:
        yield item
