"""Fifty kills at moments that nobody chose, while several clients create, delete, run commands and write files."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bellglass import Sandbox
from bellglass.errors import BellglassError
from bellglass.supervise.control import read_record
from tests.functional.crash_rig import SMALL, Rig, new_name, rig
from tests.functional.waiting import wait_until

KILLS = 50
LONGEST_PAUSE_S = 0.3
PATIENCE_S = 240.0
"""On a busy machine a daemon may be killed again before a client's turn comes."""
DAEMONS = ("server", "node", "helper")
SUPERVISOR_KILLS = (17, 38)
"""At these all die, the supervisor too, and `bellglass up` has to find its way."""


class Clients:
    """Threads that work until `stop`, and keep account of every call: `done` answered, `unknown` failed."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.seed = seed
        self.boxes = [rig.stack.sandbox(**SMALL) for _ in range(2)]
        self.commands: dict[tuple[int, int], set[str]] = {}
        self.unknown_commands: dict[tuple[int, int], set[str]] = {}
        self.files: dict[str, str] = {}
        self.unknown_files: dict[str, set[str]] = {}
        self.lives = 0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        works: list[Callable[[], None]] = [self._write, self._live]
        works += [lambda b=b, t=t: self._execute(b, t) for b in range(len(self.boxes)) for t in range(2)]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a client hangs"
        if self.failure is not None:
            raise self.failure

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # shown by `stop`
            self.failure = error

    def _own(self, box: Any) -> Any:
        return Sandbox.connect(box.id, api_url=self.rig.stack.api_url, api_key=self.rig.stack.api_key)

    def _execute(self, index: int, thread: int) -> None:
        """Each command leaves a line of its own, so that running twice or not at all shows."""
        box, where = self._own(self.boxes[index]), (index, thread)
        done, unknown = self.commands.setdefault(where, set()), self.unknown_commands.setdefault(where, set())
        while not self._stop.is_set():
            number = str(len(done) + len(unknown))
            try:
                result = box.exec(f"echo {number} >> lines-{thread}; seq 1 3000; echo {number}")
            except BellglassError as error:
                assert error.status >= 500 or error.retryable, error
                unknown.add(number)
                continue
            assert result.exit_code == 0
            assert result.stdout == "".join(f"{i}\n" for i in range(1, 3001)) + f"{number}\n"
            done.add(number)
        box.close()

    def _write(self) -> None:
        box, numbers = self._own(self.boxes[0]), random.Random(self.seed)
        while not self._stop.is_set():
            name, data = f"file-{numbers.randrange(5)}", numbers.randbytes(numbers.randrange(1, 400_000))
            digest = hashlib.sha256(data).hexdigest()
            try:
                box.files.write_bytes(f"written/{name}", data)
            except BellglassError as error:
                assert error.status >= 500 or error.retryable, error
                self.unknown_files.setdefault(name, set()).add(digest)
                continue
            self.files[name] = digest
            self.unknown_files.pop(name, None)  # what was before is replaced for certain
        box.close()

    def _live(self) -> None:
        """A sandbox's whole life, by a client that asks again until it knows."""
        while not self._stop.is_set():
            body = {"template": "base", "name": new_name(), **SMALL}
            key = {"Idempotency-Key": new_name()}
            made = self.rig.insist("POST", "/v1/sandboxes", json=body, headers=key, seconds=PATIENCE_S)
            if made.status != 201:  # it could not be; then its row says so, and nothing else of it is left
                assert made.body["error"]["code"] in ("sandbox_failed", "internal"), made
                continue
            where = f"/v1/sandboxes/{made.body['id']}"
            assert self.rig.insist("DELETE", where, seconds=PATIENCE_S).status == 204
            self.lives += 1

    # --- afterwards --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Finished calls stand, and those of unknown outcome were done once or not at all."""
        for (index, thread), done in self.commands.items():
            lines = self.boxes[index].files.read_text(f"lines-{thread}").split()
            assert len(lines) == len(set(lines)), "a command ran twice"
            assert done <= set(lines) <= done | self.unknown_commands[index, thread]
            assert done, "nobody got anything done"
        for name, digest in self.files.items():
            found = hashlib.sha256(self.boxes[0].files.read_bytes(f"written/{name}")).hexdigest()
            assert found in {digest, *self.unknown_files.get(name, ())}
        names = {entry.name for entry in self.boxes[0].files.list("written")}
        assert set(self.files) <= names <= set(self.files) | set(self.unknown_files), "a temporary file is left"
        assert self.files and self.lives
        for box in self.boxes:
            box.delete()


@pytest.mark.timeout(600)
def test_fifty_kills_under_load() -> None:
    seed = int(os.environ.get("BELLGLASS_TEST_SEED") or random.SystemRandom().randrange(10**9))
    print(f"BELLGLASS_TEST_SEED={seed}")
    chance = random.Random(seed)
    with rig() as crashes:
        clients = Clients(crashes, seed)
        clients.start()
        killed: list[tuple[str, ...]] = []
        try:
            for number in range(KILLS):
                wait_until(lambda: all(alive(crashes, name) for name in DAEMONS), 30, "it does not come back")
                time.sleep(chance.uniform(0, LONGEST_PAUSE_S))
                if number in SUPERVISOR_KILLS:
                    crashes.stack.kill("supervisor", *DAEMONS)
                    crashes.stack.up(port=int(crashes.stack.api_url.rpartition(":")[2]))
                    continue
                names = DAEMONS if chance.random() < 0.1 else (chance.choice(DAEMONS),)
                killed.append(names)
                crashes.stack.kill(*names)
        finally:
            clients.stop()
        assert len(killed) + len(SUPERVISOR_KILLS) == KILLS
        wait_until(crashes.serves, 30, "the API does not serve again")
        crashes.agreed()
        clients.check()
        done = sum(map(len, clients.commands.values()))
        unknown = sum(map(len, clients.unknown_commands.values()))
        print(f"{done} commands done, {unknown} unknown; {clients.lives} sandboxes lived")


def alive(crashes: Rig, daemon: str) -> bool:
    """A record names a daemon once it is ready."""
    record = read_record(crashes.stack.data)
    return record is not None and record.alive(daemon)
