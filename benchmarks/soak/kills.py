"""Daemons killed at random moments, with SIGKILL: one of them, or all at once."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter

import httpx2

from bellglass.supervise.control import read_record
from bellglass.supervise.processes import ProcessId
from bellglass.testing.stack import Stack

VICTIMS = (("server",), ("node",), ("helper",), ("proxy",), ("resolver",), ("server", "node", "helper"))
BACK_WITHIN_S = 60.0


class Kills(threading.Thread):
    """Kills about every `every_s` seconds, each time once all are back, until `until_s` have passed since the start."""

    def __init__(self, stack: Stack, *, every_s: float, until_s: float, seed: int) -> None:
        super().__init__(name="soak-kills", daemon=True)
        self._stack = stack
        self._every_s = every_s
        self._end = time.monotonic() + until_s
        self._choose = random.Random(seed)
        self._stopping = threading.Event()
        self.done: Counter[str] = Counter()
        self.failure: str | None = None

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._choose.uniform(0.2, 1.8) * self._every_s):
                if time.monotonic() > self._end:
                    break
                victims = self._choose.choice(VICTIMS)
                running = daemons(self._stack)
                for name in victims:
                    running[name].send(signal.SIGKILL)
                self.done["+".join(victims)] += 1
                wait_back(self._stack)
        except Exception as error:  # noqa: BLE001 - the soak tells it
            self.failure = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._stopping.set()
        self.join(BACK_WITHIN_S + 30)


def daemons(stack: Stack) -> dict[str, ProcessId]:
    """By name, as the supervisor has written them down; `bellglass status` would ask them."""
    record = read_record(stack.data)
    return dict(record.processes) if record is not None else {}


def wait_back(stack: Stack) -> None:
    """Until the server answers and reaches its node. Raises TimeoutError."""
    deadline = time.monotonic() + BACK_WITHIN_S
    while True:
        try:
            if httpx2.get(f"{stack.api_url}/v1/health", trust_env=False).json()["node"] == "up":
                return
        except httpx2.TransportError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"the daemons are not back after {BACK_WITHIN_S:g} s")
        time.sleep(0.05)
