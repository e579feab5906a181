"""A policy that changes without pause under traffic: what still leaves once the change has been answered, and how long
a stream lives that the new policy refuses.

Every second policy forbids an address that a program inside dials and writes to without pause; a sniffer in the world
notes each packet that comes for it. Between the answer to the tightening and the next loosening there may be none.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bellglass.testing.egress import WORLD, Rig
from benchmarks.bench import Bench
from benchmarks.egress import ECHO, SNIFFER, TRAFFIC, outcome, program
from benchmarks.measure import Bound, Row

ALLOWED, FORBIDDEN = WORLD + "10", WORLD + "11"
LOOSE = ({"cidr": f"{ALLOWED}/32", "ports": [22]}, {"cidr": f"{FORBIDDEN}/32", "ports": [22]})
TIGHT = LOOSE[:1]
WHO = "proxy and resolver"


class Flips(NamedTuple):
    changes_ms: list[float]
    leaked: int
    """Packets for the forbidden address while it was."""
    loose: int
    """Packets for it while it was allowed: that the sniffer hears."""
    allowed: int
    """Round trips to the allowed one meanwhile."""
    broken: int
    """Connections to the allowed one that ended."""


def measure(bench: Bench) -> list[Row]:
    with Rig() as rig:
        rig.attach("sb1", *LOOSE)
        with program(rig.world, ECHO, ALLOWED, FORBIDDEN):
            flips = flip(rig, bench.times(1000, 200))
            cuts = cut(rig, bench.times(100, 20))
    if not flips.loose:
        raise AssertionError("the sniffer heard nothing while the address was allowed")
    some = Bound("min", 10_000 if not bench.quick else 100, at_least=True)
    return [
        Row("egress-policy", "change of a policy, until answered, under traffic", WHO, "ms", flips.changes_ms),
        Row("egress-policy", "packets out of policy after the answer", WHO, "", [flips.leaked], (Bound("max", 0.0),)),
        Row("egress-policy", "allowed round trips meanwhile", WHO, "", [flips.allowed], (some,)),
        Row("egress-policy", "allowed connections that broke", WHO, "", [flips.broken], (Bound("max", 0.0),)),
        Row("egress-policy", "from the change to a refused stream's end", WHO, "ms", cuts, (Bound("max", 100.0),)),
    ]  # fmt: skip


def flip(rig: Rig, changes: int) -> Flips:
    """As many tightenings and loosenings, with an echo server at both addresses."""
    inside = rig.sandboxes["sb1"].inner
    windows: list[tuple[float, float]] = []
    times: list[float] = []
    rig.policy("sb1", *LOOSE)
    with program(rig.world, SNIFFER, FORBIDDEN) as sniffer, program(inside, TRAFFIC, ALLOWED, FORBIDDEN) as traffic:
        for _ in range(changes // 2):
            began = time.perf_counter()
            rig.policy("sb1", *TIGHT)
            times.append((time.perf_counter() - began) * 1000)
            tight = time.time()
            time.sleep(0.003)
            windows.append((tight, time.time()))
            began = time.perf_counter()
            rig.policy("sb1", *LOOSE)
            times.append((time.perf_counter() - began) * 1000)
            time.sleep(0.003)
        counts = outcome(traffic)
        seen = outcome(sniffer)
    leaked = sum(any(first <= at <= last for first, last in windows) for at in seen)
    return Flips(times, leaked, len(seen) - leaked, counts["allowed"], counts["broken"])


def cut(rig: Rig, times: int) -> list[float]:
    """Milliseconds from just before the change until the client of an open stream is reset."""
    samples = []
    for _ in range(times):
        rig.policy("sb1", *LOOSE)
        with rig.sandboxes["sb1"].dial(FORBIDDEN, 22) as client:
            client.sendall(b"x")
            client.recv(1)
            began = time.perf_counter()
            rig.policy("sb1", *TIGHT)
            try:
                if client.recv(1) == b"":
                    raise AssertionError("the stream came to an orderly end, not to a reset")
            except ConnectionResetError:
                samples.append((time.perf_counter() - began) * 1000)
    return samples
