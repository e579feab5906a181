"""What the crash tests stand on: an installation whose daemons can be killed at a fault point, and a bystander sandbox
that must not notice.

After each death `settled` waits until the API serves again and then compares: the bystander's processes are the same
ones, what was finished before is as it was, and API, journal and kernel say the same of every sandbox.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx2

from bellglass import Sandbox, faultpoints, ids
from bellglass.errors import BellglassError
from bellglass.node.helper import cgroup
from bellglass.supervise.control import ask_node, read_record
from bellglass.testing import kernel
from bellglass.testing.daemons import await_grown
from bellglass.testing.leaks import leases
from bellglass.testing.stack import Stack
from tests.functional.own import own_installation
from tests.functional.waiting import wait_until

SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "256MiB", "lifetime": "30m"}
BACK_S = 30.0
SETTLED_S = 30.0


class Answer(NamedTuple):
    """`status` 0: the connection broke before there was one."""

    status: int
    body: Any


class Rig:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.faults = stack.data.faults_dir
        self.installation = stack.scope.installation
        self._others: threading.Thread | None = None
        self._lab: Sandbox | None = None
        self.client = httpx2.Client(
            base_url=stack.api_url,
            headers={"Authorization": f"Bearer {stack.api_key}"},
            timeout=60,
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
        )
        self.box = stack.sandbox(**SMALL)
        self.job = self.box.start(["sleep", "100000"])
        self.done = self.box.exec(["sh", "-c", "printf kept; exit 3"])
        self.box.files.write_text("kept", "from before")
        # The command before may still be on its way out.
        wait_until(lambda: len(self.processes(self.box.id)) == 2, 10, "the bystander does not come to rest")
        self.before = self.processes(self.box.id)

    @property
    def lab(self) -> Sandbox:
        """Another one, made when it is first asked for: with kernels, and ports that are published when visited."""
        if self._lab is None:
            self._lab = self.stack.sandbox("interpreter", **{**SMALL, "memory": "1GiB"}, auto_publish="public")
        return self._lab

    # --- asking ------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, **options: Any) -> Answer:
        try:
            answer = self.client.request(method, path, **options)
        except httpx2.TransportError:
            return Answer(0, None)
        json = answer.headers.get("content-type", "").startswith("application/json") and answer.content
        return Answer(answer.status_code, answer.json() if json else answer.content)

    def insist(self, method: str, path: str, *, seconds: float = SETTLED_S, **options: Any) -> Answer:
        """As a careful client does: again for as long as the answer says that this can help."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self.call(method, path, **options)
            final = answer.status and (answer.status < 400 or not answer.body["error"]["retryable"])
            if final or time.monotonic() > deadline:
                return answer
            time.sleep(0.02)

    def create(self, **options: Any) -> str:
        answer = self.insist("POST", "/v1/sandboxes", json={"template": "base", **SMALL, **options})
        assert answer.status == 201, answer
        return str(answer.body["id"])

    def close(self) -> None:
        for box in (self.box, self._lab):
            if box is not None:
                box.close()

    # --- killing -----------------------------------------------------------------------------------------

    def arm(self, point: str, victim: str = "self") -> None:
        """`victim`: `self` or `parent` as faultpoints.arm has it, or `all`: who reaches it, and the others with it."""
        await_grown(self.stack)
        faultpoints.arm(self.faults, point, victim="self" if victim == "all" else victim)
        if victim == "all":
            self._others = threading.Thread(target=self._kill_others, args=(point,))
            self._others.start()

    def _kill_others(self, point: str) -> None:
        deadline = time.monotonic() + BACK_S
        while point in faultpoints.armed(self.faults) and time.monotonic() < deadline:
            time.sleep(0.001)
        self.stack.kill("server", "node", "helper")

    def pid(self, daemon: str) -> int:
        record = read_record(self.stack.data)
        assert record is not None
        return record.processes[daemon].pid

    # --- looking -----------------------------------------------------------------------------------------

    def processes(self, sandbox_id: str) -> set[tuple[int, int]]:
        """Of a sandbox, as the host sees them: pid and start time."""
        root = cgroup.layout().group(cgroup.group_name(self.installation, sandbox_id))
        found = set()
        try:
            below = list(root.glob("*/cgroup.procs"))
        except FileNotFoundError:
            return found  # gone in this moment
        for file in [root / "cgroup.procs", *below]:
            try:
                found |= {(int(pid), kernel.start_ticks(int(pid))) for pid in file.read_text().split()}
            except (OSError, ProcessLookupError):
                continue  # ended meanwhile
        return found

    def agent(self, sandbox_id: str) -> int:
        """Its pid on the host. Executions have groups of their own, file operations are over."""
        place = cgroup.layout()
        root = place.group(cgroup.group_name(self.installation, sandbox_id))
        processes = (root / cgroup.INIT_SCOPE if place.is_v2 else root) / "cgroup.procs"
        wait_until(lambda: len(processes.read_text().split()) == 1, 10, "the last file operation does not end")
        return int(processes.read_text())

    def disagreement(self) -> str | None:
        """What API, journal and kernel do not say alike of the sandboxes that there are."""
        answer = self.call("GET", "/v1/sandboxes")
        if answer.status != 200:
            return f"the API answers {answer}"
        api = {row["id"]: row["state"] for row in answer.body["items"]}
        try:
            listed = ask_node(self.stack.data, "sandbox.list")["sandboxes"]
            granted = ask_node(self.stack.data, "node.info")["capacity"]["sandboxes"]
        except BellglassError as error:
            return str(error)
        node = {row["sandbox_id"]: row["state"] for row in listed if row["state"] != "ended"}
        data, place = self.stack.data, cgroup.layout()
        groups = place.group(cgroup.group_name(self.installation, "x")).parent
        seen = {
            "api": api,
            "node": node,
            "cgroups": {path.name for path in groups.iterdir() if path.is_dir()},
            "folders": {path.name for path in data.sandboxes_dir.iterdir()},
            "leases": {sandbox for _, owner, sandbox in leases() if owner == self.installation},
            "runtime": {path.name for path in data.runc_root.iterdir()},
        }
        if set(api.values()) != {"running"} or api != node:
            return str(seen)
        inputs = {path.name for path in data.inputs_dir.iterdir()}
        alike = all(set(names) == set(api) for names in seen.values()) and inputs <= set(api) and granted == len(api)
        return None if alike else f"{seen}, inputs {inputs}, {granted} granted"

    # --- after a death -----------------------------------------------------------------------------------

    def settled(self) -> None:
        """Every armed point was reached, all are back, and everything is true."""
        wait_until(lambda: not faultpoints.armed(self.faults), BACK_S, lambda: f"never reached: {self.unreached()}")
        if self._others is not None:
            self._others.join()
            self._others = None
        wait_until(self.serves, BACK_S, "the API does not serve again")
        self.bystander_is_well()

    def agreed(self) -> None:
        wait_until(lambda: self.disagreement() is None, SETTLED_S, lambda: str(self.disagreement()))

    def serves(self) -> bool:
        answer = self.call("GET", "/v1/health")
        return answer.status == 200 and answer.body["node"] == "up"

    def unreached(self) -> list[str]:
        return faultpoints.armed(self.faults)

    def bystander_is_well(self) -> None:
        assert self.processes(self.box.id) >= self.before, "other processes than before"
        result = self.box.exec(["cat", "kept"])
        assert (result.exit_code, result.stdout) == (0, "from before")
        kept = self.insist("GET", f"/v1/sandboxes/{self.box.id}/executions/{self.done.execution_id}/output").body
        assert (kept["execution"]["exit_code"], kept["stdout"]) == (3, "kept")
        assert self.insist("GET", f"/v1/sandboxes/{self.box.id}/executions/{self.job.id}").body["state"] == "running"


@contextmanager
def rig() -> Iterator[Rig]:
    """At its end nothing may be left of the installation."""
    assert os.geteuid() == 0, "sandboxes need root"
    with own_installation(faults=True) as stack:
        made = Rig(stack)
        yield made
        made.bystander_is_well()
        wait_until(lambda: made.processes(made.box.id) == made.before, 10, "left-over processes in the bystander")
        made.agreed()
        assert "broke the protocol" not in (stack.data.logs_dir / "node.log").read_text(), "an honest agent was refused"
        made.close()
        made.client.close()


def new_name() -> str:
    return f"n{ids.random_base32(12)}"
