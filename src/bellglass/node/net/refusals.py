"""Refusals of proxy and resolver on their way into the journal, from where the server takes them in exactly once.

What comes in together goes in together, at most once a second; the first after a quiet second goes at once. The same
destination refused again in that time is one refusal with a count. A sandbox that makes thousands of them a second
gets its share of what is journalled, and what is left out is counted: neither memory nor disk grow with it, also while
the server is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC
from typing import Any

from bellglass.errors import NoCapacity
from bellglass.model import format_time, now, parse_time
from bellglass.node.journal import REFUSED, Journal, SandboxRow

TOGETHER_S = 1.0
SOON_S = 0.02
MOST_OF_SANDBOX = 100
"""Destinations in one batch."""
MOST_TOGETHER = 500
"""Destinations in one batch, of all sandboxes."""
MOST_WAITING_BYTES = 16 * 2**20
"""In the journal, that the server has not taken in."""
BLOCKED_S = 5.0
_KINDS = frozenset({"tcp", "dns"})
_TEXTS = {"host": 255, "address": 64, "reason": 32, "rule": 255}
_MOST = 2**31
log = logging.getLogger("bellglass.network")


class _Waiting:
    """Of one sandbox: what is to be journalled, and how many were left out."""

    __slots__ = ("left_out", "refusals")

    def __init__(self) -> None:
        self.refusals: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.left_out = 0


class Refusals:
    """`note` each event of proxy and resolver. `rows` are the node's sandboxes; what is of none is passed over. `check`
    raises NoCapacity while the disk is low: the last of it is not for these."""

    def __init__(self, journal: Journal, rows: Mapping[str, SandboxRow], check: Callable[[], object]) -> None:
        self._journal = journal
        self._rows = rows
        self._check = check
        self._waiting: dict[str, _Waiting] = {}
        self._some = asyncio.Event()
        self._unread_bytes: int | None = None
        """What lies in the journal at most; None while that is not known."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="refusals")

    async def close(self) -> None:
        """Journal what waits."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.flush()

    def note(self, event: dict[str, Any]) -> None:
        """From a process that parses what sandboxes send: nothing in it is believed to have the form that it should."""
        sandbox_id = event.get("sandbox")
        if not isinstance(sandbox_id, str) or sandbox_id not in self._rows:
            return
        waiting = self._waiting.setdefault(sandbox_id, _Waiting())
        waiting.left_out = min(waiting.left_out + _count(event.get("suppressed")), _MOST)
        self._some.set()
        if event.get("reason") is None:
            return  # it only tells a count
        refusal = _cleaned(event)
        key = tuple(refusal[name] for name in ("protocol", "host", "address", "port", "reason", "rule"))
        if (known := waiting.refusals.get(key)) is not None:
            known["count"] += 1
        elif len(waiting.refusals) < MOST_OF_SANDBOX:
            waiting.refusals[key] = refusal
        else:
            waiting.left_out = min(waiting.left_out + 1, _MOST)

    async def flush(self) -> bool:
        """Journal what waits; False when there is no room for it now. It waits on then, as a count."""
        taken, self._waiting = self._waiting, {}
        if not taken:
            return True
        try:
            if not await self._has_room():
                self._put_back(taken)
                return False
            events, size = self._events(taken)
            self._check()
            await self._journal.note(events)
        except NoCapacity as error:
            log.warning("refusals are not journalled: %s", error.message)
            self._put_back(taken)
            return False
        self._unread_bytes = (self._unread_bytes or 0) + size
        return True

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            await asyncio.sleep(SOON_S)  # a name that is refused and the connection that follows go together
            self._some.clear()
            done = await self.flush()
            await asyncio.sleep(TOGETHER_S if done else BLOCKED_S)
            if not done:
                self._some.set()

    async def _has_room(self) -> bool:
        if self._unread_bytes is None or self._unread_bytes > MOST_WAITING_BYTES:
            self._unread_bytes = await self._journal.unread_bytes(REFUSED)
        return self._unread_bytes <= MOST_WAITING_BYTES

    def _events(self, taken: dict[str, _Waiting]) -> tuple[list[tuple[str, int, str, dict[str, Any]]], int]:
        """For the journal, and about how many bytes they are. Each sandbox has the same share."""
        share = max(1, MOST_TOGETHER // len(taken))
        events, size = [], 0
        for sandbox_id, waiting in taken.items():
            if (row := self._rows.get(sandbox_id)) is None:
                continue
            refusals = list(waiting.refusals.values())
            left_out = waiting.left_out + sum(one["count"] for one in refusals[share:])
            body = {"refusals": refusals[:share], "left_out": left_out}
            size += len(repr(body))
            events.append((sandbox_id, row.generation, REFUSED, body))
        return events, size

    def _put_back(self, taken: dict[str, _Waiting]) -> None:
        for sandbox_id, before in taken.items():
            if sandbox_id not in self._rows:
                continue
            waiting = self._waiting.setdefault(sandbox_id, _Waiting())
            left_out = before.left_out + sum(one["count"] for one in before.refusals.values())
            waiting.left_out = min(waiting.left_out + left_out, _MOST)


def _cleaned(event: dict[str, Any]) -> dict[str, Any]:
    port, kind = event.get("port"), event.get("kind")
    texts = {name: _text(event.get(name), most) for name, most in _TEXTS.items()}
    return {
        "at": _time(event.get("time")),
        "protocol": kind if isinstance(kind, str) and kind in _KINDS else None,
        "port": port if isinstance(port, int) and not isinstance(port, bool) and 0 <= port < 65536 else None,
        "count": 1,
        **texts,
    }


def _text(value: Any, most: int) -> str | None:
    """Printable ASCII, as names, addresses and rules are: of what else it may be each character would be twelve bytes
    of JSON, and the server takes no event of any length."""
    return ascii(value[:most])[1:-1][:most] if isinstance(value, str) else None


def _time(value: Any) -> str:
    """In the form that the server's times have, so that they compare as text."""
    if isinstance(value, str) and len(value) <= 40:
        with suppress(ValueError):
            moment = parse_time(value)
            return format_time(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return now()


def _count(value: Any) -> int:
    return min(value, _MOST) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
