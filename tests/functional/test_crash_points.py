"""kill -9 at every fault point, each while the operation that it belongs to is under way through the API.

One installation for all: after each death the same processes run in the bystander, what was finished stands, the
operation has become one of its true outcomes, and API, journal and kernel agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bellglass import ids
from bellglass.faultpoints import POINTS
from bellglass.supervise.control import ask_node
from tests.functional import crash_contexts as contexts
from tests.functional.crash_rig import Rig, new_name, rig
from tests.functional.waiting import wait_until
from tests.functional.worker_steps import Call, Steps


@pytest.fixture(scope="module")
def crashes() -> Iterator[Rig]:
    with rig() as made:
        yield made


# --- operations: each arms the point, does its thing, and looks at what became of it ----------------------------------


def create(rig: Rig, point: str, victim: str) -> None:
    """A server's death leaves an answer that the key tells; a node's or helper's is not even seen."""
    rig.arm(point, victim)
    request = {
        "json": {
            "template": "base", "name": new_name(), "inputs": {"in": {"text": "put"}},
            "cpus": 1, "memory": "256MiB", "disk": "256MiB", "lifetime": "10m",
        },
        "headers": {"Idempotency-Key": new_name()},
    }  # fmt: skip
    answer = rig.call("POST", "/v1/sandboxes", **request)
    rig.settled()
    child_alone = point.startswith("helper.") and victim == "self"
    if point.startswith("server.") or victim == "all":
        assert answer.status in (0, 201)
    else:
        assert answer.status == (500 if child_alone else 201), answer
    rig.agreed()
    again = rig.insist("POST", "/v1/sandboxes", **request)
    name = request["json"]["name"]  # type: ignore[index]
    found = rig.call("GET", f"/v1/sandboxes?state=all&name={name}").body["items"]
    assert len(found) == 1
    if child_alone or point == "server.create.row_written" or (victim == "all" and again.status != 201):
        # The node was never asked, could not, or forgot it with its server.
        assert again.status >= 500 and not again.body["error"]["retryable"], again
        assert found[0]["state"] == "failed"
    else:
        assert (again.status, again.body["id"]) == (201, found[0]["id"]), again
        assert answer.status == 0 or answer.body["id"] == again.body["id"]
        body = {"command": ["cat", "/inputs/in"]}
        assert rig.call("POST", f"/v1/sandboxes/{again.body['id']}/executions", json=body).body["stdout"] == "put"
        assert rig.call("DELETE", f"/v1/sandboxes/{again.body['id']}").status == 204
    rig.agreed()


def delete(rig: Rig, point: str, victim: str) -> None:
    made = rig.create()
    body = {"command": ["sleep", "1000"], "detach": True}
    assert rig.call("POST", f"/v1/sandboxes/{made}/executions", json=body).status == 201
    processes = rig.processes(made)
    assert len(processes) >= 2
    rig.arm(point, victim)
    answer = rig.call("DELETE", f"/v1/sandboxes/{made}")
    assert answer.status in (0, 204, 503), answer
    if answer.status == 204:
        assert not rig.processes(made)
    rig.settled()
    assert rig.insist("DELETE", f"/v1/sandboxes/{made}").status == 204
    assert rig.call("GET", f"/v1/sandboxes/{made}").status == 404
    assert not rig.processes(made)
    rig.agreed()


def lifetime(rig: Rig, point: str, victim: str) -> None:
    made = rig.create()
    executions = f"/v1/sandboxes/{made}/executions"
    done = rig.call("POST", executions, json={"command": ["echo", "said"]}).body["execution"]["id"]
    assert rig.call("PATCH", f"/v1/sandboxes/{made}", json={"lifetime": 1}).status == 200
    rig.arm(point, victim)
    rig.settled()

    def ended() -> bool:
        return rig.call("GET", f"/v1/sandboxes/{made}").body["state"] == "ended"

    wait_until(ended, 20, "its lifetime does not end")
    assert rig.call("GET", f"/v1/sandboxes/{made}").body["termination_reason"] == "lifetime"
    rig.agreed()
    assert rig.call("GET", f"{executions}/{done}/output").body["stdout"] == "said\n"
    assert rig.call("DELETE", f"/v1/sandboxes/{made}").status == 204


