"""Where the time of an execution goes: requests that each go one hop further, with what every process worked for them.

    GET /v1/health        the HTTP server alone
    GET a sandbox         and key check and a database read
    POST executions       and link, node, agent and the program, by a client that has nothing in it
    box.exec              and the SDK
CPU time is counted by the scheduler in nanoseconds, so it holds on a busy machine where the clock doesn't. The client's
own profile follows.
"""

from __future__ import annotations

import cProfile
import io
import json
import os
import pstats
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from bellglass.ids import new_ulid
from benchmarks.bench import Bench
from benchmarks.measure import Summary, quiet_collector, summarize, timed

CALLS = 300
COMMAND = ["/bin/true"]
FRAMES = "application/x-bellglass-frames"


def explain(bench: Bench, console: Console) -> None:
    calls = bench.times(CALLS, 100)
    pids = {name: pid for name, pid in bench.stack.pids().items() if name in ("server", "node")}
    pids["client"] = os.getpid()
    table = Table("hop", "p50 ms", "p95 ms", *(f"{name} CPU ms" for name in pids), title="one execution, hop by hop")
    with bench.sandbox() as box, quiet_collector():

        def show(name: str, measure: Callable[[int], list[float]]) -> None:
            measure(10)
            before = {who: cpu_ms(pid) for who, pid in pids.items()}
            summary: Summary = summarize(measure(calls))
            used = [f"{(cpu_ms(pid) - before[who]) / calls:.2f}" for who, pid in pids.items()]
            table.add_row(name, f"{summary.p50:.2f}", f"{summary.p95:.2f}", *used)

        http = Http(bench)
        try:
            show("GET /v1/health (no key, no database)", http.repeat("GET", "/v1/health"))
            show("GET /v1/sandboxes/{id}", http.repeat("GET", f"/v1/sandboxes/{box.id}"))
            executions = f"/v1/sandboxes/{box.id}/executions"
            show("POST executions, frames, bare client", http.repeat("POST", executions, {"command": COMMAND}))
            show("box.exec, SDK", lambda n: [timed(lambda: box.exec(COMMAND) and None) for _ in range(n)])
        finally:
            http.connection.close()
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(calls):
            box.exec(COMMAND)
        profile.disable()
    console.print(table)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
    console.print(f"the client's own profile of {calls} calls\n{text.getvalue()}", markup=False)


def cpu_ms(pid: int) -> float:
    """What all threads of a process have run so far."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6


class Http:
    """A client with nothing in it."""

    def __init__(self, bench: Bench) -> None:
        self.connection = HTTPConnection(urlsplit(bench.stack.api_url).netloc, timeout=60)
        self._headers = {"Authorization": f"Bearer {bench.stack.api_key}", "Accept": FRAMES}

    def repeat(self, method: str, path: str, body: dict[str, Any] | None = None) -> Callable[[int], list[float]]:
        def once() -> None:
            payload, more = None, {}
            if body is not None:
                payload = json.dumps(body | {"id": new_ulid()})
                more = {"Content-Type": "application/json"}
            self.connection.request(method, path, payload, self._headers | more)
            answer = self.connection.getresponse()
            content = answer.read()
            if answer.status >= 300:
                raise AssertionError(f"{method} {path}: {answer.status} {content[:300]!r}")

        return lambda times: [timed(once) for _ in range(times)]
