"""The helper as a process: what it takes, from whom, and how long it lives."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driver_rig import NODE_UID, launch_helper, new_rig

from bellglass import ids
from bellglass.datadir import DataDir
from bellglass.errors import InternalError
from bellglass.node.drivers.runc import RuncDriver
from bellglass.node.helper import cgroup, hostwide, kernel
from bellglass.node.helper.client import HelperClient
from bellglass.node.helper.hostwide import WANTED_PID_MAX
from tests.functional.waiting import wait_until


@pytest.fixture
def channel(tmp_path: Path) -> Any:
    data = DataDir(tmp_path)
    data.logs_dir.mkdir()
    process, ours = launch_helper(data, "testtest")
    ours.settimeout(10)
    yield process, ours
    ours.close()
    assert process.wait(10) == 0


def ask(ours: socket.socket, message: Any) -> Any:
    ours.send(message if isinstance(message, bytes) else json.dumps(message).encode())
    return json.loads(ours.recv(65536))


START: dict[str, Any] = {
    "id": 7,
    "op": "start_machine",
    "sandbox_id": "sb" + "a" * 20,
    "runtime": "runc",
    "template_name": "base",
    "template_digest": "0" * 64,
    "cpus": 1.0,
    "cpu_ids": [0],
    "memory_bytes": 64 << 20,
    "disk_bytes": 64 << 20,
    "inodes": 1000,
    "pids": 32,
    "has_inputs": False,
    "has_network": True,
    "background": False,
    "reuse_disk": False,
}
REFUSED: list[tuple[str, Any]] = [
    ("sandbox_id", "../../../etc"),
    ("sandbox_id", "sb" + "a" * 20 + "\n"),
    ("sandbox_id", "sb" + "A" * 20),
    ("sandbox_id", ["sb" + "a" * 20]),
    ("sandbox_id", None),
    ("runtime", "/bin/sh"),
    ("runtime", "runc --debug"),
    ("template_name", "../base"),
    ("template_name", ""),
    ("template_name", "a/b"),
    ("template_digest", "0" * 63),
    ("template_digest", "0" * 62 + "/."),
    ("cpus", 0),
    ("cpus", -1.0),
    ("cpus", float("nan")),
    ("cpus", float("inf")),
    ("cpus", True),
    ("cpus", "1"),
    ("cpu_ids", []),
    ("cpu_ids", [0, 0]),
    ("cpu_ids", [-1]),
    ("cpu_ids", ["0-63"]),
    ("cpu_ids", [1.0]),
    ("cpu_ids", "0"),
    ("memory_bytes", 0),
    ("memory_bytes", 2**63),
    ("memory_bytes", 1e9),
    ("memory_bytes", True),
    ("disk_bytes", -1),
    ("disk_bytes", 1),
    ("inodes", 0),
    ("pids", 0),
    ("pids", "max"),
    ("has_inputs", 1),
    ("background", 1),
    ("reuse_disk", None),
    ("extra", "/etc/shadow"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_each_field_is_checked(channel: Any, name: str, value: Any) -> None:
    _, ours = channel
    allowed = ask(ours, START)["error"]
    assert (allowed["code"], "lease_uids" in allowed["message"]) == ("sandbox_failed", True), "it got past the checks"
    refused = ask(ours, START | {name: value})
    assert (refused["id"], refused["error"]["code"]) == (7, "invalid_request")
    assert refused["error"]["details"]["field"] == name


@pytest.mark.parametrize("name", [name for name in START if name not in ("id", "op")])
def test_each_field_is_needed(channel: Any, name: str) -> None:
    _, ours = channel
    refused = ask(ours, {key: value for key, value in START.items() if key != name})
    assert (refused["error"]["code"], refused["error"]["details"]["field"]) == ("invalid_request", name)


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"op": "shell"}', b'{"op": ["probe"]}', b'{"op": "probe"}', b"[" * 60000],
)
def test_nonsense(channel: Any, message: bytes) -> None:
    process, ours = channel
    if not message:
        return
    assert ask(ours, message)["error"]["code"] == "invalid_request"
    assert ask(ours, {"id": 1, "op": "probe", "runtime": "runc"})["result"]["helper_pid"] == process.pid


def test_pid_max_is_raised(channel: Any) -> None:
    _, ours = channel
    assert ask(ours, {"id": 1, "op": "probe", "runtime": "runc"})["result"]["pid_max"] >= WANTED_PID_MAX


@pytest.mark.alone
@pytest.mark.parametrize("wanted", [True, False])
def test_cgroups_favor_changes_unless_told_not_to(tmp_path: Path, wanted: bool) -> None:
    """The test takes the option off for a moment: beside it, executions of other installations start a little later."""
    data = DataDir(tmp_path)
    data.logs_dir.mkdir()
    data.settings_file.write_text(f"[node]\nfavordynmods = {str(wanted).lower()}\n")
    unified = str(cgroup.layout().unified)

    def options() -> list[str]:
        return hostwide.unified_options(Path("/proc/self/mountinfo").read_text(), unified)

    before = options()
    others = [option for option in before if option != hostwide.FAVOR_DYNMODS]
    kernel.set_options(unified, others)
    try:
        assert options() == others
        process, ours = launch_helper(data, "testtest")
        assert ask(ours, {"id": 1, "op": "probe", "runtime": "runc"})["result"]["helper_pid"] == process.pid
        ours.close()
        assert process.wait(10) == 0
        assert set(options()) == {*others, *([hostwide.FAVOR_DYNMODS] if wanted else [])}
    finally:
        kernel.set_options(unified, before)


def test_a_channel_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """The pair has to come from the helper's parent, as root."""
    data = DataDir(tmp_path)
    data.logs_dir.mkdir()
    code = (
        "import socket, subprocess, sys, os\n"
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "if os.fork() == 0:\n"
        "  p = subprocess.run([*sys.argv[1:], '--fd', str(b.fileno())], pass_fds=[b.fileno()], timeout=20)\n"
        "  os._exit(p.returncode)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    argv = [sys.executable, "-P", "-m", "bellglass.node.helper", "--data-dir", str(tmp_path), "--cache-dir", "/nowhere"]
    argv += ["--installation", "testtest", "--node-uid", "1", "--node-gid", "1"]
    argv += ["--proxy-uid", "2", "--proxy-gid", "2", "--resolver-uid", "3", "--resolver-gid", "3"]
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=30)
    assert done.stdout == "1\n" and "PermissionError" in done.stderr


