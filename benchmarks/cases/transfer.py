"""A big file into a sandbox and back: speed, equal bytes, and what it costs in memory.

Up ends when the node has answered, which is after the sandbox's kernel has made the file durable on the sandbox's own
disk. Down ends when the whole file lies under its name at the client; making that copy durable too, which is the
client's disk's affair, is a row of its own. The client is a process of its own (`benchmarks.transfer`), so that its
memory is its own. What the host's disk does alone with as many bytes is measured in turns with them.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.measure import Bound, Row, stopwatch
from benchmarks.memory import MIB, Growth, agent_pids

OURS = "bellglass, sync SDK"
BUFFERED, DIRECT = "this disk alone, buffered, then fsync", "this disk alone, O_DIRECT and fsync"
SPEED = (Bound("p50", 250.0, at_least=True),)
MEMORY = (Bound("max", 64.0),)
PIECE = 4 * MIB
CLIENT_TIMEOUT_S = 300.0
DAEMONS = ("server", "node", "helper")


class Moved(NamedTuple):
    megabytes_per_s: float
    fsynced_megabytes_per_s: float
    growth_bytes: dict[str, int]


def measure(bench: Bench) -> list[Row]:
    size_mib = bench.times(1024, 256)
    trips = RoundTrips(bench)
    plain: dict[str, list[float]] = {BUFFERED: [], DIRECT: []}
    with trips.file(size_mib) as source:
        for _ in range(bench.times(3, 1)):
            trips.go(source)
            for how, flags in ((BUFFERED, 0), (DIRECT, os.O_DIRECT)):
                plain[how].append(_plain_write(source.path, bench.scratch / "plain", flags))
                (bench.scratch / "plain").unlink()
    rows = [Row("transfer", f"{size_mib} MiB written", how, "MB/s", samples) for how, samples in plain.items()]
    return [*trips.speed_rows("transfer", size_mib), *rows, *trips.memory_rows("transfer")]


@dataclass(frozen=True, slots=True)
class Source:
    path: Path
    digest: str


class RoundTrips:
    """Files up and down, each in a sandbox of its own; what they reached, and by how much processes grew."""

    def __init__(self, bench: Bench, *, streamed: bool = False) -> None:
        """With `streamed`, each file is read once more as a stream that nobody keeps."""
        self.up: list[float] = []
        self.down: list[float] = []
        self.streamed: list[float] = []
        self.fsynced: list[float] = []
        self.grown: dict[str, list[float]] = {name: [] for name in ("client", *DAEMONS, "agent")}
        self._bench = bench
        self._is_streamed = streamed
        self._pids = {name: pid for name, pid in bench.stack.pids().items() if name in DAEMONS}

    @contextmanager
    def file(self, size_mib: int) -> Iterator[Source]:
        path = self._bench.scratch / f"source-{size_mib}"
        try:
            yield Source(path, _fill(path, size_mib * MIB))
        finally:
            path.unlink()

    def go(self, source: Source) -> None:
        copy = self._bench.scratch / "copy"
        with self._bench.sandbox() as box:
            up = _move(self._bench, box.id, "up", source.path, source.digest, self._pids)
            down = _move(self._bench, box.id, "down", copy, source.digest, self._pids)
            copy.unlink()
            if self._is_streamed:
                streamed = _move(self._bench, box.id, "stream", source.path, source.digest, self._pids)
                self.streamed.append(streamed.megabytes_per_s)
        self._bench.wait_reclaimed(box.id)
        self.up.append(up.megabytes_per_s)
        self.down.append(down.megabytes_per_s)
        self.fsynced.append(down.fsynced_megabytes_per_s)
        for moved in (up, down):
            for name, growth in moved.growth_bytes.items():
                self.grown[name].append(growth / MIB)

    def speed_rows(self, case: str, size_mib: int) -> list[Row]:
        rows = [
            Row(case, f"{size_mib} MiB up, durable, sha256 equal", OURS, "MB/s", self.up, SPEED),
            Row(case, f"{size_mib} MiB down, sha256 equal", OURS, "MB/s", self.down, SPEED),
            Row(case, f"{size_mib} MiB down, local copy fsynced too", OURS, "MB/s", self.fsynced),
        ]
        if self._is_streamed:
            rows.append(Row(case, f"{size_mib} MiB down as a stream, counted", OURS, "MB/s", self.streamed))
        return rows

    def memory_rows(self, case: str) -> list[Row]:
        return [
            Row(case, f"memory that the {name} grew by", OURS, "MiB", samples, MEMORY)
            for name, samples in self.grown.items()
        ]


def _move(bench: Bench, sandbox_id: str, direction: str, local: Path, digest: str, pids: dict[str, int]) -> Moved:
    with Growth(pids, agents=lambda: agent_pids(sandbox_id)) as growth:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.transfer", direction, sandbox_id, str(local)],
            stdout=subprocess.PIPE, timeout=CLIENT_TIMEOUT_S, check=True, env=os.environ | bench.stack.environment,
            cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    if direction == "stream":
        if answer["bytes"] != local.stat().st_size:
            raise AssertionError(f"{answer['bytes']} of {local.stat().st_size} bytes came")
    elif (reached := answer["sha256"] or _digest(local)) != digest:
        raise AssertionError(f"{direction}: sha256 {reached} came out of {digest}")
    growth_bytes = growth.bytes | {"client": answer["grown_bytes"]}
    megabytes = answer["bytes"] / 1e6
    return Moved(megabytes / answer["seconds"], megabytes / answer["fsynced_seconds"], growth_bytes)


def _fill(path: Path, size_bytes: int) -> str:
    """Random bytes, so that a piece at a wrong place is a wrong sha256; answers it."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(size_bytes // PIECE):
            piece = os.urandom(PIECE)
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain_write(source: Path, target: Path, flags: int) -> float:
    """MB/s of writing the bytes of `source`, which lie in the page cache, to the host's disk."""
    size_bytes = source.stat().st_size
    piece = mmap.mmap(-1, PIECE)  # O_DIRECT wants memory that begins at a page
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
    try:
        with source.open("rb", buffering=0) as reader, stopwatch() as elapsed_ms:
            while reader.readinto(piece) == PIECE:
                if os.write(descriptor, piece) != PIECE:
                    raise AssertionError(f"a short write to {target}")
            os.fsync(descriptor)
            return size_bytes / 1e3 / elapsed_ms()
    finally:
        os.close(descriptor)
        piece.close()
