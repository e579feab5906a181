"""Whether proxy and resolver still answer: a process that hangs is as good as dead, but no pidfd tells of it.

Each is asked over its control socket now and then. One that says nothing for HANGS_S is to be killed. Only time in
which this process ran counts: a machine that was suspended, or stopped as a whole, finds its daemons no later than
itself.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bellglass.supervise.processes import ProcessId

ASK_EVERY_S = 10.0
HANGS_S = 10.0
TURN_S = 1.0
"""While somebody is asked, `look` is to be called this often; a longer time counts as no more."""
_QUESTION = json.dumps({"id": 1, "op": "health"}).encode()


@dataclass(slots=True)
class _Asked:
    process: ProcessId
    sock: socket.socket
    waited_s: float = 0.0


class Answers:
    """`sockets`: where each is asked, by name."""

    def __init__(self, sockets: Mapping[str, Path]) -> None:
        self._sockets = sockets
        self._asked: dict[str, _Asked] = {}
        self._next_at: dict[str, float] = {}
        self._looked_at = time.monotonic()

    @property
    def descriptors(self) -> list[int]:
        """Readable when one has answered."""
        return [asked.sock.fileno() for asked in self._asked.values()]

    def look(self, processes: Mapping[str, ProcessId]) -> list[str]:
        """Those that hang. They are asked anew, in case that whoever kills them fails."""
        now = time.monotonic()
        ran_s, self._looked_at = min(now - self._looked_at, TURN_S), now
        hanging = []
        for name in self._sockets:
            process = processes.get(name)
            asked = self._asked.get(name)
            if asked is not None and (asked.process != process or _has_answered(asked.sock)):
                self._forget(name)
            elif asked is not None:
                asked.waited_s += ran_s
                if asked.waited_s >= HANGS_S:
                    hanging.append(name)
                    self._forget(name)
            elif process is not None and now >= self._next_at.get(name, 0.0):
                self._ask(name, process)
                self._next_at[name] = now + ASK_EVERY_S
        return hanging

    def close(self) -> None:
        for name in list(self._asked):
            self._forget(name)

    def _ask(self, name: str, process: ProcessId) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.connect(str(self._sockets[name]))
            sock.send(_QUESTION)
        except BlockingIOError:
            pass  # so many wait to be let in that it surely hangs: no answer will come
        except OSError:
            sock.close()  # it has just ended
            return
        self._asked[name] = _Asked(process, sock)

    def _forget(self, name: str) -> None:
        self._asked.pop(name).sock.close()


def _has_answered(sock: socket.socket) -> bool:
    """Or hung up, which a process that hangs does not."""
    try:
        sock.recv(4096)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno != errno.ENOTCONN
    return True
