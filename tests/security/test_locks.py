"""No other user of the host holds up the helper: what it locks, nobody else can even open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bellglass.testing.stack import Stack

NOBODY = 65534
HOLD = """
import fcntl, os, sys
held = []
for path in sys.stdin.readline().split("\\0"):
    try:
        held.append(os.open(path.strip(), os.O_RDONLY))
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        continue
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(90)
def test_a_user_who_locks_all_that_he_can_open_holds_up_no_sandbox(stack: Stack, new_box: Callable[..., Any]) -> None:
    root = stack.data.root
    folders = [str(root), *(str(path) for path in [*root.glob("*"), *root.glob("*/*")] if os.path.isdir(path))]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD], user=NOBODY, group=NOBODY, extra_groups=[], stdin=pipe,
                          stdout=pipe, text=True) as holder:  # fmt: skip
        assert holder.stdin is not None and holder.stdout is not None
        try:
            holder.stdin.write("\0".join(folders) + "\n")
            holder.stdin.flush()
            assert int(holder.stdout.readline()) > 0, "the run folder can be opened by everybody"
            new_box().delete()
        finally:
            holder.stdin.close()
