"""What E2B's API costs over the native one, and what a program sees that uses E2B's SDK.

`/bin/true` by the native route (frames, as the SDK asks) and by envd's Start, in turns over connections of one kind:
the difference is the façade's. Then both with 64 under way at once over 16 sandboxes. Then a program of E2B's SDK, by
the interpreter of its environment: create from a warm pool, and the first `echo hi`.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, quiet_collector, summarize
from benchmarks.peers.raw_http import Connection, request
from benchmarks.pools import warm_pool

SANDBOXES, AT_ONCE = 16, 64
SIZE = {"cpus": 1, "memory": "256MiB", "disk": "1GiB"}
NATIVE, FACADE = "native API, bare HTTP", "E2B's envd, bare HTTP"
ADDED_MS, SHARE, FIRST_MS = 1.5, 0.7, 60.0
POOL = 5
PROGRAM = """
import sys, time
from e2b import Sandbox
for _ in range(int(sys.argv[1])):
    sys.stdin.readline()
    begun = time.perf_counter()
    sandbox = Sandbox.create("base", timeout=60)
    created = time.perf_counter()
    assert sandbox.commands.run("echo hi").stdout == "hi\\n"
    ended = time.perf_counter()
    sandbox.kill()
    print((created - begun) * 1000, (ended - begun) * 1000, flush=True)
"""


def measure(bench: Bench) -> list[Row]:
    key = bench.stack.api_key
    boxes = [bench.stack.sandbox("base", **SIZE) for _ in range(SANDBOXES)]
    try:
        pairs = asyncio.run(_requests(bench, key, [box.id for box in boxes]))
        with quiet_collector():
            native, facade = asyncio.run(_one_by_one(bench, pairs[0]))
            native_rates, facade_rates = asyncio.run(_at_once(bench, pairs))
    finally:
        for box in boxes:
            box.delete()
    what, many = "exec of /bin/true", f"{AT_ONCE} parallel execs over {SANDBOXES} sandboxes"
    added = Bound("p50", summarize(native).p50 + ADDED_MS)
    share = Bound("p50", summarize(native_rates).p50 * SHARE, at_least=True)
    return [
        Row("e2b", what, NATIVE, "ms", native),
        Row("e2b", what, FACADE, "ms", facade, (added,), note=f"bound: native p50 of this run + {ADDED_MS} ms"),
        Row("e2b", many, NATIVE, "1/s", native_rates),
        Row("e2b", many, FACADE, "1/s", facade_rates, (share,), note=f"bound: {SHARE} of native of this run"),
        *_sdk(bench),
    ]


async def _requests(bench: Bench, key: str, sandbox_ids: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """For each sandbox the same command natively and by envd."""
    connection = await Connection.open(bench.stack.api_url)
    made = []
    for sandbox_id in sandbox_ids:
        asked = request("POST", f"/compat/e2b/sandboxes/{sandbox_id}/connect", {"X-API-KEY": key}, b'{"timeout":600}')
        token = json.loads(await connection.ask(asked))["envdAccessToken"]
        made.append((_native(key, sandbox_id), _start(token, sandbox_id)))
    connection.close()
    return made


def _native(key: str, sandbox_id: str) -> bytes:
    headers = {
        "Authorization": f"Bearer {key}", "Content-Type": "application/json",
        "Accept": "application/x-bellglass-frames",
    }  # fmt: skip
    return request("POST", f"/v1/sandboxes/{sandbox_id}/executions", headers, b'{"command":["/bin/true"]}')


def _start(token: str, sandbox_id: str) -> bytes:
    message = b'{"process":{"cmd":"/bin/true"},"stdin":false}'
    headers = {
        "E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token,
        "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", "Connect-Timeout-Ms": "60000",
        "Keepalive-Ping-Interval": "50",
    }  # fmt: skip
    return request("POST", "/process.Process/Start", headers, struct.pack(">BI", 0, len(message)) + message)


async def _one_by_one(bench: Bench, pair: tuple[bytes, bytes]) -> tuple[list[float], list[float]]:
    connection = await Connection.open(bench.stack.api_url)
    samples: tuple[list[float], list[float]] = ([], [])
    for count in range(bench.times(2000, 300)):
        for times, asked in zip(samples, pair, strict=True):
            begun = time.perf_counter()
            body = await connection.ask(asked)
            if count >= 20:
                times.append((time.perf_counter() - begun) * 1000)
            _check(body)
    connection.close()
    return samples


async def _at_once(bench: Bench, pairs: Sequence[tuple[bytes, bytes]]) -> tuple[list[float], list[float]]:
    connections = [await Connection.open(bench.stack.api_url) for _ in range(AT_ONCE)]
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(bench.times(7, 3)):
        for side in (0, 1):
            count = bench.times(1280, 320)
            begun = time.perf_counter()
            await _wave(connections, [pair[side] for pair in pairs], count)
            rates[side].append(count / (time.perf_counter() - begun))
    for connection in connections:
        connection.close()
    return rates


async def _wave(connections: Sequence[Connection], requests: Sequence[bytes], count: int) -> None:
    left = iter(range(count))

    async def work(connection: Connection) -> None:
        for number in left:
            _check(await connection.ask(requests[number % len(requests)]))

    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(work(connection))


def _check(body: bytes) -> None:
    if b'"exitCode":0' not in body and b'"exit_code":0' not in body:
        raise AssertionError(f"/bin/true ended with {body!r}")


def _sdk(bench: Bench) -> list[Row]:
    root = Path(__file__).parents[2]
    folder = subprocess.run(
        [root / "scripts/compat_env.sh", "e2b-2_63"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = os.environ | {
        "E2B_API_URL": f"{bench.stack.api_url}/compat/e2b", "E2B_SANDBOX_URL": bench.stack.api_url,
        "E2B_API_KEY": bench.stack.api_key, "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    times = bench.times(50, 8)
    created: list[float] = []
    answered: list[float] = []
    with warm_pool(bench, POOL) as pool:
        program = subprocess.Popen(
            [f"{folder}/bin/python", "-c", PROGRAM, str(times)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        before = sum(pool.status.misses.values())
        for _ in range(times):
            pool.wait_full()
            one, both = _next(program)
            created.append(one)
            answered.append(both)
        cold = float(sum(pool.status.misses.values()) - before)
        program.communicate()
    who = "E2B's Python SDK 2.63.0"
    bound = (Bound("p50", FIRST_MS),)
    return [
        Row("e2b", "Sandbox.create() from a warm pool", who, "ms", created[1:]),
        Row("e2b", 'Sandbox.create(), commands.run("echo hi")', who, "ms", answered[1:], bound),
        Row("e2b", "of these, those that started cold", who, "", [cold]),
    ]


def _next(program: Any) -> tuple[float, float]:
    program.stdin.write("\n")
    program.stdin.flush()
    created, both = program.stdout.readline().split()
    return float(created), float(both)
