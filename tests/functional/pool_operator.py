"""The admin's side of an installation with warm pools, and what of it lies on this machine."""

import time
from contextlib import suppress
from dataclasses import dataclass

import httpx2

from bellglass.testing.stack import Stack
from tests.conftest import SANDBOX_OPTIONS

SHAPE = {name: value for name, value in SANDBOX_OPTIONS.items() if name != "lifetime"}


@dataclass
class Operator:
    """The admin's side of the installation, and what of it lies on this machine."""

    stack: Stack

    def ask(self, method, path, status=200, **options):
        """Again while a daemon is being restarted: all of these may be repeated."""
        url, headers = f"{self.stack.api_url}{path}", {"authorization": f"Bearer {self.stack.admin_key}"}
        deadline = time.monotonic() + 30
        while True:
            with suppress(httpx2.TransportError):
                answer = httpx2.request(method, url, headers=headers, timeout=60, trust_env=False, **options)
                if answer.status_code != 503 or time.monotonic() > deadline:
                    break
            assert time.monotonic() < deadline, self.stack.logs()
            time.sleep(0.05)
        assert answer.status_code == status, answer.text
        return answer.json() if status != 204 else None

    def set(self, size, **more):
        return self.ask("PUT", "/v1/pools/base", json={"size": size, **SHAPE, **more})

    @property
    def status(self):
        return self.ask("GET", "/v1/pools/base")["status"]

    def ready(self, count, seconds=60):
        """Until there are so many, and nothing is under way."""
        deadline = time.monotonic() + seconds
        while True:
            now = self.status
            if now and now["ready"] == count and not now["filling"] and not now["draining"]:
                return now
            assert time.monotonic() < deadline, self.stack.logs()
            time.sleep(0.05)

    def members(self):
        """The ids of all machines on the disk that no project has, once those of deleted sandboxes are gone."""
        deadline = time.monotonic() + 30
        while True:
            boxes = {box.id for box in self.stack_boxes()}
            found = {path.name for path in self.stack.data.sandboxes_dir.iterdir()} - boxes
            if len(found) == self.status["ready"]:
                return found
            assert time.monotonic() < deadline, f"{found} are there, {self.status}"
            time.sleep(0.05)

    def stack_boxes(self):
        from bellglass import Sandbox

        return list(Sandbox.list(api_url=self.stack.api_url, api_key=self.stack.api_key))

    def gone(self, ids, seconds=30):
        deadline = time.monotonic() + seconds
        while ids & {path.name for path in self.stack.data.sandboxes_dir.iterdir()}:
            assert time.monotonic() < deadline, f"not given back: {ids}"
            time.sleep(0.05)

    def only(self, count, seconds=30):
        deadline = time.monotonic() + seconds
        while len(left := list(self.stack.data.sandboxes_dir.iterdir())) != count:
            assert time.monotonic() < deadline, f"something is left: {left}"
            time.sleep(0.05)
