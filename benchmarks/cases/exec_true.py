"""`/bin/true` in a running sandbox: the price of one execution, with everything that a call of the API does.

Ours goes through the sync SDK, HTTP, key check, database read, audit, the node and the agent. `docker exec` is what
people type; as much of it is its client program's start, the daemon's API alone stands beside it. `runc exec` enters
our own container without any of that. What the program itself takes, started by this process with no isolation at all,
is the floor: in a virtual machine its dynamic loader alone may take half a millisecond (each CPUID is an exit).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.bench import LIMITS, Bench
from benchmarks.measure import Bound, Contender, Row, alternate, quiet_collector, stopwatch
from benchmarks.peers.docker import exec_over_api
from benchmarks.peers.runc import RuncExec

WHAT = "exec of /bin/true, uid 1000"
NOW_AND_THEN = f"{WHAT}, 0.2 s after the one before"
BOUNDS = (Bound("p50", 4.0), Bound("p99", 10.0))
PAUSE_S = 0.2
COMMAND = ["/bin/true"]
OURS = "bellglass, sync SDK"


def measure(bench: Bench) -> list[Row]:
    with ExitStack() as owned:
        box = owned.enter_context(bench.sandbox())
        runc = owned.enter_context(RuncExec(bench.stack.data.runc_root, box.id, COMMAND))

        def ours() -> None:
            result = box.exec(COMMAND)
            if not result.ok:
                raise AssertionError(f"/bin/true ended with {result!r}")

        contenders = [
            Contender(OURS, ours, bench.times(2000, 200), warm_up=20),
            Contender("no isolation: posix_spawn and wait", spawn, bench.times(500, 50)),
            Contender("runc exec, same sandbox", runc, bench.times(100, 10)),
        ]
        if docker := bench.docker:
            container = docker.container(LIMITS)
            owned.callback(docker.command, "rm", "--force", container)
            connection = docker.connection()
            owned.callback(connection.close)

            def over_api() -> None:
                if exec_over_api(connection, container, COMMAND):
                    raise AssertionError("Docker says that /bin/true failed")

            def with_client() -> None:
                docker.command("exec", container, *COMMAND)

            contenders += [
                Contender("docker exec", with_client, bench.times(100, 10)),
                Contender("Docker's API, kept-alive connection", over_api, bench.times(100, 10)),
            ]
        with quiet_collector():
            samples = alternate(contenders)
            seldom = [_after_a_pause(ours) for _ in range(bench.times(50, 10))]
    rows = [
        Row("exec", WHAT, contender.name, "ms", samples[contender.name], BOUNDS if contender.name == OURS else ())
        for contender in contenders
    ]
    return [*rows, Row("exec", NOW_AND_THEN, OURS, "ms", seldom)]


def _after_a_pause(act: Callable[[], None]) -> float:
    """What waits for the kernel shows here alone: in a loop the wait before it has just been paid."""
    time.sleep(PAUSE_S)
    with stopwatch() as elapsed_ms:
        act()
        return elapsed_ms()


def spawn() -> None:
    """The program alone."""
    pid = os.posix_spawn(COMMAND[0], COMMAND, {})
    if os.waitpid(pid, 0)[1]:
        raise AssertionError("/bin/true failed on this host")
