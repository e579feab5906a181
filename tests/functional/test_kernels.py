"""Kernels of the interpreter template: output, values, state, errors, interrupts, and what dies and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bellglass.testing.stack import Stack
from tests.conftest import end
from tests.functional.kernel_host import KernelHost

pytestmark = [pytest.mark.root]


@pytest.fixture(scope="module")
def interpreter(stack: Stack) -> Iterator[Any]:
    made = stack.sandbox("interpreter", cpus=2, memory="1GiB", disk="2GiB", lifetime="15m")
    made.exec(["echo", "the first output makes the folder of its logs"])
    yield made
    end(made)


@pytest.fixture(scope="module")
def python(interpreter: Any) -> Iterator[KernelHost]:
    host = KernelHost(interpreter)
    assert host.ready == {"event": "ready", "language": "python"}
    yield host
    host.close()


def test_output_values_and_state(python: KernelHost) -> None:
    ran = python.run("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert (ran.stdout, ran.stderr, ran.value) == ("out\n", "err\n", "21")
    assert [event["event"] for event in ran.events].count("stdout") == 1, "one print is one event"
    assert python.run("x * 2").value == "40"
    counts = [python.run("None").events[0]["count"] for _ in range(2)]
    assert counts[1] == counts[0] + 1
