"""`python -m benchmarks.soak`: an installation of its own under mixed work; daemons are killed in its first quarter.

SOAK_MINUTES says how long (30). A line each minute, a table at the end; exit code 1 where something was wrong: an
outcome that was not true, an error while nothing was killed, a process that grew, anything left behind. Memory is
judged over the last third: the node forgets deleted sandboxes after ten minutes, so that shorter runs see it grow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bellglass import Sandbox
from bellglass.model import now
from bellglass.testing.leaks import LeakFound, Resources, assert_no_leak, settled_snapshot
from bellglass.testing.stack import Stack
from benchmarks import machine
from benchmarks.soak.kills import Kills, daemons, wait_back
from benchmarks.soak.pool import Pool
from benchmarks.soak.samples import MIB, Sample, Trend, fit, folder_bytes, sample, settled
from benchmarks.soak.work import SIZE, Work

DAEMONS = ("supervisor", "server", "node", "helper", "proxy", "resolver", "lxcfs")
SAMPLE_S = 5.0
KILLED_SHARE = 0.25
JUDGED_SHARE = 1 / 3
GROWTH_LIMIT_BYTES = 4 * MIB
"""Of each daemon's fitted line over the judged third."""
DESCRIPTOR_LIMIT = 8
DISK_LIMIT_BYTES = 32 * MIB
KEPT = ("server", "logs", "node/journal.db")
"""Kept by design: rows and records until their retention ends, and logs."""


