"""Networks through the public API: what a change costs and lets through under traffic, and what one costs a create.

A whole installation in a private world. A program inside talks to an allowed address without pause and keeps trying a
forbidden one; a sniffer in the world notes each packet for that one. Between the answer to the PUT that forbids it and
the next one there may be none. The traffic's counts and the sniffer are those of `egress-policy`.
"""

from __future__ import annotations

import json
import time

from bellglass import Network, Rule
from bellglass.testing.stack import Stack
from bellglass.testing.world import ADDRESSES, World
from benchmarks.bench import Bench
from benchmarks.egress import ECHO, SNIFFER, TRAFFIC, outcome, program
from benchmarks.measure import Bound, Row, quiet_collector, stopwatch, summarize, timed

ALLOWED, FORBIDDEN = ADDRESSES[1], ADDRESSES[2]
TIGHT = Network(allow=[Rule(cidr=f"{ALLOWED}/32", ports=[22])])
LOOSE = Network(allow=[Rule(cidr=f"{address}/32", ports=[22]) for address in (ALLOWED, FORBIDDEN)])
RULES = Network(allow=[f"n{number}.a.test:443" for number in range(20)])
WHO = "bellglass, sync SDK"
PAUSE_S = 0.003
CREATE_BOUND_MS = 15.0


def measure(bench: Bench) -> list[Row]:
    with World() as world, world.inside(), Stack.start(settings=world.settings()) as stack, quiet_collector():
        with program(world.internet, ECHO, ALLOWED, FORBIDDEN):
            changes = changing(world, stack, bench.times(1000, 100), 10_000 if not bench.quick else 100)
        return [*changes, *creating(stack, bench.times(50, 5))]


def changing(world: World, stack: Stack, changes: int, enough: int) -> list[Row]:
    times: list[float] = []
    windows: list[tuple[float, float]] = []
    with stack.sandbox("base", network=LOOSE) as box, program(world.internet, SNIFFER, FORBIDDEN) as sniffer:
        traffic = box.start(["python3", "-c", TRAFFIC, ALLOWED, FORBIDDEN], stdin_open=True)
        next(traffic.output())  # ready
        for _ in range(changes // 2):
            times.append(timed(lambda: box.network.set(TIGHT)))
            tight = time.time()
            time.sleep(PAUSE_S)
            windows.append((tight, time.time()))
            times.append(timed(lambda: box.network.set(LOOSE)))
            time.sleep(PAUSE_S)
        traffic.close_stdin()
        counts = json.loads(traffic.wait().stdout.splitlines()[-1])
        seen = outcome(sniffer)
    leaked = sum(any(first <= at <= last for first, last in windows) for at in seen)
    if len(seen) == leaked:
        raise AssertionError("the sniffer heard nothing while the address was allowed")
    return [
        Row("network-api", "change of a network, until answered, under traffic", WHO, "ms", times),
        Row("network-api", "packets out of policy after the answer", WHO, "", [leaked], (Bound("max", 0.0),)),
        Row("network-api", "packets for the address while it was allowed", WHO, "", [len(seen) - leaked]),
        Row("network-api", "allowed round trips meanwhile", WHO, "", [counts["allowed"]],
            (Bound("min", enough, at_least=True),)),
        Row("network-api", "allowed connections that broke", WHO, "", [counts["broken"]], (Bound("max", 0.0),)),
    ]  # fmt: skip


def creating(stack: Stack, times: int) -> list[Row]:
    """In turns. Denied it is what every sandbox has: namespaces, rules and listeners, and nothing in its policy. Those
    the helper makes while the create waits; proxy and resolver are told while the machine starts."""
    samples: dict[str, list[float]] = {"denied": [], "with 20 rules": []}
    for number in range(times + 1):
        for name, network in (("denied", "deny"), ("with 20 rules", RULES)):
            with stopwatch() as elapsed_ms:
                box = stack.sandbox("base", network=network)
                took = elapsed_ms()
            box.delete()
            if number:
                samples[name].append(took)
    outcomes = [json.loads(line) for line in (stack.data.logs_dir / "helper.log").read_text().splitlines()]
    steps = [outcome["profile_ms"]["network"] for outcome in outcomes if "profile_ms" in outcome]
    added = [took - summarize(samples["denied"]).p50 for took in samples["with 20 rules"]]
    whole = [made + more for made, more in zip(steps[-2 * times + 1 :: 2], added, strict=True)]
    return [
        *(Row("network-api", f"create, network {name}", WHO, "ms", found) for name, found in samples.items()),
        Row("network-api", "of it: namespaces, rules and listeners, by the helper", "node", "ms", steps[-2 * times :],
            (Bound("p50", CREATE_BOUND_MS),)),
        Row("network-api", "what the rules add to it", WHO, "ms", added, (Bound("p50", CREATE_BOUND_MS),)),
        Row("network-api", "both: what a network adds to a create", WHO, "ms", whole, (Bound("p50", CREATE_BOUND_MS),)),
    ]  # fmt: skip
