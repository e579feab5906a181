"""An installation beside the suite's own, of which nothing may be left at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from bellglass.testing.leaks import assert_no_leak, snapshot_of_nothing
from bellglass.testing.stack import Stack
from bellglass.testing.world import World


@contextmanager
def own_installation(
    *, settings: Mapping[str, Any] | None = None, world: World | None = None, **options: Any
) -> Iterator[Stack]:
    """As `Stack.start` takes them. `world`: on the host of a private internet, which the caller enters by itself."""
    inside = nullcontext if world is None else world.inside
    if world is not None:
        settings = world.settings(**(settings or {}))
    with inside():
        running = Stack.start(settings=settings, **options)
    scope = running.scope
    try:
        yield running
    finally:
        with inside():
            running.close()
    with inside():
        assert_no_leak(snapshot_of_nothing(scope), deadline_s=10)


def status_code(stack: Stack) -> int:
    """What `bellglass status` ends with: 0 when all of it is up, 3 when it is down."""
    return stack.command("status", "--data-dir", str(stack.data_dir)).returncode