def update(rig: Rig, point: str, victim: str) -> None:
    rig.arm(point, victim)
    rig.call("PATCH", f"/v1/sandboxes/{rig.box.id}", json={"lifetime": "40m"})
    rig.settled()

    def alike() -> bool:
        listed = ask_node(rig.stack.data, "sandbox.list")["sandboxes"]
        [on_node] = [row["expires_at"] for row in listed if row["sandbox_id"] == rig.box.id]
        return on_node == rig.call("GET", f"/v1/sandboxes/{rig.box.id}").body["expires_at"]

    wait_until(alike, 10, "API and node tell different ends of the lifetime")


def change_network(rig: Rig, point: str, victim: str) -> None:
    """What the row says is what the node has in the end, and a repeat is in force."""
    path, host = f"/v1/sandboxes/{rig.box.id}/network", f"{new_name()}.example"
    before = rig.call("GET", path).body["generation"]
    rig.arm(point, victim)
    rig.call("PUT", path, json={"network": {"allow": [f"{host}:443"]}})
    rig.settled()

    def alike() -> bool:
        on_node = rig.call("GET", path).body
        shown = rig.call("GET", f"/v1/sandboxes/{rig.box.id}").body
        return bool(
            on_node["generation"] == shown["network_generation"] == before + 1
            and on_node["network"] == shown["network"]
            and [rule["host"] for rule in on_node["resolved"]] == [host]
        )

    wait_until(alike, 10, "API and node tell different networks")
    again = rig.insist("PUT", path, json={"network": "deny"})
    assert (again.status, again.body["generation"]) == (200, before + 2)


def execute(rig: Rig, point: str, victim: str) -> None:
    """Whatever dies: it runs once, and the client of the SDK sees its result whole."""
    mark = f"ran-{new_name()}"
    rig.arm(point, victim)
    result = rig.box.exec(f"echo once >> {mark}; printf out; printf err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "out", "err")
    rig.settled()
    assert rig.box.files.read_text(mark) == "once\n"
    stored = rig.call("GET", f"/v1/sandboxes/{rig.box.id}/executions/{result.execution_id}/output").body
    assert (stored["execution"]["exit_code"], stored["stdout"], stored["stderr"]) == (7, "out", "err")


def start(rig: Rig, point: str, victim: str) -> None:
    """A detached one, by its id: sent again it is the same one."""
    mark, executions = f"ran-{new_name()}", f"/v1/sandboxes/{rig.box.id}/executions"
    body = {"id": ids.new_ulid(), "command": f"echo once >> {mark}", "detach": True}
    rig.arm(point, victim)
    rig.call("POST", executions, json=body)
    rig.settled()
    again = rig.insist("POST", executions, json=body)
    assert (again.status, again.body["id"]) == (201, body["id"]), again

    def ended() -> bool:
        return rig.call("GET", f"{executions}/{body['id']}").body["state"] == "exited"

    wait_until(ended, 10, "it does not end")
    assert rig.box.files.read_text(mark) == "once\n"


def time_out(rig: Rig, point: str, victim: str) -> None:
    rig.arm(point, victim)
    result = rig.box.exec("printf begun; sleep 1000 & setsid sleep 1000", timeout=0.3)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, "begun")
    rig.settled()
    wait_until(lambda: rig.processes(rig.box.id) == rig.before, 10, "its tree lives")


def write(rig: Rig, point: str, victim: str) -> None:
    """Old or new, whole, and new if the call has said so; nothing beside it."""
    folder = f"w-{new_name()}"
    old, new = b"old" * 1000, b"new" * 300_000
    where = f"/v1/sandboxes/{rig.box.id}/files?path={folder}/file&parents=true"
    assert rig.call("PUT", where, content=old).status == 201
    rig.arm(point, victim)
    answer = rig.call("PUT", where, content=new)
    assert answer.status in (0, 200, 503), answer
    rig.settled()
    found = rig.box.files.read_bytes(f"{folder}/file")
    assert found in (old, new)
    assert found == new or answer.status != 200
    wait_until(lambda: rig.box.exec(["ls", "-A", folder]).stdout == "file\n", 10, "a temporary file is left")
    assert rig.insist("PUT", where, content=new).status == 200
    assert rig.box.files.read_bytes(f"{folder}/file") == new


