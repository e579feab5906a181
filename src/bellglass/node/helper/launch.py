"""Processes of the helper that are no Python: started through `bellglass-launch` (host/launch.c), without a fork.

A fork of a worker costs 1 ms and a copy of each page that it writes to afterwards. posix_spawn(3) shares the memory
until the launcher is executed, which then does what has to be done in the new process.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bellglass.errors import InternalError

LAUNCHER = Path(__file__).parents[2] / "_agent" / f"bellglass-launch-{platform.machine()}"
# What Python ignores, and programs that it starts should not.
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)


class Streams(NamedTuple):
    """Descriptors."""

    input: int
    output: int
    """Of standard error, too."""


def program(path: str, arguments: Sequence[str], streams: Streams, *, env: Mapping[str, str]) -> int:
    """The pid of a program in a session of its own, in /, that dies with this process and is as nice as it, its session
    too. It inherits the streams and nothing else. Exit code 127: it can't be executed. Raises InternalError without the
    launcher."""
    actions = [
        (os.POSIX_SPAWN_DUP2, streams.input, 0),
        (os.POSIX_SPAWN_DUP2, streams.output, 1),
        (os.POSIX_SPAWN_DUP2, streams.output, 2),
    ]
    return _spawn(("run", str(os.getpid()), path, *arguments), env, actions)


def namespaces(owner: int) -> int:
    """The pid of a process in a new user namespace of that uid, without maps, and in a new network namespace; it stops
    itself when it is there. It dies with this process. Raises InternalError without the launcher."""
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    return _spawn(("namespaces", str(os.getpid()), str(owner)), {}, actions)


def _spawn(arguments: Sequence[str], env: Mapping[str, str], actions: Sequence[tuple[Any, ...]]) -> int:
    argv = (LAUNCHER.name, *arguments)
    try:
        return os.posix_spawn(LAUNCHER, argv, env, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS)
    except FileNotFoundError:
        raise InternalError(f"the launcher is not built: {LAUNCHER} is missing", hint="make agent") from None