def test_it_dies_with_the_node(tmp_path: Path) -> None:
    """Also when the node is killed and something else still holds its end of the socket."""
    data = DataDir(tmp_path)
    data.logs_dir.mkdir()
    read, write = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        process, _ = launch_helper(data, "testtest")
        os.write(write, str(process.pid).encode())
        signal.pause()
    helper = int(os.read(read, 32))
    os.close(read)
    os.close(write)
    pidfd = os.pidfd_open(helper)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(1500) == [], "it lives as long as the node does"
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    assert poll.poll(5000), "the helper outlived the node"
    os.close(pidfd)


def test_a_node_that_goes_without_reading_its_answers_is_no_error(tmp_path: Path) -> None:
    """Its channel is then reset, not just closed."""
    data = DataDir(tmp_path)
    data.logs_dir.mkdir()
    process, ours = launch_helper(data, "testtest")
    ours.send(json.dumps({"id": 1, "op": "probe", "runtime": "runc"}).encode())
    ours.settimeout(10)
    assert json.loads(ours.recv(65536, socket.MSG_PEEK))["id"] == 1, "the answer is there, and stays unread"
    ours.close()
    assert process.wait(10) == 0
    assert "Traceback" not in (data.logs_dir / "helper.log").read_text()


def test_a_host_without_processes_is_a_typed_error_and_no_end(channel: Any) -> None:
    """A fork that fails does so before the request has been begun: later the same one passes."""
    process, ours = channel
    probe = {"id": 1, "op": "probe", "runtime": "runc"}
    assert "version" in ask(ours, probe)["result"]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: not children.read_text(), 10, "its workers live on")
    limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    held = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
    next_free = next(number for number in itertools.count() if number not in held)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (next_free, limits[1]))
    refused = ask(ours, probe)
    assert (refused["id"], refused["error"]["code"]) == (1, "no_capacity")
    assert refused["error"]["details"] == {"resource": "pids"} and "probe" in refused["error"]["message"]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
    assert "version" in ask(ours, probe)["result"]


def test_a_gone_helper_is_a_typed_error(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.logs_dir.mkdir()
    process, ours = launch_helper(data, "testtest")

    async def act() -> None:
        client = HelperClient(ours)
        assert "version" in await client.call("probe", runtime="runc")
        process.kill()
        process.wait()
        for _ in range(2):
            with pytest.raises(InternalError, match="helper"):
                await client.call("probe", runtime="runc")
        client.close()

    asyncio.run(act())


def test_the_node_needs_no_privilege() -> None:
    """A whole life of a machine by a node of an ordinary uid: its capabilities are none, the helper does the rest."""
    with new_rig() as rig:
        os.chmod(rig.data.root.parent, 0o755)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write, json.dumps(_life_of_a_machine(rig.data, rig.spec())).encode())
            except BaseException as error:  # the child must not return into pytest
                os.write(write, json.dumps({"error": repr(error)}).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as report:
            told = json.load(report)
        os.waitpid(pid, 0)
        assert list(rig.data.sandboxes_dir.iterdir()) == []
    assert told == {"uid": NODE_UID, "capabilities": 0, "first": "agent", "end": "exited"}


def _life_of_a_machine(data: DataDir, spec: Any) -> dict[str, Any]:
    installation = ids.new_installation_id()
    process, ours = launch_helper(data, installation, node_uid=NODE_UID)
    os.setgroups([])
    os.setresgid(NODE_UID, NODE_UID, NODE_UID)
    os.setresuid(NODE_UID, NODE_UID, NODE_UID)
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)

    async def live() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        folder = spec.template.path.parent
        driver = RuncDriver(data, HelperClient(ours), installation=installation, templates_dir=folder)
        assert (await driver.probe()).usable
        handle = await driver.create(spec)
        link = await handle.connect(loop.time() + 10)
        first = "agent" if await loop.sock_recv(link, 4) else "nothing"
        descriptor = handle.groups.make("01ARZ3NDEKTSV4RRFFQ69G5FAV")
        os.close(descriptor)
        handle.groups.remove("01ARZ3NDEKTSV4RRFFQ69G5FAV")
        handle.groups.freeze(frozen=True)
        assert handle.groups.oom_kills() == 0
        recovered = await driver.recover(spec.sandbox_id, handle.state())
        assert recovered is not None
        link.close()
        waiting = asyncio.ensure_future(handle.wait())
        await handle.destroy()
        await handle.reclaim()
        await driver.close()
        return {"first": first, "end": await waiting}

    told = asyncio.run(live())
    # The helper's parent is this process, which may not wait for it before its socket is closed.
    process.wait(10)
    return {"uid": os.getuid(), "capabilities": int(status["CapEff"], 16), **told}