def undo(rig: Rig, point: str, victim: str) -> None:
    """The node dies while it undoes a create that has failed: the server asks its next life."""
    rig.arm("helper.start.runtime")
    create(rig, point, victim)


def pool(rig: Rig, point: str, victim: str) -> None:
    """Members that are made or given up while everything dies: the pool becomes full, and goes without a trace."""
    path, headers = "/v1/pools/base", {"Authorization": f"Bearer {rig.stack.admin_key}"}
    wanted = {"size": 1, "cpus": 1, "memory": "256MiB", "disk": "256MiB"}
    makes = point in ("node.pool.journaled", "node.pool.machine_made", "node.pool.confirmed")
    if makes:
        rig.arm(point, victim)
    assert rig.insist("PUT", path, json=wanted, headers=headers).status == 200
    if makes:
        rig.settled()

    def full() -> bool:
        status = rig.call("GET", path, headers=headers).body.get("status") or {}
        return status.get("ready") == 1 and not status["filling"] and not status["draining"]

    wait_until(full, 30, "the pool does not become full")
    if not makes:
        rig.arm(point, victim)
    assert rig.insist("DELETE", path, headers=headers).status in (204, 404)
    if not makes:
        rig.settled()
    rig.agreed()


def recover(rig: Rig, point: str, victim: str) -> None:
    """A second death, in the recovery from the first."""
    if point == "node.recover.undone":
        rig.arm("node.create.machine_made")
        create(rig, point, victim)
        return
    rig.arm(point, victim)
    rig.stack.kill("node")
    rig.settled()


OPERATIONS = {
    "server.context.made": [contexts.make],
    "server.context.run_opened": [contexts.run_code],
    "server.context.answered": [contexts.restart],
    "server.visit": [contexts.visit],
    "node.context": [contexts.make],
    "node.context.host_ready": [contexts.abandon],
    "node.context.run_stored": [contexts.run_code],
    "node.context.run_sent": [contexts.run_code],
    "node.context.run_started": [contexts.run_code],
    "node.context.run_ended": [contexts.run_code],
    "node.context.interrupted": [contexts.interrupt],
    "node.context.host_killed": [contexts.restart],
    "node.context.host_dead": [contexts.restart],
    "node.context.restarted": [contexts.restart],
    "node.context.deleting": [contexts.delete],
    "node.context.removed": [contexts.delete],
    "server.create": [create],
    "server.delete": [delete],
    "server.update": [update],
    "server.network": [change_network],
    "server.journal": [create],
    "server.exec.opened": [execute],
    "server.exec.recorded": [start],
    "server.file": [write],
    "server.body": [write],
    "node.create": [create],
    "node.undo": [undo],
    "node.pool": [pool],
    "node.lifetime": [lifetime],
    "node.end": [delete, lifetime],
    # From here on it is the same for every reason.
    "node.end.reclaimed": [delete],
    "node.end.inputs_removed": [delete],
    "node.end.logs_forgotten": [delete],
    "node.end.recorded": [delete],
    "node.delete": [delete],
    "node.update": [update],
    "node.network": [change_network],
    "node.journal": [create],
    "node.recover": [recover],
    "node.exec": [execute],
    "node.exec.deadline": [time_out],
    "node.exec.killed": [time_out],
    "node.exec.tree_dead": [time_out],
    "node.file": [write],
    "helper.lease": [create],
    "helper.start": [create],
    "helper.reclaim": [delete],
}
"""By point, or by the points that begin so."""
MORE = {
    "server.create": [contexts.e2b_create],
    "server.context.answered": [contexts.interrupt, contexts.delete],
    "node.context.row_stored": [contexts.abandon],
    "node.context.host_stored": [contexts.abandon],
    "node.context.host_started": [contexts.abandon],
    "node.context.host_ready": [contexts.make],
    "node.context.confirmed": [contexts.abandon],
    "node.context.host_killed": [contexts.delete],
    "node.context.host_dead": [contexts.delete],
}
"""What else comes through there; by itself in the long run only."""


