"""Refusals as events for the node, so many a second of one sandbox that a flood of them floods nobody.

What is left out is counted, and the next event of the sandbox tells how many; where none comes, an event without a
reason does so after a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bellglass.egress.loop import Loop
from bellglass.egress.rate import Bucket

PER_SECOND, BURST = 20, 100
TOLD_AFTER_S = 2.0
MAX_HOST = 255


class Events:
    """`later` calls what it is given TOLD_AFTER_S later."""

    def __init__(
        self,
        publish: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], None]], object] = lambda call: None,
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._later = later
        self._to_tell: set[str] = set()
        self._buckets: dict[str, Bucket] = {}
        self._suppressed: dict[str, int] = {}

    def refused(
        self,
        sandbox: str,
        *,
        kind: str,
        reason: str,
        rule: str,
        host: str | None = None,
        address: str | None = None,
        port: int | None = None,
    ) -> None:
        """`kind` is tcp or dns. What comes from the sandbox is cut to a size."""
        now = self._clock()
        bucket = self._buckets.get(sandbox)
        if bucket is None:
            bucket = self._buckets[sandbox] = Bucket(PER_SECOND, BURST, now)
        if not bucket.take(now):
            self._suppressed[sandbox] = self._suppressed.get(sandbox, 0) + 1
            if sandbox not in self._to_tell:
                self._to_tell.add(sandbox)
                self._later(lambda: self._tell_suppressed(sandbox))
            return
        event: dict[str, Any] = {
            "time": timestamp(time.time()),
            "sandbox": sandbox,
            "kind": kind,
            "host": host[:MAX_HOST] if host is not None else None,
            "address": address,
            "port": port,
            "reason": reason,
            "rule": rule[:MAX_HOST],
        }
        if suppressed := self._suppressed.pop(sandbox, 0):
            event["suppressed"] = suppressed
        self._publish(event)

    def forget(self, sandbox: str) -> None:
        self._tell_suppressed(sandbox)
        self._buckets.pop(sandbox, None)

    def _tell_suppressed(self, sandbox: str) -> None:
        self._to_tell.discard(sandbox)
        if suppressed := self._suppressed.pop(sandbox, 0):
            nothing = dict.fromkeys(("kind", "host", "address", "port", "reason", "rule"))
            self._publish({"time": timestamp(time.time()), "sandbox": sandbox, **nothing, "suppressed": suppressed})


def after_a_while(loop: Loop) -> Callable[[Callable[[], None]], object]:
    """For Events of a process that runs on `loop`."""

    async def wait(call: Callable[[], None]) -> None:
        await loop.sleep(TOLD_AFTER_S)
        call()

    return lambda call: loop.spawn(wait(call))


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, with milliseconds."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
