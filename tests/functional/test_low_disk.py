"""The host's disk below its low-water mark: executions stand still before a block is missing, and go on by themselves.

The disk is small and of the tests' own. The order of the tests is that of the file: later ones use what is left.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bellglass import ids
from bellglass.errors import NoCapacity, NotFound
from bellglass.node.executions import starting
from bellglass.node.helper import cgroup
from tests.functional.full_disk import MARK_BYTES, MIB, SmallDisk, small_disk
from tests.functional.waiting import wait_until

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"
ONE_WRITE = """
import mmap, os
descriptor = os.open("one", os.O_CREAT | os.O_WRONLY | {flags})
os.write(descriptor, mmap.mmap(-1, 1 << 30, prot=mmap.PROT_READ))
"""
"""A gibibyte that takes no memory, in one system call."""
HOG = "head -c 400M /dev/urandom | tee big | sha256sum && sync big"


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with small_disk() as made:
        yield made


@pytest.fixture(scope="module")
def keeper(disk: SmallDisk) -> Iterator[Any]:
    """A sandbox that has done its work before the disk runs out."""
    with disk.stack.sandbox(memory="256MiB", disk="256MiB", cpus=1, lifetime="15m") as box:
        yield box


def writes(disk: SmallDisk, box: Any, folder: Path) -> dict[str, Any]:
    """What makes something new, by name."""
    (folder / "tree").mkdir(exist_ok=True)
    (folder / "tree" / "file").write_text("x")

    def create() -> None:
        disk.stack.sandbox(memory="128MiB", disk="64MiB", cpus=1).delete()

    return {
        "exec": lambda: box.exec(["true"]),
        "start": lambda: box.start(["true"]).wait(),
        "write": lambda: box.files.write_text("new", "x"),
        "mkdir": lambda: box.files.mkdir("made"),
        "move": lambda: box.files.move("made", "made", overwrite=True),
        "archive": lambda: box.files.upload_dir(folder / "tree", "tree"),
        "create": create,
    }


def test_executions_freeze_before_the_disk_is_full_and_thaw_by_themselves(
    disk: SmallDisk, keeper: Any, tmp_path: Path
) -> None:
    large, kept = os.urandom(MIB) * 200, b"finished before" * 1000
    keeper.files.write_bytes("large", large)
    keeper.files.write_bytes("kept", kept)
    for act in writes(disk, keeper, tmp_path).values():
        act()  # all of it works while there is room
    counter = keeper.start(COUNTER)
    timed = keeper.start("sleep 1000", timeout=10)
    writer = disk.stack.sandbox(memory="512MiB", disk="2GiB", cpus=1, lifetime="15m")
    with writer:
        hog = writer.start(HOG)
        wait_low_for_good(disk, writer)
        frozen_at = wait_for_silence(counter)
        assert frozen_at > 0 and hog.status().state == "running"

        refused = writes(disk, keeper, tmp_path)
        for name, act in refused.items():
            began = time.monotonic()
            with pytest.raises(NoCapacity) as caught:
                act()
            assert caught.value.details["resource"] == "disk", name
            assert caught.value.details["free"] < caught.value.details["needed"] == MARK_BYTES * 5 // 4
            assert caught.value.retryable and caught.value.hint and time.monotonic() - began < 5, name

        assert keeper.files.read_bytes("kept") == kept
        assert {"kept", "large", "new"} <= {entry.name for entry in keeper.files.list(".")}
        assert keeper.files.stat("kept").size == len(kept) and keeper.info().state == "running"
        assert next(iter(counter.output())).text.startswith("1\n2\n")
        shown = disk.stack.command("status", "--data-dir", str(disk.stack.data_dir)).stdout.decode()
        assert "executions are frozen" in shown
        assert timed.wait().timed_out, "the clock goes on while it stands still, and a frozen tree can be killed"

        assert disk.free() > MARK_BYTES // 2, "what the guest had written is on the disk, and the disk is not full"
        assert stdout_bytes(counter) == frozen_at

        keeper.files.remove("large")
        disk.wait_low(False)
        result = hog.wait()
        assert result.ok, result
        assert hashlib.sha256(writer.files.read_bytes("big")).hexdigest() == result.stdout.split()[0], "a byte is lost"
        wait_until(lambda: stdout_bytes(counter) > frozen_at, 10, "the counter does not go on")
        counter.kill()
        lines = counter.wait().stdout.split()
        assert lines == [str(number) for number in range(1, len(lines) + 1)]
        for box in (keeper, writer):
            wait_until(lambda box=box: "sandbox.thawed" in disk.events(box.id), 10, "no event tells the thaw")
            assert [kind for kind in disk.events(box.id) if kind.endswith(("frozen", "thawed"))][:2] == [
                "sandbox.frozen",
                "sandbox.thawed",
            ]
    for act in writes(disk, keeper, tmp_path).values():
        act()


def test_a_sandbox_can_be_deleted_while_it_is_frozen_and_that_makes_room(disk: SmallDisk, keeper: Any) -> None:
    counter = keeper.start(COUNTER)
    writer = disk.stack.sandbox(memory="512MiB", disk="2GiB", cpus=1, lifetime="15m")
    writer.start("while cat /dev/zero >> more; do :; done")
    disk.wait_low(True)
    wait_for_silence(counter)
    began = time.monotonic()
    writer.delete()
    assert time.monotonic() - began < 10
    disk.wait_low(False)
    before = stdout_bytes(counter)
    wait_until(lambda: stdout_bytes(counter) > before, 10, "the counter does not go on")
    counter.kill()
    counter.wait()


@pytest.mark.parametrize("direct", [False, True], ids=["through the page cache", "directly"])
def test_one_endless_write_is_killed_and_breaks_nobody(disk: SmallDisk, keeper: Any, direct: bool) -> None:
    """Freezing does not interrupt a system call. What goes past the page cache can't even be killed before its end, and
    takes the last block: the neighbours' disks must bear that."""
    counter = keeper.start(COUNTER)
    writer = disk.stack.sandbox(memory="512MiB", disk="2GiB", cpus=1, lifetime="15m")
    with writer:
        write = writer.start(["python3", "-c", ONE_WRITE.format(flags="os.O_DIRECT" if direct else "0")])
        disk.wait_low(True)
        result = write.wait()
        assert (result.exit_code, result.signal) == (137, "SIGKILL"), result
        assert direct or disk.free() > 0
        assert counter.status().state == "running"
        assert keeper.files.exists("kept")
        keeper.files.remove("new")
    disk.wait_low(False)
    before = stdout_bytes(counter)
    wait_until(lambda: stdout_bytes(counter) > before, 10, "the counter does not go on")
    counter.kill()
    counter.wait()
    keeper.files.write_text("new", "the disk is whole")
    assert keeper.exec("echo whole > kept2; sync kept2; cat kept2").stdout == "whole\n"


