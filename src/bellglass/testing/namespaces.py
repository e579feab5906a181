"""Network namespaces for tests: made, entered by single threads, held by a descriptor and gone with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace of its own, with loopback up and no forwarding. Needs root and `ip`."""

    def __init__(self) -> None:
        self.fd = in_thread(_unshared)
        self.run("ip", "link", "set", "lo", "up")

    @classmethod
    def of(cls, path: str | Path) -> Namespace:
        """One that is there already."""
        found = cls.__new__(cls)
        found.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return found

    @property
    def path(self) -> str:
        """For `ip link ... netns`, as long as this process lives."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """In a thread that is inside; what sockets and processes it makes stay inside."""

        def inside() -> T:
            _check(_libc.setns(self.fd, CLONE_NEWNET))
            return function(*args)

        return in_thread(inside)

    def run(self, *argv: str, text: str | None = None) -> str:
        """The program's output. Raises RuntimeError with what it complains of."""

        def inside() -> str:
            done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")
            return done.stdout

        return self.call(inside)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is inside, and so is every process that it starts."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(self.fd, CLONE_NEWNET))
            yield
        finally:
            _check(_libc.setns(before, CLONE_NEWNET))
            os.close(before)

    def close(self) -> None:
        os.close(self.fd)


def _unshared() -> int:
    _check(_libc.unshare(CLONE_NEWNET))
    # A new namespace inherits the host's.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def in_thread(function: Callable[[], T]) -> T:
    """In a thread of its own, which ends with it: a namespace that it entered is nobody else's."""
    outcome: list[Any] = []

    def body() -> None:
        try:
            outcome.extend((function(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where it was called
            outcome.extend((None, error))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
