"""An installation beside the suite's own, of which nothing may be left at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bellglass.testing.leaks import assert_no_leak
from bellglass.testing.stack import Stack
from tests.conftest import snapshot_of_nothing


@contextmanager
def own_installation(**options: Any) -> Iterator[Stack]:
    """As `Stack.start` takes them."""
    running = Stack.start(**options)
    scope = running.scope
    try:
        yield running
    finally:
        running.close()
    assert_no_leak(snapshot_of_nothing(scope), deadline_s=10)


def status_code(stack: Stack) -> int:
    """What `bellglass status` ends with: 0 when all of it is up, 3 when it is down."""
    return stack.command("status", "--data-dir", str(stack.data_dir)).returncode
