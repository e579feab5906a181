"""What differs between async and sync, the threads' half. Written by hand; the other files here are generated.

A forked child gets a pool of its own: it closes its copies of the parent's sockets and never touches the parent's
pool, whose lock another thread of the parent may have held at the time of the fork.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpcore2

from bellglass.sdk._http import KEEPALIVE_S, LARGE_READ, MAX_CONNECTIONS, SMALL_READ, SMALL_WRITE, is_readable

sleep = time.sleep
Lock = threading.Lock
_INHERITED: list[Any] = []
_STOP_S = 10.0


class _Stream(httpcore2.NetworkStream):
    """A connected socket. The head of a request and its small body leave in one piece: they come as two writes, and a
    server that is woken for the first has nothing to do yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting = b""
        self._size = SMALL_READ

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._sock.settimeout(timeout)
            if self._waiting:
                self._flush()
            data = self._sock.recv(self._size)
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(f"nothing came for {timeout} s") from error
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from error
        self._size = LARGE_READ if len(data) == self._size else SMALL_READ
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if len(self._waiting) + len(buffer) < SMALL_WRITE:
            self._waiting += buffer
            return
        try:
            self._sock.settimeout(timeout)
            waiting, self._waiting = self._waiting, b""
            if waiting:
                self._sock.sendall(waiting)
            self._sock.sendall(buffer)
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(f"nothing was taken for {timeout} s") from error
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, b""
        try:
            self._sock.sendall(waiting)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a server that hung up may have said why before: the read tells

    def send(self, buffer: bytes) -> None:
        """Bytes that wait for nothing: of a connection whose directions go on beside each other. No timeout is set: it
        would count for the thread that reads."""
        try:
            self._sock.sendall(buffer)
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        try:
            self._sock.settimeout(timeout)
            return _Stream(ssl_context.wrap_socket(self._sock, server_hostname=server_hostname))
        except OSError as error:  # ssl.SSLError and timeouts are some
            self.close()
            raise httpcore2.ConnectError(str(error)) from error

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object":
            return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
        if info == "is_readable":
            return is_readable(self._sock)
        if info == "send":
            return self.send
        return self._sock if info == "socket" else None


class _Backend(httpcore2.NetworkBackend):
    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        try:
            sock = socket.create_connection((host, port), timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout} s") from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        self._sockets.add(sock)
        return _Stream(sock)

    def abandon(self) -> None:
        for sock in list(self._sockets):
            sock.close()


class _Pool:
    def __init__(self) -> None:
        self.backend = _Backend()
        self.pool = httpcore2.ConnectionPool(
            max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_S, network_backend=self.backend
        )


def _close_all(pools: dict[int, _Pool]) -> None:
    for pid, pool in list(pools.items()):
        if pid == os.getpid():
            pool.pool.close()
    pools.clear()


class Pools:
    """The connection pool of this process; threads share it."""

    def __init__(self, scheme: str) -> None:
        self._lock = threading.Lock()
        self._pools: dict[int, _Pool] = {}
        weakref.finalize(self, _close_all, self._pools)

    def get(self) -> httpcore2.ConnectionPool:
        pid = os.getpid()
        found = self._pools.get(pid)
        if found is not None:
            return found.pool
        if self._pools:  # a fork lies between: one thread, and a lock that may never be released
            self._lock = threading.Lock()
            for pool in self._pools.values():
                pool.backend.abandon()
                _INHERITED.append(pool)
            self._pools.clear()
        with self._lock:
            return self._pools.setdefault(pid, self._pools.get(pid) or _Pool()).pool

    def close(self) -> None:
        _close_all(self._pools)


class Background:
    """A thread beside the caller. It can't be interrupted: `stop` asks it to end, and waits for it only where it is
    `busy` with the server, which answers soon; its own source may never say anything any more."""

    def __init__(self, work: Callable[[Background], None], on_failure: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self.stopped = self.busy = False
        self._thread = threading.Thread(target=self._run, args=(work, on_failure), name="bellglass-stdin", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Background], None], on_failure: Callable[[], None]) -> None:
        try:
            work(self)
        except BaseException as error:  # noqa: BLE001  it is raised again by whoever waits for the execution
            if self.stopped:
                return
            self.failure = error
            on_failure()

    def stop(self) -> None:
        self.stopped = True
        if self.busy:
            self._thread.join(_STOP_S)


def half_close(stream: httpcore2.NetworkStream) -> None:
    """Nothing more is sent; what comes can still be read."""
    sock = stream.get_extra_info("socket")
    try:
        sock.shutdown(socket.SHUT_WR)
    except (OSError, AttributeError):
        pass  # it is gone already, or is no plain socket: then the server's own close ends it


def hang_up(stream: httpcore2.NetworkStream) -> None:
    """Whoever waits for bytes of it finds its end."""
    sock = stream.get_extra_info("socket")
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):
        pass  # it is gone already


def acquired(lock: threading.Lock, within_s: float) -> bool:
    """The lock, unless another holds it for so long."""
    return lock.acquire(timeout=within_s)


def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def call(function: Callable[..., Any], *arguments: Any) -> None:
    function(*arguments)


def pieces(source: Any) -> Iterator[Any]:
    yield from source