def test_a_node_that_starts_anew_thaws_what_another_froze(disk: SmallDisk, keeper: Any) -> None:
    counter = keeper.start(COUNTER)
    disk.fill()
    disk.wait_low(True)
    frozen_at = wait_for_silence(counter)
    first = disk.stack.pids()["node"]
    os.kill(first, 9)
    wait_until(lambda: disk.stack.command("status", "--json", "--data-dir", str(disk.stack.data_dir)).returncode == 0
               and disk.stack.pids()["node"] != first, 30, "the node does not come back on a full disk")  # fmt: skip
    assert stdout_bytes(counter) == frozen_at, "still frozen: the disk is still full"
    disk.empty()
    disk.wait_low(False)
    wait_until(lambda: stdout_bytes(counter) > frozen_at, 20, "what the first node froze is not thawed")
    counter.kill()
    counter.wait()


@pytest.mark.parametrize("hold_s", [1.0, pytest.param(starting.START_S + 8, marks=pytest.mark.slow)])
def test_a_start_that_the_freeze_catches_goes_on_after_the_thaw(disk: SmallDisk, keeper: Any, hold_s: float) -> None:
    """However long it stood still before its first instruction; and it is run once."""
    assert keeper.exec("echo ran >> starts; cat starts").stdout == "ran\n"
    agent, new_id = agent_of(disk, keeper), ids.new_ulid()
    with ThreadPoolExecutor(1) as pool:
        os.kill(agent, signal.SIGSTOP)  # it has the start before it, but has not forked yet
        try:
            waiting = pool.submit(keeper.exec, "echo ran >> starts; cat starts", id=new_id)
            wait_until(lambda: is_known(keeper, new_id), 10, "the node does not know of it")
            disk.fill(leave=MARK_BYTES * 3 // 4)
            disk.wait_low(True)
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: group_pids(disk, keeper, new_id), 10, "the agent has not forked")
        with pytest.raises(TimeoutError):
            waiting.result(hold_s)
        (child,) = group_pids(disk, keeper, new_id)
        assert keeper.execution(new_id).status().pid is None, "nobody was told that it runs"
        assert Path(f"/proc/{child}/comm").read_text() != "bash\n"
        disk.empty()
        result = waiting.result(30)
    disk.wait_low(False)
    assert (result.exit_code, result.stdout) == (0, "ran\nran\n")
    keeper.files.remove("starts")


def group_pids(disk: SmallDisk, box: Any, execution_id: str = "") -> list[int]:
    """The host's ids of a sandbox's processes, or of one execution's."""
    group = cgroup.layout().group(cgroup.group_name(disk.stack.scope.installation, box.id))
    files = [file for file in group.rglob("cgroup.procs") if execution_id.lower() in str(file.parent).lower()]
    return [int(pid) for file in files for pid in file.read_text().split()]


def agent_of(disk: SmallDisk, box: Any) -> int:
    for pid in group_pids(disk, box):
        status = Path(f"/proc/{pid}/status").read_text()
        if re.search(r"^NSpid:.*\t1$", status, re.MULTILINE):
            return pid
    raise AssertionError("no process is PID 1 of the sandbox")


def is_known(box: Any, execution_id: str) -> bool:
    try:
        return bool(box.execution(execution_id).status())
    except NotFound:
        return False


def stdout_bytes(execution: Any) -> int:
    return int(execution.status().stdout_bytes)


def wait_for_silence(execution: Any) -> int:
    """Until it says nothing more for a while; answers how much it had said."""
    said = [-1, -2]

    def silent() -> bool:
        time.sleep(0.5)
        said.append(stdout_bytes(execution))
        return said[-1] == said[-2]

    wait_until(silent, 20, "it goes on and on")
    return said[-1]


def wait_low_for_good(disk: SmallDisk, writer: Any) -> None:
    """What is on the way to the disk counts as gone, a part of it twice while it goes: until all of it is there, it may
    thaw once more."""
    deadline = time.monotonic() + 60
    while True:
        disk.wait_low(True)
        sync_disk_of(disk, writer)
        time.sleep(1)
        if disk.info()["low"]:
            return
        assert time.monotonic() < deadline, "it goes to and fro"


def sync_disk_of(disk: SmallDisk, box: Any) -> None:
    """The kernel writes what the guest has written, as it would by itself within half a minute."""
    descriptor = os.open(f"/proc/{group_pids(disk, box)[0]}/root/home", os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.syncfs(descriptor) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(descriptor)
