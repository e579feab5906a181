"""What sandboxes cost that do nothing: one of them, a hundred of them, and the daemons without any.

Memory is told twice: PSS of the processes (shared pages by their share) and MemAvailable of the host, which has the
kernel's part too (cgroups, mounts, namespaces, loop device) and whatever others do meanwhile. Both are differences per
sandbox over all hundred, so that single pages don't decide.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bellglass.testing import kernel
from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, quiet_collector, stopwatch, timed

SMALL: dict[str, Any] = {"cpus": 0.25, "memory": "256MiB", "disk": "256MiB", "pids": 64, "lifetime": "1h"}
OURS = "bellglass, sync SDK"
DAEMONS = ("supervisor", "server", "node", "helper", "proxy", "resolver", "lxcfs")
MIB = 1 << 20
RECLAIM_S = 120.0


def measure(bench: Bench) -> list[Row]:
    settle_s = bench.times(3, 1)
    count = bench.times(100, 20)
    ends = bench.times(10, 5)
    rows: list[Row] = []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: _used(bench), range(16)))  # what the daemons open and load once
    _wait_reclaimed(bench)
    pids = bench.stack.pids()
    time.sleep(bench.times(35, 1))  # until they have given back what they keep for the next burst
    daemons = {name: pss_bytes(pids[name]) for name in DAEMONS}
    rows.append(_row("all daemons, idle", "MiB PSS", [sum(daemons.values()) / MIB], 150.0))

    available, boxes, created_ms = mem_available(), [], []
    try:
        with quiet_collector():
            for _ in range(count):
                created_ms.append(timed(lambda: boxes.append(bench.stack.sandbox(**SMALL))))
                if len(boxes) == 1:
                    alone_ms = _execs(boxes[0], bench.times(200, 30))
        time.sleep(settle_s)  # the kernel frees in batches
        processes = pids_by_sandbox([box.id for box in boxes])
        idle = [sum(map(pss_bytes, found)) / MIB for found in processes.values()]
        rows.append(_row("an idle sandbox: its processes", "MiB PSS", idle, 4.0))
        rows.append(_row("an idle sandbox: the host", "MiB", [(available - mem_available()) / count / MIB], 12.0))
        grown = sum(pss_bytes(pids[name]) - daemons[name] for name in ("server", "node"))
        rows.append(_row("an idle sandbox: growth of server and node", "KiB PSS", [grown / count / 1024], 100.0))
        ratio = statistics.median(created_ms[-ends:]) / statistics.median(created_ms[:ends])
        rows.append(_row(f"{count} idle: last {ends} creates to the first {ends}", "times", [ratio], 2.0))
        rows.append(
            _row(
                f"{count} idle: daemons' processor time", "% of a core", [_busy_percent(pids, bench.times(20, 3))], 3.0
            )
        )
        crowd_ms = _execs(boxes[0], bench.times(200, 30))
        ratio = statistics.median(crowd_ms) / statistics.median(alone_ms)
        rows.append(_row(f"{count} idle: exec to exec with one", "times", [ratio], 2.0))
    finally:
        with stopwatch() as elapsed_ms, ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda box: box.delete(), boxes))
            _wait_reclaimed(bench)
            gone_s = elapsed_ms() / 1000
    rows.append(_row(f"{count} idle: all deleted and reclaimed", "s", [gone_s], 20.0))
    return rows


def _row(what: str, unit: str, samples: list[float], most: float) -> Row:
    return Row("idle", what, OURS, unit, samples, (Bound("p50", most),))


def _used(bench: Bench) -> None:
    with bench.stack.sandbox(**SMALL) as box:
        box.exec(["true"])


def _execs(box: Any, times: int) -> list[float]:
    call: Callable[[], Any] = lambda: box.exec(["/bin/true"])  # noqa: E731
    for _ in range(5):
        call()
    return [timed(call) for _ in range(times)]


def pids_by_sandbox(ids: list[str]) -> dict[str, list[int]]:
    """Pids of everything in the sandboxes' cgroups."""
    found: dict[str, list[int]] = {id: [] for id in ids}
    for process in kernel.processes():
        for id in ids:
            if id in process.cgroups:
                found[id].append(process.pid)
    return found


def _wait_reclaimed(bench: Bench) -> None:
    """Until no sandbox of the installation has anything left on disk, which goes last. Raises TimeoutError."""
    deadline = time.monotonic() + RECLAIM_S
    while any(bench.stack.data.sandboxes_dir.iterdir()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"sandboxes are still there after {RECLAIM_S:g} s")
        time.sleep(0.01)


def _busy_percent(pids: dict[str, int], period_s: int) -> float:
    def ticks() -> int:
        total = 0
        for name in DAEMONS:
            fields = Path(f"/proc/{pids[name]}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # with children that were waited for: the helper's
        return total

    before = ticks()
    time.sleep(period_s)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / period_s * 100


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def mem_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LookupError("MemAvailable")
