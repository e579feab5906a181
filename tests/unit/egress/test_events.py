"""Events of refusals: so many a second, and the count of the rest is told whether or not another one follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bellglass.egress.events import BURST, Events, after_a_while
from bellglass.egress.loop import Loop


class Rig:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.later: list[Callable[[], None]] = []
        self.now = 0.0
        self.events = Events(self.told.append, lambda: self.now, self.later.append)

    def refuse(self, count: int, sandbox: str = "sb1") -> None:
        for i in range(count):
            self.events.refused(sandbox, kind="dns", reason="name_not_allowed", rule="deny", host=f"h{i}.example")

    def suppressed(self, sandbox: str = "sb1") -> int:
        return sum(event.get("suppressed", 0) for event in self.told if event["sandbox"] == sandbox)


def test_the_rest_of_a_flood_is_told_when_it_is_over() -> None:
    rig = Rig()
    rig.refuse(BURST + 400)
    rig.refuse(3, "sb2")
    assert len(rig.told) == BURST + 3 and rig.suppressed() == 0
    assert len(rig.later) == 1, "one timer for a flood"
    rig.later.pop()()
    last = rig.told[-1]
    assert (last["sandbox"], last["reason"], last["host"], last["suppressed"]) == ("sb1", None, None, 400)
    rig.refuse(1)
    assert len(rig.later) == 1
    rig.now += 1
    rig.refuse(1)
    assert rig.told[-1]["suppressed"] == 1, "the next event tells as well"
    rig.later.pop()()
    assert rig.suppressed() == 401, "nothing is told twice"


def test_a_sandbox_that_goes_leaves_its_count() -> None:
    rig = Rig()
    rig.refuse(BURST + 5)
    rig.events.forget("sb1")
    assert rig.suppressed() == 5
    rig.later.pop()()
    assert rig.suppressed() == 5


def test_on_the_loop_of_the_processes() -> None:
    loop, called = Loop(), []

    def call() -> None:
        called.append(True)
        loop.stop()

    after_a_while(loop)(call)
    loop.run()
    assert called == [True]
