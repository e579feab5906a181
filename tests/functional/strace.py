"""System calls of running processes, in the order in which the kernel saw them, and checks of that order."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

CALLS = (
    "openat,write,writev,pwrite64,pwritev,sendmsg,sendto,fsync,fdatasync,syncfs,rename,renameat,renameat2,link,linkat,"
    "mkdir,mkdirat,unlink,unlinkat,rmdir,ftruncate"
)
_LINE = re.compile(r"^(\d+)\s+(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|\?)(.*)$", re.DOTALL)
_UNFINISHED = re.compile(r"^(\w+)\((.*) <unfinished \.\.\.>$", re.DOTALL)
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """`began` and `ended` are places in the trace: one call is before another if it has ended when that begins."""

    pid: int
    name: str
    arguments: str
    result: int | None
    began: int
    ended: int

    def __str__(self) -> str:
        return f"[{self.pid}] {self.name}({self.arguments}) = {self.result}"


def parse(trace: str) -> list[Call]:
    """Finished calls in the order of their beginnings."""
    calls: list[Call] = []
    open_calls: dict[int, tuple[str, str, int]] = {}
    for place, line in enumerate(trace.splitlines()):
        if (match := _LINE.match(line)) is None:
            continue
        pid, rest = int(match[1]), match[2]
        if (unfinished := _UNFINISHED.match(rest)) is not None:
            open_calls[pid] = (unfinished[1], unfinished[2], place)
            continue
        began = place
        if (resumed := _RESUMED.match(rest)) is not None and pid in open_calls:
            name, arguments, began = open_calls.pop(pid)
            rest = f"{name}({arguments}{resumed[2]}"
        if (call := _CALL.match(rest)) is not None:
            result = None if call[3] == "?" else int(call[3])
            calls.append(Call(pid, call[1], call[2], result, began, place))
    return sorted(calls, key=lambda call: call.began)


class Trace:
    """Filled when the `with` of `traced` ends."""

    def __init__(self) -> None:
        self.calls: list[Call] = []


@contextmanager
def traced(pids: Sequence[int], folder: Path) -> Iterator[Trace]:
    """What these processes, their threads and their children do meanwhile."""
    output = folder / "strace"
    targets = [word for pid in pids for word in ("-p", str(pid))]
    process = subprocess.Popen(
        ["strace", "-f", "-y", "-s", "200", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(output), *targets],
        stderr=subprocess.PIPE,
        text=True,
    )
    trace = Trace()
    assert process.stderr is not None
    try:
        said = []
        for _ in pids:  # one line each, with the count of threads where there are more
            said.append(process.stderr.readline())
            assert " attached" in said[-1], said
        yield trace
    finally:
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        process.wait(30)
        process.stderr.close()
    trace.calls = parse(output.read_text(errors="surrogateescape"))


Match = Callable[[Call], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """One call that must be there. `early`: none that fits may have begun before the steps before it were done, such as
    an answer, or the act that an intent is stored for."""

    name: str
    match: Match
    early: bool = False


def check_order(calls: Sequence[Call], steps: Sequence[Step]) -> list[Call]:
    """Each step has succeeded before the next one begins. Answers the calls; raises AssertionError naming the step that
    is missing or too early."""
    found: list[Call] = []
    after = -1
    for step in steps:
        fitting = [call for call in calls if call.result is not None and call.result >= 0 and step.match(call)]
        call = next((call for call in fitting if call.began > after), None)
        before = " -> ".join(s.name for s in steps[: len(found)]) or "the beginning"
        assert call is not None, f"no {step.name!r} after {before}"
        assert not step.early or call is fitting[0], f"{step.name!r} before {before}: {fitting[0]}"
        found.append(call)
        after = call.ended
    return found


def check_that_each_step_counts(calls: Sequence[Call], steps: Sequence[Step]) -> None:
    """The same trace without one of its steps is refused, whichever it is; so is one whose last step comes first."""
    found = check_order(calls, steps)
    for number, (step, own) in enumerate(zip(steps, found, strict=True)):
        less = [call for call in calls if not (step.match(call) and call.began >= own.began)]
        assert _refused(less, steps), f"nobody misses {step.name!r}"
        if step.early and number:
            place = found[number - 1].began
            moved = replace(own, began=place - 1, ended=place - 1)
            assert _refused(sorted([moved, *calls], key=lambda call: call.began), steps), f"{step.name!r} may be early"


def _refused(calls: Sequence[Call], steps: Sequence[Step]) -> bool:
    try:
        check_order(calls, steps)
    except AssertionError:
        return True
    return False