def operations(point: str) -> list[Any]:
    return OPERATIONS.get(point) or OPERATIONS[point.rpartition(".")[0]]


def more_operations(point: str) -> list[Any]:
    return MORE.get(point) or MORE.get(point.rpartition(".")[0], [])


def victims(point: str) -> tuple[str, ...]:
    """The helper's operations are children of it: their deaths alone, and the daemon's with them."""
    return ("self", "parent") if point.startswith("helper.") else ("self",)


CASES = [(point, what, victim) for point in POINTS for what in operations(point) for victim in victims(point)]
MORE_CASES = [(point, what, "self") for point in POINTS for what in more_operations(point)]
EVERYBODY = [
    (point, what, "all")
    for point in POINTS
    for what in (*operations(point), *more_operations(point))
    if not point.startswith(("helper.", "node.recover", "node.undo"))
]
IN_CI = (
    *("server.create.node_answered", "server.delete.intent_stored", "node.create.machine_made", "node.end.closed"),
    *("node.exec.sent", "node.exec.exit_told", "node.file.commit_sent"),
)


def named(cases: list[Any]) -> list[str]:
    return [f"{point}-{what.__name__}-{victim}" for point, what, victim in cases]


@pytest.mark.parametrize(("point", "what", "victim"), CASES, ids=named(CASES))
def test_killed_there(crashes: Rig, point: str, what: Any, victim: str) -> None:
    what(crashes, point, victim)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "what", "victim"), MORE_CASES, ids=named(MORE_CASES))
def test_killed_there_too(crashes: Rig, point: str, what: Any, victim: str) -> None:
    what(crashes, point, victim)


SOME = [case for case in EVERYBODY if case[0] in IN_CI and case[1] is not lifetime]


@pytest.mark.parametrize(("point", "what", "victim"), SOME, ids=named(SOME))
def test_all_killed_there(crashes: Rig, point: str, what: Any, victim: str) -> None:
    what(crashes, point, victim)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "what", "victim"), EVERYBODY, ids=named(EVERYBODY))
def test_all_killed_at_every_point(crashes: Rig, point: str, what: Any, victim: str) -> None:
    what(crashes, point, victim)


# --- the agent's own steps of a write: it is held at each by ptrace(2), while a daemon dies ---------------------------

STEPS: dict[str, Callable[[Call], bool]] = {
    "made": lambda call: call.name == "openat" and bool(call.arguments[2] & os.O_EXCL),
    "written": lambda call: call.name == "write" and call.result > 0,
    "mode-set": lambda call: call.name == "fchmod",
    "synced": lambda call: call.name == "fsync",
    "renamed": lambda call: call.name == "renameat",
    "folder-synced": lambda call: call.name == "fsync",
}
"""In the order in which the agent's worker takes them."""


@pytest.mark.parametrize("victim", ["node", "server"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_of_a_write(crashes: Rig, step: str, victim: str) -> None:
    folder, old, new = f"s-{new_name()}", b"old" * 1000, b"new" * 1000
    where = f"/v1/sandboxes/{crashes.box.id}/files?path={folder}/file&parents=true"
    assert crashes.call("PUT", where, content=old).status == 201
    steps = Steps(crashes.agent(crashes.box.id))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(crashes.call, "PUT", where, content=new)
        try:
            steps.wait_worker()
            for name, wanted in STEPS.items():
                steps.run_behind(wanted)
                if name == step:
                    break
            crashes.stack.kill(victim)
        finally:
            steps.let_go()
        assert answer.result().status in (0, 503)
    crashes.settled()
    found = crashes.box.files.read_bytes(f"{folder}/file")
    assert found == new if step in ("renamed", "folder-synced") else found in (old, new)
    wait_until(lambda: crashes.box.exec(["ls", "-A", folder]).stdout == "file\n", 10, "a temporary file is left")


def test_every_point_has_a_case() -> None:
    assert {point for point, _, _ in CASES} == set(POINTS)
    used = {name for point in POINTS for name in (point, point.rpartition(".")[0]) if name in OPERATIONS}
    assert used == set(OPERATIONS), "an operation for points that there are not"
