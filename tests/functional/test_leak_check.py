"""The leak check sees a planted leak of every kind, names it, and is quiet once it is gone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass.node.helper import uids
from bellglass.testing import kernel, leaks
from bellglass.testing.leaks import (
    KINDS,
    SANDBOX_UIDS,
    UID_RANGES,
    HostNamespaces,
    LeakFound,
    Scope,
    assert_no_leak,
    difference,
    host_leaks,
    host_namespaces,
    settled_snapshot,
    snapshot,
)
from tests.functional.waiting import wait_until

pytestmark = pytest.mark.root
INSTALLATION = "leaktest"


@pytest.fixture
def scope() -> Iterator[Scope]:
    """The folders of an installation that runs nothing."""
    with tempfile.TemporaryDirectory(prefix="bellglass-leak-") as folder:
        root = Path(folder)
        (root / "installation.json").write_text(json.dumps({"id": INSTALLATION}))
        for name in ("sandboxes", "node/inputs", "node/executions", "run"):
            (root / name).mkdir(parents=True)
        yield Scope.of(root)


@contextlib.contextmanager
def child(*argv: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ready_child(code: str, *arguments: str, **options: object) -> contextlib.AbstractContextManager:
    """A Python child that runs `code`, says so, and sleeps."""

    @contextlib.contextmanager
    def manager() -> Iterator[subprocess.Popen[bytes]]:
        text = f"{code}\nimport time\nprint('ready', flush=True)\ntime.sleep(600)"
        with child(sys.executable, "-c", text, *arguments, **options) as process:
            assert process.stdout.readline() == b"ready\n"
            yield process

    return manager()


@contextlib.contextmanager
def plant_process_by_uid(scope: Scope) -> Iterator[str]:
    # A process that left its cgroup and its parent is still known by its uid.
    uid = SANDBOX_UIDS[-1000]
    with child("/bin/sh", "-c", "exec sleep 600", user=uid, group=uid, extra_groups=[]):
        yield "process: "


def remove_group(folder: Path) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            return folder.rmdir()
        except OSError as error:  # EBUSY for a moment after its last process has gone
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def plant_process_by_cgroup(scope: Scope) -> Iterator[str]:
    folder = kernel.CGROUP_ROOT / "unified" / f"bellglass-{scope.installation}-x"
    folder.mkdir()
    with child("sleep", "600") as process:
        (folder / "cgroup.procs").write_text(str(process.pid))
        yield "process: sleep 600"
        (folder.parent / "cgroup.procs").write_text(str(process.pid))
    remove_group(folder)


@contextlib.contextmanager
def plant_process_below_a_daemon(scope: Scope) -> Iterator[str]:
    code = "import subprocess; subprocess.Popen(['sleep', '601'])"
    with ready_child(code, "--data-dir", str(scope.data_dir)) as parent:
        [sleeper] = [p for p in kernel.processes() if p.parent == parent.pid]
        yield "process: sleep 601"
        os.kill(sleeper.pid, signal.SIGKILL)


@contextlib.contextmanager
def plant_zombie(scope: Scope) -> Iterator[str]:
    code = "import os\nif os.fork() == 0: os._exit(0)"
    with ready_child(code, "--data-dir", str(scope.data_dir)):
        yield "dead and not reaped)"


HOLDER = (
    "import os\nfrom bellglass.testing.kernel import unshare\nhome = os.open('/proc/self/ns/net', os.O_RDONLY)\n"
    "unshare(0x40000000)\nkept = os.open('/proc/self/ns/net', os.O_RDONLY)\n"
    "from bellglass.node.helper.kernel import setns\nsetns(home, 0x40000000)\nos.close(home)"
)
"""Somebody who holds a network by a descriptor alone, as a test holds those of its private internet."""


@contextlib.contextmanager
def plant_mount(scope: Scope) -> Iterator[str]:
    point = scope.data_dir / "sandboxes" / "m"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "planted", point], check=True)
    yield f"mount: planted (tmpfs, /) on {point}"
    subprocess.run(["umount", point], check=True)
    point.rmdir()


@contextlib.contextmanager
def plant_mount_in_a_daemon(scope: Scope) -> Iterator[str]:
    """In a mount namespace of its own, as daemons have one: seen by reading theirs."""
    code = (
        "import subprocess\nfrom bellglass.testing.kernel import unshare\nunshare(0x20000)\n"
        "subprocess.run(['mount', '--make-rprivate', '/'], check=True)\n"
        "subprocess.run(['mount', '-t', 'tmpfs', 'hidden', '/mnt'], check=True)"
    )
    with ready_child(code, "-m", "bellglass.node", "--data-dir", str(scope.data_dir)):
        yield "mount: hidden (tmpfs, /) on /mnt (seen by bellglass.node)"


@contextlib.contextmanager
def plant_loop_device(scope: Scope) -> Iterator[str]:
    image = scope.data_dir / "sandboxes" / "disk.img"
    with open(image, "wb") as file:
        file.truncate(2**20)
    device = subprocess.run(
        ["losetup", "--find", "--show", image], check=True, capture_output=True, text=True
    ).stdout.strip()
    # The file may be gone long before the device is.
    image.unlink()
    yield f"loop device: {Path(device).name} of {image} (deleted)"
    subprocess.run(["losetup", "--detach", device], check=True)


def plant_cgroup(folder: str) -> object:
    @contextlib.contextmanager
    def plant(scope: Scope) -> Iterator[str]:
        path = kernel.CGROUP_ROOT / folder / f"bellglass-{scope.installation}-parent"
        path.mkdir()
        yield f"cgroup: {path}"
        path.rmdir()

    return plant


@contextlib.contextmanager
def plant_namespace_of_a_process(scope: Scope) -> Iterator[str]:
    code = "from bellglass.testing.kernel import unshare\nunshare(0x08000000)"
    with ready_child(code, "--data-dir", str(scope.data_dir)):
        yield "namespace: ipc:["


def plant_namespace(flag: int, type: str) -> object:
    """Pinned by a descriptor alone: the process that made it is gone, and the one that holds it lives elsewhere."""

    @contextlib.contextmanager
    def plant(scope: Scope) -> Iterator[str]:
        code = f"from bellglass.testing.kernel import unshare\nunshare({flag})"
        with ready_child(code) as maker:
            descriptor = os.open(f"/proc/{maker.pid}/ns/{type}", os.O_RDONLY)
        try:
            yield f"namespaces: {type}"
        finally:
            os.close(descriptor)

    return plant


@contextlib.contextmanager
def plant_link(scope: Scope) -> Iterator[str]:
    subprocess.run(["ip", "link", "add", "bgplanted0", "type", "veth", "peer", "name", "bgplanted1"], check=True)
    yield "link: bgplanted0"
    subprocess.run(["ip", "link", "delete", "bgplanted0"], check=True)


@contextlib.contextmanager
def plant_nft_table(scope: Scope) -> Iterator[str]:
    table = f"bellglass_{scope.installation}"
    subprocess.run(["nft", "add", "table", "inet", table], check=True)
    yield f"nft table: inet {table}"
    subprocess.run(["nft", "delete", "table", "inet", table], check=True)


@contextlib.contextmanager
def plant_uid_range(scope: Scope) -> Iterator[str]:
    UID_RANGES.mkdir(parents=True, exist_ok=True)
    lease = UID_RANGES / "29999"
    lease.symlink_to(f"{scope.installation}/sbplanted")
    yield "uid range: 29999 of sbplanted"
    lease.unlink()


@contextlib.contextmanager
def plant_socket(scope: Scope) -> Iterator[str]:
    path = scope.data_dir / "run" / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        # Unlinked from its folder it listens on.
        path.unlink()
        yield f"socket: {path}"


def plant_file(folder: str) -> object:
    @contextlib.contextmanager
    def plant(scope: Scope) -> Iterator[str]:
        path = scope.data_dir / folder / "sbplanted"
        path.mkdir()
        (path / "left").touch()
        yield f"file: {path}"
        (path / "left").unlink()
        path.rmdir()

    return plant


PLANTS = {
    "process by uid": plant_process_by_uid,
    "process by cgroup": plant_process_by_cgroup,
    "process below a daemon": plant_process_below_a_daemon,
    "process that nobody reaped": plant_zombie,
    "mount": plant_mount,
    "mount in a daemon's namespace": plant_mount_in_a_daemon,
    "loop device": plant_loop_device,
    "cgroup of memory": plant_cgroup("memory"),
    "cgroup of pids": plant_cgroup("pids"),
    "cgroup of the unified tree": plant_cgroup("unified"),
    "namespace of a process": plant_namespace_of_a_process,
    "kernel's namespaces: net": plant_namespace(0x40000000, "net"),
    "kernel's late namespaces: user": plant_namespace(0x10000000, "user"),
    "kernel's namespaces: mnt": plant_namespace(0x00020000, "mnt"),
    "link": plant_link,
    "nft table": plant_nft_table,
    "uid range": plant_uid_range,
    "socket": plant_socket,
    "file of a sandbox": plant_file("sandboxes"),
    "file of inputs": plant_file("node/inputs"),
    "file of executions": plant_file("node/executions"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.alone] * name.startswith("kernel's")) for name in PLANTS]
)
def test_planted_leak_is_seen(scope: Scope, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late = "late" in name
    monkeypatch.setattr(leaks, "LATE_S", 2.0)  # what is there is seen before its time is over, or by another attempt
    for _ in range(6):
        before = settled_snapshot(scope) if late else snapshot(scope)
        with PLANTS[name](scope) as expected:
            seen = ""
            try:
                assert_no_leak(before, deadline_s=0.3, late=late)
            except LeakFound as error:
                seen = str(error)
        if expected in seen or not name.startswith("kernel's"):
            break  # else others on the host may have made or ended namespaces meanwhile: a count tells not whose
    assert expected in seen
    assert_no_leak(before, deadline_s=15 if late else 5, late=late)


def test_the_dead_that_init_has_not_collected_are_nobodys(scope: Scope) -> None:
    """They have lost their cgroup and their lease is given back: any installation would take them for its own."""
    alive = kernel.Process(101, 1, 1, SANDBOX_UIDS[70], "S", "sleep", "")
    below = kernel.Process(102, 1, 101, SANDBOX_UIDS[70], "Z", "[sleep]", "")
    dead = kernel.Process(103, 1, 1, SANDBOX_UIDS[70], "Z", "[sleep]", "")
    assert leaks._processes(scope, [alive, below, dead]) == [alive, below]


def test_leaked_descriptor_of_a_daemon_is_seen(scope: Scope) -> None:
    code = (
        "import os, signal, threading\n"
        "signal.signal(signal.SIGUSR1, lambda *_: held.extend(os.pipe()))\n"
        "signal.signal(signal.SIGUSR2, lambda *_: [os.close(held.pop()) for _ in range(2)])\n"
        "held = []"
    )
    with ready_child(code, "-m", "bellglass.server", "--data-dir", str(scope.data_dir)) as daemon:
        before = snapshot(scope)
        assert any("in bellglass.server" in item for item in before.items["descriptor"])
        daemon.send_signal(signal.SIGUSR1)
        with pytest.raises(LeakFound, match=r"descriptor: pipe in bellglass\.server \(1 before, 3 now\)"):
            assert_no_leak(before, deadline_s=1)
        daemon.send_signal(signal.SIGUSR2)
        assert_no_leak(before, deadline_s=5)


MANY = 10
"""More than the kernel's cache of them may hold freed and count all the same (/proc/slabinfo: 7 to a slab)."""


