"""`python -m benchmarks`: start an installation and Docker's daemon, measure case by case, print the table.

Everything that it starts lies in scratch folders and is gone afterwards. Without `--strict` a missed bound is a word in
the table and no failure: on a busy machine it says nothing; a case that can't be run always is one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bellglass.model import now
from bellglass.node.image.template import installed
from bellglass.testing.stack import PARENT_DIR, Stack
from benchmarks import hops, machine, report
from benchmarks.bench import Bench
from benchmarks.cases import CASES
from benchmarks.measure import Row
from benchmarks.peers.docker import Docker


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Bellglass's speed table, peers beside it.")
    parser.add_argument("--only", action="append", choices=list(CASES), metavar="NAME",
                        help=f"measure this one (again for more): {', '.join(CASES)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few samples: a minute, and rough")
    parser.add_argument("--no-peers", action="store_true", help="leave Docker out")
    parser.add_argument("--profile", action="store_true", help="say where the time of an execution goes")
    parser.add_argument("--save", metavar="WHAT", help="keep as results/<date>-WHAT.json and render RESULTS.md")
    parser.add_argument("--strict", action="store_true", help="a missed bound is exit code 1")
    arguments = parser.parse_args()
    if arguments.save and not re.fullmatch(r"[a-z0-9][a-z0-9-]*", arguments.save):
        parser.error(f"--save {arguments.save!r}: use lower-case letters, digits and -")
    return arguments


def main() -> int:
    arguments = parse()
    if os.geteuid() != 0:
        print("the benchmarks start the container tier, which needs root: sudo make bench", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    rows: list[Row] = []
    failed: list[str] = []
    busy: dict[str, int] = {}
    taken_at = now()[:19] + "Z"
    with ExitStack() as owned:
        scratch = Path(tempfile.mkdtemp(prefix="bellglass-bench-", dir=PARENT_DIR))
        owned.callback(shutil.rmtree, scratch)
        stack = owned.enter_context(Stack.start())
        docker = None
        if not arguments.no_peers:
            docker = owned.enter_context(Docker.start(scratch / "docker"))
            docker.import_image(_base_rootfs(stack))
        bench = Bench(stack, scratch, docker, quick=arguments.quick)
        facts = machine.facts(scratch, docker=docker.version() if docker else None)
        console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))
        for name in arguments.only or CASES:
            busy[name] = machine.busy_percent()
            begun = time.monotonic()
            try:
                rows += importlib.import_module(CASES[name]).measure(bench)
                took_s = time.monotonic() - begun
                console.print(
                    f"{name}: measured in {took_s:.0f} s; before it others used {busy[name]} % of the processors"
                )
            except Exception:  # noqa: BLE001 - the other rows are still worth having; the exit code tells
                failed.append(name)
                traceback.print_exc()
                print(stack.logs(), file=sys.stderr)
        facts["others_busy_percent"] = "/".join(map(str, busy.values()))
        if arguments.profile:
            hops.explain(bench, console)
    if rows:
        report.print_table(rows, console)
    if arguments.save and not failed:
        saved = report.save(rows, facts, taken_at, arguments.save, quick=arguments.quick)
        console.print(f"saved as {saved.relative_to(report.HERE.parent)} and in RESULTS.md")
    if failed:
        console.print(f"could not be measured: {', '.join(failed)}")
    missed = [row for row in rows if row.missed()]
    return 1 if failed or (missed and arguments.strict) else 0


def _base_rootfs(stack: Stack) -> Path:
    """The root file system that the installation gives its sandboxes, the newest, for the peer to use the same."""
    base = max((t for t in stack.status()["templates"] if t["name"] == "base"), key=lambda t: t["built_at"])
    for template in installed(Path(os.environ.get("BELLGLASS_CACHE", "/var/cache/bellglass")) / "templates"):
        if template.digest == base["digest"]:
            return template.rootfs
    raise LookupError(f"template base {base['digest']} is not in the cache folder")


if __name__ == "__main__":
    sys.exit(main())
