"""What a neighbour's calls notice of a sandbox that downloads through the proxy at 300 MB/s, with 50 connections.

An installation of its own in a private world. The downloads are held to that rate: without a limit they would take
what the processors have, from whoever else wants it, and at both ends of the wire.
"""

from __future__ import annotations

import json
from contextlib import closing

from bellglass import Network, Rule
from bellglass.testing.stack import Stack
from bellglass.testing.world import ADDRESSES, World
from benchmarks.bench import Bench
from benchmarks.egress import DOWNLOADS, STREAMS, program
from benchmarks.measure import Bound, Row, quiet_collector, summarize, timed

RATE, CONNECTIONS, PORT = 300, 50, 5000
CALLS = 400
"""In each half of a round, in half of the time for which the downloads go on: of 150 the second slowest was p99."""
NAME = "raw.test"
WHO = "bellglass, sync SDK"


def measure(bench: Bench) -> list[Row]:
    with World() as world, world.inside(), Stack.start(settings=world.settings()) as stack:
        world.dns.zone[NAME] = [ADDRESSES[1]]
        with program(world.internet, STREAMS, ADDRESSES[1], PORT):
            return beside(stack, bench.times(5, 2), bench.times(CALLS, 60))


def beside(stack: Stack, rounds: int, times: int) -> list[Row]:
    quiet: list[float] = []
    busy: list[float] = []
    ratios: list[float] = []
    rates: list[float] = []
    network = Network(allow=[Rule(host=NAME, ports=[PORT])])
    with stack.sandbox("base", network=network) as loud, stack.sandbox("base") as neighbour, quiet_collector():

        def call() -> None:
            if not neighbour.exec(["/bin/true"]).ok:
                raise AssertionError("/bin/true failed")

        for _ in range(20):
            call()
        for _ in range(rounds):
            alone = [timed(call) for _ in range(times)]
            argv = ["python3", "-c", DOWNLOADS, NAME, str(PORT), str(CONNECTIONS), "4", str(RATE)]
            downloads = loud.start(argv)
            with closing(downloads.output()) as output:
                next(output)  # ready
                disturbed = [timed(call) for _ in range(times)]
            rates.append(float(json.loads(downloads.wait().stdout.split()[-1])))
            quiet += alone
            busy += disturbed
            ratios.append(summarize(disturbed).p99 / summarize(alone).p99)
    return [
        Row("egress-beside", "downloads of a sandbox through the proxy", WHO, "MB/s", rates),
        Row("egress-beside", "exec of /bin/true beside it, before", WHO, "ms", quiet),
        Row("egress-beside", "exec of /bin/true beside it, meanwhile", WHO, "ms", busy),
        Row("egress-beside", "p99 meanwhile over p99 before", WHO, "x", ratios, (Bound("p50", 2.0),)),
    ]