@pytest.mark.alone
def test_a_namespace_that_a_whole_run_leaves_is_seen(scope: Scope) -> None:
    before, seen = host_namespaces(), None
    last: list[HostNamespaces] = []

    def is_calm() -> bool:
        last.append(host_namespaces())
        return len(last) > 5 and all(one == last[-1] for one in last[-5:])

    def is_seen() -> bool:
        nonlocal before, seen
        last.clear()  # what ended just now, of the attempt before too, is freed while others are made
        wait_until(is_calm, 60, "namespaces come and go")
        before = last[-1]
        with contextlib.ExitStack() as planted:
            for _ in range(MANY):
                planted.enter_context(plant_namespace(0x40000000, "net")(scope))
            seen = host_leaks(before, deadline_s=-5)
        return bool(seen)  # else others on the host came or went meanwhile

    wait_until(is_seen, 60, "it is not seen")
    assert seen is not None and len(seen) == 1
    more = re.fullmatch(r"net namespaces: (\d+) more", seen[0])
    assert more is not None and 1 <= int(more[1]) <= MANY
    assert host_leaks(before) == []


def test_uid_ranges_are_those_of_the_helper() -> None:
    assert (UID_RANGES, SANDBOX_UIDS.start) == (uids.LEASES, uids.UID_BASE)
    assert uids.first_uid(uids.RANGE_COUNT) == SANDBOX_UIDS.stop


