"""What is done while a daemon dies at a fault point of contexts, or of a port's first visit: test_crash_points.py."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx2

from bellglass import Context, RunResult
from tests.functional.crash_rig import Rig, new_name
from tests.functional.waiting import wait_until

IN_BASH = {"language": "bash", "cwd": "/home/user"}
UNMADE = ("row_stored", "host_stored", "host_started", "host_ready")
"""Where the node has not said yet that a context is made."""
PORTS = itertools.count(8001)
"""Each once: what was unpublished is not published by a visit again."""
NAMED = 7999


def make(rig: Rig, point: str, victim: str) -> None:
    """With a key: the repeat finds or makes the one, and it has one kernel."""
    url, headers = f"/v1/sandboxes/{rig.lab.id}/contexts", {"Idempotency-Key": new_name()}
    rig.arm(point, victim)
    answer = rig.call("POST", url, json=IN_BASH, headers=headers)
    assert answer.status in (0, 201, 503), answer
    rig.settled()
    again = rig.insist("POST", url, json=IN_BASH, headers=headers)
    assert again.status == 201 and (answer.status != 201 or answer.body["id"] == again.body["id"]), again
    [context] = rig.lab.contexts.list()
    assert context.id == again.body["id"] and context.run("echo $((6 * 7))").stdout == "42\n"
    one_kernel_each(rig)
    context.delete()
    nothing_left(rig)


def abandon(rig: Rig, point: str, victim: str) -> None:
    """Without a key, and nobody asks again: what was not made is undone, what was made is there and works."""
    rig.arm(point, victim)
    rig.call("POST", f"/v1/sandboxes/{rig.lab.id}/contexts", json=IN_BASH)
    rig.settled()
    if point.rpartition(".")[2] not in UNMADE:
        [context] = rig.lab.contexts.list()
        assert context.run("echo on").stdout == "on\n"
        context.delete()
    nothing_left(rig)


def run_code(rig: Rig, point: str, victim: str) -> None:
    """It runs once, in the kernel that there was, and its client sees it whole."""
    context = prepared(rig)
    rig.arm(point, victim)
    result = context.run("ran=$((ran + 1)); echo $ran $x; echo err >&2")
    assert (result.stdout, result.stderr, result.ok, result.state_lost) == ("1 7\n", "err\n", True, False)
    rig.settled()
    assert context.run("echo $ran $x").stdout == "1 7\n"
    stands(rig, context, result)
    one_kernel_each(rig)
    context.delete()
    nothing_left(rig)


def interrupt(rig: Rig, point: str, victim: str) -> None:
    context = prepared(rig)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(context.run, "echo on > here; sleep 1000")
        wait_until(lambda: rig.lab.files.exists("here"), 20, "the code does not run")
        rig.arm(point, victim)
        rig.call("POST", f"/v1/sandboxes/{rig.lab.id}/contexts/{context.id}/interrupt")
        rig.settled()
        if not busy.done():
            context.interrupt()
        stopped = busy.result(30)
    assert stopped.error is not None and stopped.error.name == "KeyboardInterrupt", stopped
    after = context.run("echo $ran $x")
    assert (after.stdout, after.state_lost) == ("0 7\n", False)
    one_kernel_each(rig)
    rig.lab.files.remove("here")
    context.delete()
    nothing_left(rig)


def restart(rig: Rig, point: str, victim: str) -> None:
    """Where the restart was not answered, the next run has its variables, or says that they are gone."""
    context, where = prepared(rig), f"/v1/sandboxes/{rig.lab.id}/contexts"
    done = context.run("echo finished")
    rig.arm(point, victim)
    answer = rig.call("POST", f"{where}/{context.id}/restart")
    rig.settled()
    after = context.run("echo ${x-gone}")
    assert after.stdout == ("gone\n" if after.state_lost else "7\n"), (answer, after)
    assert after.state_lost or answer.status != 200
    stands(rig, context, done)
    one_kernel_each(rig)
    assert rig.insist("POST", f"{where}/{context.id}/restart").status == 200
    fresh = context.run("echo ${x-gone}")
    assert (fresh.stdout, fresh.state_lost) == ("gone\n", True)
    context.delete()
    nothing_left(rig)


def delete(rig: Rig, point: str, victim: str) -> None:
    """A run under way ends with an error of its type; deleted is deleted, whoever was told."""
    context, where = prepared(rig), f"/v1/sandboxes/{rig.lab.id}/contexts"
    rig.arm(point, victim)
    answer = rig.call("DELETE", f"{where}/{context.id}")
    assert answer.status in (0, 204, 503), answer
    rig.settled()
    assert rig.insist("DELETE", f"{where}/{context.id}").status in (204, 404)
    assert rig.call("POST", f"{where}/{context.id}/run", json={"code": "echo"}).status == 404
    nothing_left(rig)


def visit(rig: Rig, point: str, victim: str) -> None:
    """A port that its first visit publishes: it is published once and told of once, and its visitors come through."""
    port = next(PORTS)
    serving = rig.lab.start(["python3", "-m", "http.server", str(port)])
    listens = f"until (echo >/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done"
    assert rig.lab.exec(["bash", "-c", listens], timeout=30).ok
    assert rig.call("GET", f"/v1/sandboxes/{rig.lab.id}/ports/{port}").status == 404

    def visited() -> int:
        some = rig.insist("PUT", f"/v1/sandboxes/{rig.lab.id}/ports/{NAMED}", json={"visibility": "public"})
        # Another life of the server has another port.
        name = urlsplit(some.body["url"].replace(f"-{NAMED}.", f"-{port}."))
        try:
            return httpx2.get(
                f"http://127.0.0.1:{name.port}/", headers={"Host": name.netloc}, timeout=30, trust_env=False
            ).status_code
        except httpx2.TransportError:
            return 0

    rig.arm(point, victim)
    assert visited() == 0, "its server died under it"
    rig.settled()
    held = rig.call("GET", f"/v1/sandboxes/{rig.lab.id}/ports/{port}").status
    assert held == (200 if point == "server.visit.stored" else 404)
    assert visited() == 200
    told = rig.call("GET", f"/v1/events?sandbox={rig.lab.id}&limit=1000").body["items"]
    assert [one["data"]["port"] for one in told if one["type"] == "port.published"].count(port) == 1
    assert rig.insist("DELETE", f"/v1/sandboxes/{rig.lab.id}/ports/{port}").status == 204
    serving.kill()
    nothing_left(rig)


def e2b_create(rig: Rig, point: str, victim: str) -> None:
    """Its clients send no key: what a server's death leaves is a sandbox of the list with their metadata, or a failed
    one, and all of it ends."""
    mark = new_name()
    rig.arm(point, victim)
    made = rig.call(
        "POST", "/compat/e2b/sandboxes", json={"templateID": "base", "metadata": {"mark": mark}, "timeout": 600},
        headers={"X-API-KEY": rig.stack.api_key},
    )  # fmt: skip
    rig.settled()
    rig.agreed()
    listed = rig.call("GET", "/compat/e2b/v2/sandboxes", headers={"X-API-KEY": rig.stack.api_key}).body
    mine = [one["sandboxID"] for one in listed if one["metadata"].get("mark") == mark]
    if made.status == 201:
        assert mine == [made.body["sandboxID"]]
    elif point == "server.create.row_written":
        assert (made.status, mine) == (0, [])
    else:
        assert made.status in (0, 500, 503) and len(mine) <= 1, made
    for sandbox_id in mine:
        assert rig.call("POST", f"/v1/sandboxes/{sandbox_id}/executions", json={"command": "true"}).status == 200
        answer = rig.call("DELETE", f"/compat/e2b/sandboxes/{sandbox_id}", headers={"X-API-KEY": rig.stack.api_key})
        assert answer.status == 204
    rig.agreed()


# --- looking ----------------------------------------------------------------------------------------------------------


def prepared(rig: Rig) -> Context:
    context = rig.lab.contexts.create("bash")
    assert context.run("x=7; ran=0").ok
    return context


def stands(rig: Rig, context: Context, result: RunResult) -> None:
    """A run that was answered: its output lies in the log of the host that it ran in."""
    kept = rig.call("GET", f"/v1/sandboxes/{rig.lab.id}/executions?tag=context:{context.id}").body["items"]
    logs = [rig.call("GET", f"/v1/sandboxes/{rig.lab.id}/executions/{one['id']}/output").body["stdout"] for one in kept]
    assert any(f'"run":"{result.run_id}"' in log.replace(" ", "") for log in logs), (result, logs)


def kernels(rig: Rig) -> dict[str, str]:
    """The contexts of hosts that run, by their executions."""
    running = rig.call("GET", f"/v1/sandboxes/{rig.lab.id}/executions?state=running").body["items"]
    return {one["id"]: one["tag"] for one in running if (one["tag"] or "").startswith("context:")}


def one_kernel_each(rig: Rig) -> None:
    listed = rig.call("GET", f"/v1/sandboxes/{rig.lab.id}/contexts").body["items"]
    assert kernels(rig) == {one["execution_id"]: f"context:{one['id']}" for one in listed}


def nothing_left(rig: Rig) -> None:
    wait_until(lambda: not rig.lab.contexts.list() and not kernels(rig), 20, "a context or its host is left")
    wait_until(lambda: len(rig.processes(rig.lab.id)) == 1, 10, lambda: f"left: {rig.processes(rig.lab.id)}")