@dataclass(slots=True)
class Soak:
    stack: Stack
    duration_s: float
    workers: int
    kill_every_s: float
    seed: int
    say: Callable[[str], None]
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    kills: Kills | None = None
    work: Work | None = None

    def run(self) -> dict[str, Any]:
        """The report. Raises nothing for what it finds wrong: that is in `wrong`."""
        stack = self.stack
        self._warm_up()
        before = settled_snapshot(stack.scope)
        disk_before = folder_bytes(stack.data_dir, KEPT)
        pool = Pool(stack)
        keeper = stack.sandbox(**SIZE | {"lifetime": f"{int(self.duration_s) + 600}s"})
        ticking = keeper.start("n=0; while sleep 1; do n=$((n+1)); echo $n; done")
        self.work = Work(stack, workers=self.workers, seed=self.seed)
        self.kills = Kills(stack, every_s=self.kill_every_s, until_s=self.duration_s * KILLED_SHARE, seed=self.seed)
        self.work.start()
        self.kills.start()
        try:
            self._watch()
        finally:
            self.kills.stop()
            self.work.stop()
        self.wrong += self.work.wrong
        self._check_keeper(keeper, ticking)
        keeper.delete()
        self._delete_unseen()
        claims = pool.end()
        self._check_left(before, disk_before)
        return self._report(disk_before) | {"pool": claims}

    # --- inside -----------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """What daemons open once and keep is open before the first look."""
        warm = Work(self.stack, workers=self.workers, seed=self.seed + 1000)
        warm.calm = True
        warm.start()
        time.sleep(3)  # of work
        warm.stop()
        self.wrong += warm.wrong
        deadline = time.monotonic() + 20
        while any(self.stack.data.sandboxes_dir.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _watch(self) -> None:
        assert self.work is not None and self.kills is not None
        began, minute = time.monotonic(), 0
        while (at_s := time.monotonic() - began) < self.duration_s:
            if not self.work.calm and not self.kills.is_alive():
                wait_back(self.stack)
                self.work.calm = True
            for name, process in daemons(self.stack).items():
                if (one := sample(process.pid, at_s)) is not None:
                    self.samples[name].append(one)
            if at_s >= 60 * (minute + 1):
                minute += 1
                self.say(self._line(minute))
            time.sleep(SAMPLE_S)  # the time between two samples
        if self.kills.failure:
            self.wrong.append(f"killing: {self.kills.failure}")

    def _line(self, minute: int) -> str:
        assert self.work is not None and self.kills is not None
        held = []
        for name in DAEMONS:
            if self.samples[name]:
                one = self.samples[name][-1]
                held.append(f"{name} {one.pss_bytes / MIB:.1f} MiB {one.descriptors} fd")
        done, killed = sum(self.work.done.values()), sum(self.kills.done.values())
        refused = sum(self.work.refused.values())
        return f"{minute:3d} min: {done} done, {refused} refused, {killed} kills; {', '.join(held)}"

    def _check_keeper(self, keeper: Any, ticking: Any) -> None:
        """The sandbox that lived through all of it still runs the same program, and every line of it is there."""
        state = ticking.status().state
        lines = "".join(chunk.text for chunk in ticking.output(follow=False)).split()
        if state != "running" or lines != [str(number) for number in range(1, len(lines) + 1)]:
            self.wrong.append(f"the sandbox that lived through it: {state}, {len(lines)} lines")
        if len(lines) < self.duration_s * 0.8:
            self.wrong.append(f"its program wrote {len(lines)} lines in {self.duration_s:g} s")

    def _delete_unseen(self) -> None:
        """Sandboxes whose create was cut off from its client: nobody holds them, and their lifetime is not over."""
        unseen = list(Sandbox.list(api_url=self.stack.api_url, api_key=self.stack.api_key))
        for box in unseen:
            box.delete()
        if len(unseen) > self.work.refused.total():  # type: ignore[union-attr]
            self.wrong.append(f"{len(unseen)} sandboxes that nobody deleted")

    def _check_left(self, before: Resources, disk_before: int) -> None:
        try:
            assert_no_leak(before, deadline_s=15, late=True)
        except LeakFound as error:
            self.wrong.append(str(error))
        grown = folder_bytes(self.stack.data_dir, KEPT) - disk_before
        if grown > DISK_LIMIT_BYTES:
            self.wrong.append(f"the data folder has grown by {grown / MIB:.1f} MiB beside what is kept by design")

    def _report(self, disk_before: int) -> dict[str, Any]:
        assert self.work is not None and self.kills is not None
        daemons: dict[str, Any] = {}
        for name in DAEMONS:
            judged = settled(self.samples[name], self.duration_s * (1 - JUDGED_SHARE))
            if len(judged) < 3:
                self.wrong.append(f"{name}: {len(judged)} samples of one process in the judged time")
                continue
            pss = fit([(one.at_s, one.pss_bytes) for one in judged])
            memory = fit([(one.at_s, one.anon_bytes) for one in judged])
            descriptors = fit([(one.at_s, one.descriptors) for one in judged])
            if memory.growth > GROWTH_LIMIT_BYTES:
                self.wrong.append(f"{name} has grown by {memory.growth / MIB:.1f} MiB in {memory.window_s:.0f} s")
            if descriptors.growth > DESCRIPTOR_LIMIT:
                self.wrong.append(f"{name} has {descriptors.growth:.0f} more descriptors")
            daemons[name] = {"pss": _plain(pss), "anon": _plain(memory), "descriptors": _plain(descriptors)}
        data = self.stack.data
        return {
            "taken_at": now(),
            "minutes": round(self.duration_s / 60, 2),
            "workers": self.workers,
            "machine": machine.facts(self.stack.data_dir),
            "done": dict(self.work.done),
            "refused": dict(self.work.refused),
            "kills": dict(self.kills.done),
            "daemons": daemons,
            "disk": {
                "grown_bytes": folder_bytes(self.stack.data_dir, KEPT) - disk_before,
                "server_bytes": folder_bytes(data.server_dir),
                "logs_bytes": folder_bytes(data.logs_dir),
            },
            "wrong": self.wrong,
        }


def _plain(trend: Trend) -> dict[str, float]:
    return {name: round(value, 1) for name, value in asdict(trend).items()} | {
        "per_hour": round(trend.growth_per_hour, 1)
    }


def table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['minutes']:g} minutes, {report['workers']} workers: "
        + ", ".join(f"{count} {kind}" for kind, count in sorted(report["done"].items())),
        f"creates from the pool: {report['pool']['hits']}; cold: "
        + (", ".join(f"{n} {why}" for why, n in report["pool"]["misses"].items() if n) or "none")
        + " (counted since the node's last start)",
        "kills: " + (", ".join(f"{count} of {who}" for who, count in sorted(report["kills"].items())) or "none"),
        "refused meanwhile: " + (", ".join(f"{n} {code}" for code, n in sorted(report["refused"].items())) or "none"),
        f"{'':12}{'PSS from':>12}{'to':>10}{'anonymous':>12}{'to':>10}{'per hour':>12}{'descriptors':>14}"
        "   (last third, fitted)",
    ]
    for name, found in report["daemons"].items():
        pss, anon, held = found["pss"], found["anon"], found["descriptors"]
        lines.append(
            f"{name:12}{pss['first'] / MIB:8.1f} MiB{pss['last'] / MIB:6.1f} MiB"
            f"{anon['first'] / MIB:8.1f} MiB{anon['last'] / MIB:6.1f} MiB{anon['per_hour'] / MIB:+8.1f} MiB"
            f"{held['first']:10.0f} to {held['last']:.0f}"
        )
    disk = report["disk"]
    lines.append(
        f"data folder {disk['grown_bytes'] / MIB:+.1f} MiB; kept by design: "
        f"server {disk['server_bytes'] / MIB:.1f} MiB, logs {disk['logs_bytes'] / MIB:.1f} MiB"
    )
    lines += [f"WRONG: {text}" for text in report["wrong"][:20]] or ["nothing wrong, nothing left"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES", "30")))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kill-every", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the report as JSON")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with Stack.start() as stack:
        soak = Soak(
            stack,
            duration_s=arguments.minutes * 60,
            workers=arguments.workers,
            kill_every_s=arguments.kill_every,
            seed=arguments.seed,
            say=lambda line: print(line, flush=True),
        )
        report = soak.run()
        if report["wrong"]:
            print(stack.logs(), file=sys.stderr)
    print(table(report))
    if arguments.save:
        arguments.save.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
