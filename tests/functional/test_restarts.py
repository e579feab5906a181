"""How the supervisor brings daemons back: what dies while it serves at once, what can't even start ever more slowly."""

from __future__ import annotations

import json
import time

import pytest

from bellglass.supervise.control import read_record
from bellglass.testing import kernel
from bellglass.testing.stack import Stack
from tests.functional.own import status_code
from tests.functional.waiting import wait_until

pytestmark = pytest.mark.own_stack(driver="fake")


def restarts(stack: Stack) -> list[tuple[int, float]]:
    """(early deaths in a row, pause) of each restart so far."""
    lines = map(json.loads, (stack.data.logs_dir / "supervisor.log").read_text().splitlines())
    return [(line["early_deaths"], line["pause_s"]) for line in lines if line["event"] == "restart"]


def is_back(stack: Stack, before: int) -> bool:
    record = read_record(stack.data)
    return record is not None and record.alive("node") and record.processes["node"].pid != before


def test_what_dies_is_back_at_once_and_what_cannot_start_is_tried_ever_more_slowly(own_stack: Stack) -> None:
    for _ in range(4):
        record = read_record(own_stack.data)
        assert record is not None
        own_stack.kill("node")
        wait_until(lambda pid=record.processes["node"].pid: is_back(own_stack, pid), 20, "it does not come back")  # type: ignore[misc]
        time.sleep(0.3)  # it lives for longer than a daemon that dies in a circle
    assert restarts(own_stack) == [(0, 0.0)] * 4

    hidden = own_stack.data_dir / "installation.json.away"
    own_stack.data.installation_file.rename(hidden)
    begun = time.monotonic()
    own_stack.kill("node")
    wait_until(lambda: len(restarts(own_stack)) >= 8, 60, "it is not tried again")
    assert restarts(own_stack)[4:8] == [(0, 0.0), (1, 0.0), (2, 0.2), (3, 1.0)]
    assert time.monotonic() - begun > 0.2, "the pauses were not kept"
    hidden.rename(own_stack.data.installation_file)
    # Of the whole installation: the server dials a node that has just come back a moment later.
    wait_until(lambda: status_code(own_stack) == 0, 30, "it is not back")
    with own_stack.sandbox() as box:
        assert box.exec(["true"]).ok


def daemons(stack: Stack) -> dict[str, set[int]]:
    """Pids by module, of all that serve this data folder; without the supervisor's."""
    found: dict[str, set[int]] = {}
    for process in kernel.processes():
        words = process.command.split()
        if "-m" in words and str(stack.data_dir) in words and "bellglass.supervise" not in words:
            found.setdefault(words[words.index("-m") + 1], set()).add(process.pid)
    return found


@pytest.mark.parametrize("daemon", ["node", "server"])
def test_one_that_was_being_started_when_the_supervisor_died_makes_room_too(own_stack: Stack, daemon: str) -> None:
    module, port = f"bellglass.{daemon}", int(own_stack.api_url.rpartition(":")[2])
    for _ in range(5):
        before = daemons(own_stack)[module]
        own_stack.kill(daemon)
        wait_until(lambda before=before: daemons(own_stack).get(module, set()) - before, 20, "it is not started again")  # type: ignore[misc]
        own_stack.kill("supervisor")
        [orphan] = daemons(own_stack)[module]
        record = read_record(own_stack.data)
        assert record is not None
        in_time = record.processes[daemon].pid != orphan
        own_stack.up(port=port)
        record = read_record(own_stack.data)
        assert record is not None
        pids = {name: {record.processes[name.rpartition(".")[2]].pid} for name in daemons(own_stack)}
        assert daemons(own_stack) == pids and set(pids) == {"bellglass.server", "bellglass.node"}
        assert record.processes[daemon].pid != orphan
        if in_time:
            return
    raise AssertionError("the supervisor wrote each new one down before it could be killed")
