"""Warm pools with real machines: a claimed sandbox is like any other, clean, and never handed out twice or dead."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from bellglass import AsyncWarmPools, WarmPools, faultpoints
from bellglass.errors import ClientError, Forbidden, NotFound
from bellglass.node.image.template import installed
from bellglass.supervise.control import read_record
from tests.conftest import SANDBOX_OPTIONS
from tests.functional.own import own_installation
from tests.functional.pool_operator import Operator

pytestmark = pytest.mark.root
CANARY = "canary-5f0c2b"


@pytest.fixture(scope="module")
def operator():
    """An installation of these tests' own: pools are the whole node's."""
    with own_installation(settings={"node.pool_refills": 2}, faults=True) as running:
        operator = Operator(running)
        operator.set(0)  # waits until both daemons are there
        yield operator


def test_sdk_and_command_line(operator):
    stack = operator.stack
    with pytest.raises(ClientError, match="admin key"):
        WarmPools(api_url=stack.api_url)
    with WarmPools(api_url=stack.api_url, admin_key=stack.api_key) as pools, pytest.raises(Forbidden):
        pools.list()
    with WarmPools(api_url=stack.api_url, admin_key=stack.admin_key) as pools:
        made = pools.set("base", size=0, ceiling=3, memory="256MiB")
        assert (made.size, made.ceiling, made.memory_bytes, made.cpus) == (0, 3, 256 * 2**20, 2.0)
        assert pools.list() == [pools.get("base")] and made.status.hits == 0
        pools.delete("base")
        with pytest.raises(NotFound):
            pools.get("base")

    async def again():
        async with AsyncWarmPools(api_url=stack.api_url, admin_key=stack.admin_key) as pools:
            await pools.set("base", size=0)
            return [pool.template for pool in await pools.list()]

    assert asyncio.run(again()) == ["base"]

    def command(*words):
        return stack.command("pools", *words, environment={"BELLGLASS_ADMIN_KEY": stack.admin_key})

    done = command("set", "base", "--size", "1", "--ceiling", "4", "--cpus", "1", "--memory", "512MiB", "--json")
    assert json.loads(done.stdout)["ceiling"] == 4, done.stderr
    operator.ready(1)
    [document] = [json.loads(line) for line in command("ls", "--json").stdout.splitlines()]
    assert document["status"]["ready"] == 1
    head, row = command("ls").stdout.decode().splitlines()
    assert head.split()[:3] == ["TEMPLATE", "SIZE", "CEILING"] and row.split()[:3] == ["base", "1", "4"]
    assert command("set", "bsae", "--size", "1").returncode == 1
    assert command("rm", "base").stdout == b"base\n"
    assert command("rm", "base").returncode == 1 and command("ls", "--json").stdout == b""
    operator.only(0)


LOOK = """
import json, os, re, resource, socket
read = lambda path: open(path).read()
status = dict(line.split(":\\t", 1) for line in read("/proc/1/status").splitlines() if ":\\t" in line)
mounts = sorted(" ".join(line.split()[1:4]) for line in read("/proc/mounts").splitlines())
mounts = [re.sub(r"([ug]id)=\\d{10}", r"\\1=ITS", line) for line in mounts]  # each has a uid range of its own
me = socket.gethostname()
kept = ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "Seccomp", "NoNewPrivs", "Threads", "Cpus_allowed_list")
cpus = read("/proc/self/status").split("Cpus_allowed_list:\\t")[1].split()[0]
print(json.dumps({
    "hostname is the id": me == os.environ["WANTED"], "file": read("/etc/hostname").strip() == me,
    "hosts": read("/etc/hosts").replace(me, "ME"), "resolv": read("/etc/resolv.conf"),
    "machine-id": read("/etc/machine-id"), "env": sorted(set(os.environ) - {"WANTED"}), "cwd": os.getcwd(),
    "uid": os.getuid(), "groups": os.getgroups(), "nice": os.nice(0), "policy": os.sched_getscheduler(0),
    "agent's nice": os.getpriority(os.PRIO_PROCESS, 1), "agent's policy": os.sched_getscheduler(1),
    "agent": {name: status[name] for name in kept if name != "Cpus_allowed_list"},
    "cpus": len(os.sched_getaffinity(0)), "cpu_count": os.cpu_count(),
    "memory": re.findall("MemTotal.*", read("/proc/meminfo")), "mounts": mounts,
    "disk": [os.statvfs("/").f_blocks, os.statvfs("/").f_files, os.statvfs("/").f_bfree],
    "shm": [os.statvfs("/dev/shm").f_blocks, os.listdir("/dev/shm")], "tmp": os.listdir("/tmp"),
    "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC)],
    "oom": read("/proc/self/oom_score_adj"), "processes": sum(name.isdecimal() for name in os.listdir("/proc")),
    "cgroup": read("/proc/1/cgroup"), "home": sorted(os.listdir(".")), "inputs": os.path.exists("/inputs"),
}, default=str))
"""


def look(box):
    result = box.exec(["python3", "-c", LOOK], env={"WANTED": box.id}, check=True)
    return json.loads(result.stdout)


def test_a_claimed_sandbox_is_like_a_cold_one(operator):
    cold = operator.stack.sandbox(**SANDBOX_OPTIONS, env={"A": "1"}, labels={"team": "red"})
    operator.set(1)
    operator.ready(1)
    warm = operator.stack.sandbox(**SANDBOX_OPTIONS, env={"A": "1"}, labels={"team": "red"})
    assert operator.status["hits"] == 1
    try:
        assert look(warm) == look(cold)
        shown, other = warm.info().to_json(), cold.info().to_json()
        own = ("id", "created_at", "started_at", "expires_at")
        assert {k: v for k, v in shown.items() if k not in own} == {k: v for k, v in other.items() if k not in own}
        # Its lifetime began with the claim, not when its machine was made.
        assert shown["created_at"] <= shown["started_at"] < shown["expires_at"]
        pids = "/sys/fs/cgroup/pids" if Path("/sys/fs/cgroup/pids").is_dir() else "/sys/fs/cgroup"
        limits = [
            next(Path(pids).glob(f"bellglass-*/{box.id}/**/pids.max")).read_text().strip() for box in (cold, warm)
        ]
        assert limits[0] == limits[1] == str(shown["pids"])
    finally:
        cold.delete()
        warm.delete()


def test_members_are_nobodys_and_can_not_be_seen(operator):
    operator.set(2)
    operator.ready(2)
    members = operator.members()
    assert len(members) == 2
    key = operator.stack.create_key("other")
    assert operator.stack_boxes() == []
    for secret in (operator.stack.api_key, key):
        with httpx2.Client(
            base_url=operator.stack.api_url, headers={"authorization": f"Bearer {secret}"}, trust_env=False
        ) as client:
            for id in members:
                unknown = client.get("/v1/sandboxes/sb" + "a" * 20).json()["error"]
                found = client.get(f"/v1/sandboxes/{id}").json()["error"]
                assert {**found, "request_id": 0} == {**unknown, "request_id": 0}
                assert client.delete(f"/v1/sandboxes/{id}").status_code == 404
                body = {"command": ["true"]}
                assert client.post(f"/v1/sandboxes/{id}/executions", json=body).status_code == 404
            assert client.get("/v1/sandboxes", params={"state": "all", "limit": 1000}).json()["items"] == [] or (
                secret == operator.stack.api_key
            )
            assert client.get("/v1/pools").status_code == 403
    assert operator.status["ready"] == 2


FIND = (
    f"grep -rl {CANARY} / --exclude-dir=proc --exclude-dir=sys 2>/dev/null; grep -l {CANARY} /proc/[0-9]*/environ"
    f" /proc/[0-9]*/cmdline 2>/dev/null | grep -v /proc/$$; find / -xdev -name '*{CANARY}*'; true"
)
PLANT = f"for d in / /tmp /dev/shm /home/user /var/tmp /run/lock; do echo {CANARY} > $d/{CANARY}; done; ls / /tmp"


def test_nothing_of_one_project_is_in_anothers_sandbox(operator):
    """A canary in disk, /tmp, /dev/shm, environment and processes of one that was claimed: it is found there, and in no
    sandbox of another project, made from members that waited beside it and after it."""
    operator.set(2)
    operator.ready(2)
    first = operator.stack.sandbox(**SANDBOX_OPTIONS, env={"SECRET": CANARY}, user="root")
    first.exec(["sh", "-c", PLANT], check=True)
    first.start(["sleep", "600"])
    seen = first.exec(["sh", "-c", FIND]).stdout
    for place in ("/dev/shm", "/tmp", "/home/user", "/var/tmp", "/run/lock", "/environ"):
        assert place in seen, f"the search does not find {place}: {seen}"
    other = operator.stack.create_key("canaries")
    operator.ready(2)
    hits = operator.status["hits"]
    beside = [operator.stack.sandbox(**SANDBOX_OPTIONS, api_key=other, user="root") for _ in range(2)]
    first.delete()
    operator.ready(2)
    after = [operator.stack.sandbox(**SANDBOX_OPTIONS, api_key=other, user="root") for _ in range(2)]
    assert operator.status["hits"] == hits + 4 and first.id not in {box.id for box in beside + after}
    for box in beside + after:
        script = FIND.replace(CANARY, CANARY[:7] + "[" + CANARY[7] + "]" + CANARY[8:])
        assert box.exec(["sh", "-c", script]).stdout == ""
        box.delete()


def test_creates_beyond_the_pool_start_cold_and_are_counted(operator):
    operator.set(2, ceiling=2)
    before = operator.ready(2)
    with ThreadPoolExecutor(6) as pool:
        boxes = list(pool.map(lambda _: operator.stack.sandbox(**SANDBOX_OPTIONS), range(6)))
    with_inputs = operator.stack.sandbox(**SANDBOX_OPTIONS, inputs={"a.txt": "hello"})
    other_shape = operator.stack.sandbox(**{**SANDBOX_OPTIONS, "memory": "256MiB"})
    boxes += [with_inputs, other_shape]
    try:
        assert len({box.id for box in boxes}) == 8
        assert all(box.exec(["hostname"]).stdout.strip() == box.id for box in boxes)
        assert with_inputs.exec(["cat", "/inputs/a.txt"]).stdout == "hello"
        now = operator.status
        counted = {name: count - before["misses"][name] for name, count in now["misses"].items() if count}
        assert now["hits"] - before["hits"] == 2, now
        assert {k: v for k, v in counted.items() if v} == {"empty": 4, "inputs": 1, "shape": 1}
        assert (now["ready"], now["claimed"]) == (0, 2), "the ceiling counts claimed ones"
    finally:
        for box in boxes:
            box.delete()
    operator.ready(2)


def machine_pid(stack, id):
    return int((stack.data.sandbox_dir(id) / "pid").read_text())


def test_a_killed_member_is_replaced_and_not_handed_out(operator):
    operator.set(2)
    operator.ready(2)
    for _ in range(2):
        killed = {id: machine_pid(operator.stack, id) for id in operator.members()}
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)
        # At once, without waiting for anybody to notice. One that was promised already gives its id to a new machine.
        with operator.stack.sandbox(**SANDBOX_OPTIONS) as box:
            assert machine_pid(operator.stack, box.id) not in killed.values()
            assert box.exec(["echo", "alive"]).stdout == "alive\n"
        operator.gone(set(killed))
        operator.ready(2)


def kill(stack, *daemons):
    """And until there are new ones."""

    def pids():
        record = read_record(stack.data)
        return {name: process.pid for name, process in record.processes.items()}

    old = pids()
    for name in daemons:
        with suppress(ProcessLookupError):  # the helper dies with its node
            os.kill(old[name], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(pids().get(name) in (None, old[name]) for name in daemons):
        assert time.monotonic() < deadline, f"{daemons} do not come back"
        time.sleep(0.05)


@pytest.mark.parametrize("daemons", [("server",), ("node",), ("server", "node", "helper")])
def test_members_survive_their_daemons(operator, daemons):
    operator.set(2)
    operator.ready(2)
    members = operator.members()
    pids = {id: machine_pid(operator.stack, id) for id in members}
    kill(operator.stack, *daemons)
    operator.ready(2)
    assert operator.members() == members
    assert {id: machine_pid(operator.stack, id) for id in members} == pids
    with operator.stack.sandbox(**SANDBOX_OPTIONS) as box:
        assert box.id in members and box.exec(["echo", "hi"]).stdout == "hi\n"


@pytest.mark.parametrize(
    "point",
    ["server.create.row_written", "server.create.node_answered", "node.create.confirmed", "node.create.watched"],
)
def test_a_crash_in_a_claim_loses_no_member_and_gives_none_twice(operator, point):
    """Between promise and claim, and between claim and answer. Whoever asks again with the same key gets one sandbox;
    another project never gets the same machine."""
    stack = operator.stack
    operator.set(2)
    operator.ready(2)
    faults = stack.data_dir / "faults"
    faultpoints.arm(faults, point)
    headers = {"authorization": f"Bearer {stack.api_key}", "idempotency-key": f"{point}-{time.time()}"}
    body = {**SANDBOX_OPTIONS}
    deadline = time.monotonic() + 60
    while True:
        with suppress(httpx2.TransportError):
            answer = httpx2.post(
                f"{stack.api_url}/v1/sandboxes", json=body, headers=headers, timeout=60, trust_env=False
            )
            if answer.status_code == 201 or not answer.json()["error"]["retryable"]:
                break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert faultpoints.armed(faults) == [], "nobody died"
    other = stack.create_key("second")
    operator.ready(2)
    boxes = [stack.sandbox(**SANDBOX_OPTIONS, api_key=other) for _ in range(3)]
    try:
        ids = {box.id for box in boxes}
        assert len(ids) == 3 and all(box.exec(["hostname"]).stdout.strip() == box.id for box in boxes)
        mine = operator.stack_boxes()
        assert not ids & {box.id for box in mine}
        if answer.status_code == 201:
            assert [box.id for box in mine] == [answer.json()["id"]]
            assert mine[0].exec(["hostname"]).stdout.strip() == mine[0].id
        else:  # the server died before it had asked the node: the create failed, and says so
            assert point.startswith("server.") and answer.json()["error"]["code"] == "sandbox_failed"
    finally:
        for box in [*boxes, *operator.stack_boxes()]:
            with suppress(NotFound):
                box.delete()
    operator.ready(2)
    operator.only(2)


def test_a_refill_that_is_cut_off_leaves_nothing(operator):
    operator.set(0)
    operator.ready(0)
    stack = operator.stack
    faultpoints.arm(stack.data_dir / "faults", "helper.start.runtime", victim="parent")
    operator.set(2)
    deadline = time.monotonic() + 60
    while faultpoints.armed(stack.data_dir / "faults"):
        assert time.monotonic() < deadline, "no refill came so far"
        time.sleep(0.05)
    operator.ready(2)
    operator.only(2)


def test_members_are_told_from_sandboxes(operator):
    operator.set(2)
    operator.ready(2)
    stack = operator.stack
    stack.sandbox(**{**SANDBOX_OPTIONS, "memory": "256MiB"}).close()
    found = stack.status()
    assert (found["counts"]["sandboxes"], found["pool_members"]) == (1, 2)
    members = operator.members()
    done = stack.command("down", "--json", "--data-dir", str(stack.data_dir), timeout_s=120)
    stack.up()
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (outcome["left_running"], outcome["left_waiting"]) == (1, 2), outcome
    operator.ready(2)
    assert operator.members() == members
    for box in operator.stack_boxes():  # at another port now
        box.delete()


def test_members_go_with_their_template_and_their_pool(operator):
    operator.set(2)
    operator.ready(2)
    first = operator.members()
    operator.set(1, memory="256MiB")
    operator.gone(first)
    operator.ready(1)
    last = operator.members()
    operator.ask("DELETE", "/v1/pools/base", status=204)
    operator.gone(last)
    operator.ask("GET", "/v1/pools/base", status=404)


def copy_by_links(source, target):
    subprocess.run(["cp", "--archive", "--link", source, target], check=True)


def test_a_new_template_drains_the_pool():
    """And nothing is left when the installation goes with members that wait."""
    templates = Path(os.environ.get("BELLGLASS_CACHE", "/var/cache/bellglass")) / "templates"
    base = next(template for template in installed(templates) if template.name == "base")
    own = templates.parent / f"pool-test-{os.getpid()}"
    own.mkdir(mode=0o755)
    copy_by_links(base.folder, own / base.folder.name)
    try:
        with own_installation(settings={"node.templates_dir": str(own)}) as stack:
            operator = Operator(stack)
            operator.set(1)
            operator.ready(1)
            old = operator.members()
            digest = "12" * 32
            draft = own / ".draft"
            copy_by_links(base.folder, draft)
            meta = json.loads((draft / "template.json").read_text())
            (draft / "template.json").unlink()
            (draft / "template.json").write_text(
                json.dumps(meta | {"digest": digest, "built_at": "2099-01-01T00:00:00Z"})
            )
            draft.rename(own / f"base-{digest[:16]}")
            operator.gone(old)
            operator.ask("GET", "/v1/templates")  # the server asks the node anew
            assert operator.ready(1)["template_digest"] == digest
            with stack.sandbox(**SANDBOX_OPTIONS) as box:
                assert box.info().template_digest == digest and box.id not in old
            operator.ready(1)
    finally:
        shutil.rmtree(own)