def test_every_kind_has_a_plant() -> None:
    planted = {kind for kind in KINDS for name in PLANTS if name.startswith(kind)}
    assert planted | {"descriptor"} == set(KINDS)


def test_it_waits_for_what_is_still_going_away(scope: Scope) -> None:
    before = snapshot(scope)
    (scope.data_dir / "sandboxes" / "slow").touch()
    remover = subprocess.Popen(["sh", "-c", "sleep 0.7; rm slow"], cwd=scope.data_dir / "sandboxes")
    started = time.monotonic()
    assert_no_leak(before, deadline_s=5)
    assert 0.5 < time.monotonic() - started < 3
    assert remover.wait() == 0


def test_others_do_not_disturb(scope: Scope) -> None:
    """Processes, mounts, cgroups and namespaces of somebody else are no leak of this installation."""
    before = snapshot(scope)
    other = kernel.CGROUP_ROOT / "memory" / "bellglass-another1-parent"
    other.mkdir()
    try:
        with ready_child("from bellglass.testing.kernel import unshare\nunshare(0x40000000 | 0x4000000)"):
            assert difference(before, snapshot(scope)) == []
        with ready_child(HOLDER) as holder:
            assert {type for type, _ in kernel.held_namespaces(holder.pid)} == {"net"}
            assert difference(before, snapshot(scope)) == []
    finally:
        other.rmdir()
