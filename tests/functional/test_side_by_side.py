"""Two installations on one host: one is killed and cleaned, even its folder is removed; the other notices nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

from bellglass.supervise.processes import ProcessId
from bellglass.testing import kernel
from bellglass.testing.leaks import assert_no_leak, snapshot, snapshot_of_nothing
from bellglass.testing.machine_restart import lose_power, unmount_gateways
from bellglass.testing.stack import Stack
from tests.conftest import SANDBOX_OPTIONS
from tests.functional.own import own_installation

OWN = ("cgroup", "uid range", "loop device", "mount", "socket")
TICK = "import itertools, time\nfor i in itertools.count(1): open('tick', 'w').write(str(i)); time.sleep(0.1)"
"""One process, without children that come and go."""


def kill_all_daemons(stack):
    """kill -9, the supervisor first: nobody starts another."""
    pids = stack.pids()
    for name in ("supervisor", "node", "helper", "server", "proxy", "resolver"):
        process = ProcessId.of(pids[name])
        process.send(signal.SIGKILL)
        assert process.wait(time.monotonic() + 10), name


def things(stack):
    """What has the installation's name, and the very processes of its sandboxes."""
    scope = stack.scope
    found = snapshot(scope).items
    name = f"bellglass-{scope.installation}/"
    # A dead one may wait long to be collected by whoever its parent is by now.
    inside = {(one.pid, one.start_ticks) for one in kernel.processes() if name in one.cgroups and one.state != "Z"}
    return {"process": inside, **{kind: dict(found[kind]) for kind in OWN}}


def ticks(box):
    before = int(box.files.read_text("tick") or 0)
    deadline = time.monotonic() + 10
    while int(box.files.read_text("tick") or 0) <= before:
        assert time.monotonic() < deadline, "its processes stand still"
        time.sleep(0.05)
    return True


def test_one_that_is_killed_and_cleaned_never_touches_the_other(stack, new_box):
    box = new_box()
    box.exec("echo 0 > tick")
    box.start(["python3", "-c", TICK])
    assert ticks(box)
    pids, before = stack.pids(), things(stack)
    assert all(before[kind] for kind in ("process", "cgroup", "uid range", "loop device")), before

    with own_installation() as other:
        theirs = other.sandbox(**SANDBOX_OPTIONS)
        assert things(other)["uid range"].keys().isdisjoint(before["uid range"]), "no range is leased twice"
        kill_all_daemons(other)
        assert things(other)["process"], "its sandbox outlives its daemons"
        assert things(stack) == before and ticks(box)
        other.down(sandboxes=True)
        left = {kind: found for kind, found in things(other).items() if kind in before and found}
        assert set(left) <= {"mount", "socket"}, left
        assert things(stack) == before and ticks(box)
        theirs.close()
        other.up()
    assert things(stack) == before and ticks(box)

    # The same, but its owner removes the folder below running sandboxes, and then cleans up by hand.
    other = Stack.start()
    theirs, scope = other.sandbox(**SANDBOX_OPTIONS), other.scope
    lxcfs = ProcessId.of(other.pids()["lxcfs"])
    kill_all_daemons(other)
    lxcfs.send(signal.SIGKILL)
    assert lxcfs.wait(time.monotonic() + 10)
    subprocess.run(["umount", "--lazy", str(other.data.lxcfs_dir)], check=False)
    unmount_gateways(other.data)
    description = other.data.installation_file.read_text()
    shutil.rmtree(other.data_dir)
    assert things(stack) == before and ticks(box)
    other.data_dir.mkdir()
    other.data.installation_file.write_text(description)
    lose_power(other)
    shutil.rmtree(other.data_dir)
    theirs.close()
    assert_no_leak(snapshot_of_nothing(scope), deadline_s=10)

    assert things(stack) == before and ticks(box)
    assert stack.pids() == pids, "its daemons are the same processes"
    own_size = box.exec("free -m | awk '/^Mem/ {print $2}'").stdout.strip()
    assert own_size == "512", "its lxcfs still answers"
    fresh = new_box()
    assert fresh.exec(["true"]).ok
    assert not Path(other.data_dir).exists()
