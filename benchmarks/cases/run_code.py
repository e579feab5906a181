"""Code in an interpreter context: one line in a kernel that is there, natively and as E2B's clients send it; the first
line after a create from a warm pool; and a cell of five lines, 200 times from two clients, of which none may be lost.

What the kernel itself takes for a cell is the same for all; the SDK, HTTP, node, agent and the kernel's host are ours.
"""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

from bellglass import Sandbox
from benchmarks.bench import Bench
from benchmarks.measure import Bound, Contender, Row, alternate, quiet_collector, stopwatch
from benchmarks.pools import warm_pool

OURS, E2B = "bellglass, sync SDK", "E2B's wire, by hand"
LINE = "1+1 in a live context"
FIRST = "create from a warm pool to the first run's result"
CELL = """import pandas as pd, matplotlib.pyplot as plt
frame = pd.DataFrame({"x": range(20), "y": [n * n % 7 for n in range(20)]})
frame.plot(x="x", y="y", title="run {number}")
plt.show()
frame.y.sum() + {number}
"""
CLIENTS, MEMBERS = 2, 3
SLOW_MS = 5000.0


def measure(bench: Bench) -> list[Row]:
    with ExitStack() as owned, quiet_collector():
        box = owned.enter_context(bench.stack.sandbox("interpreter"))
        facade = owned.enter_context(Facade(bench))

        def ours() -> None:
            _check(box.run_code("1+1").text, "2")

        times = bench.times(500, 50)
        contenders = [Contender(OURS, ours, times, warm_up=10), Contender(E2B, facade.once, times, warm_up=10)]
        samples = alternate(contenders)
        cells, lost = _cells(bench, box)
    with warm_pool(bench, MEMBERS, "interpreter") as pool, quiet_collector():
        first = []
        for _ in range(bench.times(20, 4)):
            pool.wait_full()
            first.append(_first(bench))
    bound = (Bound("p50", 20.0),)
    return [
        *[Row("run-code", LINE, name, "ms", samples[name], bound) for name in (OURS, E2B)],
        Row("run-code", FIRST, OURS, "ms", first, (Bound("p50", 1000.0),)),
        Row("run-code", f"five lines of pandas and matplotlib, {CLIENTS} clients", OURS, "ms", cells,
            (Bound("max", SLOW_MS),)),
        Row("run-code", "of these, lost or without their picture", OURS, "", [float(lost)], (Bound("max", 0.0),)),
    ]  # fmt: skip


def _cells(bench: Bench, box: Sandbox) -> tuple[list[float], int]:
    """Each client in a context of its own. The milliseconds of each run, and how many gave less than they should."""
    each = bench.times(100, 10)

    def client(index: int) -> list[tuple[float, bool]]:
        with closing(Sandbox.connect(box.id, api_url=bench.stack.api_url, api_key=bench.stack.api_key)) as other:
            context = other.contexts.create()
            context.run("import pandas, matplotlib.pyplot")
            return [_cell(context, index * each + number) for number in range(each)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        runs = [run for part in pool.map(client, range(CLIENTS)) for run in part]
    return [took_ms for took_ms, _ in runs], sum(not whole for _, whole in runs)


def _cell(context: Any, number: int) -> tuple[float, bool]:
    with stopwatch() as elapsed_ms:
        result = context.run(CELL.replace("{number}", str(number)))
        took_ms = elapsed_ms()
    wanted = str(sum(n * n % 7 for n in range(20)) + number)
    pictures = [one for one in result.results if one.png is not None]
    return took_ms, result.ok and len(pictures) == 1 and wanted in (result.text or "")


def _first(bench: Bench) -> float:
    with stopwatch() as elapsed_ms, bench.stack.sandbox("interpreter") as box:
        answer = box.run_code("1+1").text
        took_ms = elapsed_ms()
    _check(answer, "2")
    return took_ms


class Facade:
    """A sandbox of E2B's API and one kept-alive connection to its code interpreter."""

    def __init__(self, bench: Bench) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(bench.stack.api_url).netloc, timeout=120)
        self._key = {"X-API-KEY": bench.stack.api_key}
        made = self._ask("POST", "/compat/e2b/v2/sandboxes", {"templateID": "interpreter"}, self._key)
        self._id = made["sandboxID"]
        self._headers = {
            "E2b-Sandbox-Id": self._id,
            "E2b-Sandbox-Port": "49999",
            "X-Access-Token": made["envdAccessToken"],
        }

    def __enter__(self) -> Facade:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("DELETE", f"/compat/e2b/sandboxes/{self._id}", None, self._key)
        self._connection.close()

    def once(self) -> None:
        self._connection.request("POST", "/execute", json.dumps({"code": "1+1"}), self._headers)
        lines = [json.loads(line) for line in self._connection.getresponse().read().splitlines()]
        _check("".join(line["text"] for line in lines if line["type"] == "result"), "2")

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        given = {**headers, "Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = self._connection.getresponse()
        raw = answer.read()
        if answer.status >= 300:
            raise AssertionError(f"{method} {path}: {answer.status} {raw!r}")
        return json.loads(raw) if raw else None


def _check(answered: str | None, wanted: str) -> None:
    if answered != wanted:
        raise AssertionError(f"{wanted!r} was to come, not {answered!r}")
