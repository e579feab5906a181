"""What differs between async and sync, the threads' half. Written by hand; the other files here are generated.

A forked child gets a pool of its own: it closes its copies of the parent's sockets and never touches the parent's
pool, whose lock another thread of the parent may have held at the time of the fork.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpcore2

from bellglass.sdk._http import KEEPALIVE_S, MAX_CONNECTIONS

sleep = time.sleep
_INHERITED: list[Any] = []
_STOP_S = 10.0


class _Backend(httpcore2.SyncBackend):
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
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        self._sockets.add(stream.get_extra_info("socket"))
        return stream

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


def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def call(function: Callable[..., Any], *arguments: Any) -> None:
    function(*arguments)


def pieces(source: Any) -> Iterator[Any]:
    yield from source
