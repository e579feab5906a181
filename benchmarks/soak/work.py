"""The mixed work of a soak: each worker makes a sandbox, does things in it whose outcome is checked, deletes it."""

from __future__ import annotations

import hashlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bellglass.errors import BellglassError, NotFound
from bellglass.testing.stack import Stack

SIZE: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "256MiB", "pids": 64, "lifetime": "10m"}
MIB = 1 << 20
DELETE_WITHIN_S = 120.0


class WrongOutcome(AssertionError):
    """A call answered, and what it answered is not true."""


class Work:
    """`workers` threads at it until `stop`. `done` counts by kind; `refused` counts the typed errors, by phase."""

    def __init__(self, stack: Stack, *, workers: int, seed: int) -> None:
        self._stack = stack
        self._seed = seed
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"soak-{number}", daemon=True)
            for number in range(workers)
        ]
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.calm = False
        """Nothing is killed: from now on every error is wrong."""
        self.wrong: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """After what each is at. Raises RuntimeError for one that does not come back."""
        self._stopping.set()
        deadline = time.monotonic() + DELETE_WITHIN_S + 60
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                raise RuntimeError(f"{thread.name} hangs")

    # --- inside -----------------------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        choose = random.Random(self._seed + number)
        while not self._stopping.is_set():
            began_calm = self.calm
            try:
                self._one_sandbox(choose)
            except BellglassError as error:
                self._refuse(error, began_calm=began_calm)
            except Exception as error:  # noqa: BLE001 - told at the end, and the other workers go on
                with self._lock:
                    self.wrong.append(f"{type(error).__name__}: {error}"[:500])

    def _refuse(self, error: BellglassError, *, began_calm: bool) -> None:
        with self._lock:
            self.refused[error.code] += 1
            if began_calm:
                self.wrong.append(f"while nothing was killed: {error.code}: {error}"[:500])

    def _one_sandbox(self, choose: random.Random) -> None:
        box = self._stack.sandbox(**SIZE)
        self._count("create")
        try:
            for _ in range(choose.randrange(1, 6)):
                if self._stopping.is_set():
                    return
                kind: Callable[[Any, random.Random], None] = choose.choice(
                    [self._execute, self._execute, self._file, self._folder, self._follow, self._long]
                )
                kind(box, choose)
                self._count(kind.__name__.strip("_"))
        finally:
            self._delete(box)

    def _delete(self, box: Any) -> None:
        """Until the server has said so: a killed daemon is back in a moment."""
        deadline = time.monotonic() + DELETE_WITHIN_S
        while True:
            try:
                box.delete()
                break
            except NotFound:
                box.close()
                break
            except BellglassError as error:
                if time.monotonic() > deadline:
                    raise WrongOutcome(f"{box.id} can't be deleted: {error}") from error
                self._refuse(error, began_calm=self.calm)
                self._stopping.wait(0.2)
        self._count("delete")

    def _count(self, kind: str) -> None:
        with self._lock:
            self.done[kind] += 1

    def _execute(self, box: Any, choose: random.Random) -> None:
        number = choose.randrange(10**9)
        result = box.exec(f"echo {number}; echo e >&2; exit {number % 7}")
        _check((result.stdout, result.stderr, result.exit_code), (f"{number}\n", "e\n", number % 7))

    def _file(self, box: Any, choose: random.Random) -> None:
        data = choose.randbytes(choose.randrange(2 * MIB))
        box.files.write_bytes("data", data)
        _check(box.exec(["sha256sum", "data"]).stdout.split()[0], hashlib.sha256(data).hexdigest())
        _check(hashlib.sha256(box.files.read_bytes("data")).digest(), hashlib.sha256(data).digest())

    def _folder(self, box: Any, choose: random.Random) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            up, down = Path(scratch, "up"), Path(scratch, "down")
            up.mkdir()
            for index in range(20):
                (up / f"f{index}").write_bytes(choose.randbytes(choose.randrange(5000)))
            box.files.upload_dir(up, "folder")
            box.files.download_dir("folder", down)
            for file in up.iterdir():
                _check((down / file.name).read_bytes(), file.read_bytes())
            box.files.remove("folder", recursive=True)

    def _follow(self, box: Any, choose: random.Random) -> None:
        count = choose.randrange(1000, 30_000)
        text = "".join(chunk.text for chunk in box.start(["seq", str(count)]).output())
        _check(text, "".join(f"{number}\n" for number in range(1, count + 1)))

    def _long(self, box: Any, choose: random.Random) -> None:
        """Long enough that a daemon may die under it."""
        result = box.exec("for i in 1 2 3 4; do echo $i; sleep 0.5; done")
        _check(result.stdout, "1\n2\n3\n4\n")


def _check(found: Any, expected: Any) -> None:
    if found != expected:
        raise WrongOutcome(f"{str(found)[:200]!r} where {str(expected)[:200]!r} was expected")
