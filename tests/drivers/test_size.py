"""The machine's limits: they hold, and they are what programs inside see as the size of their machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

MIB = 2**20


@pytest.fixture(scope="module")
def machine(rig: Any) -> Iterator[Any]:
    with rig.machine(memory_bytes=512 * MIB, pids=40) as made:
        yield made


def used_mib(agent: Any) -> int:
    return int(agent.shell("free -m").splitlines()[1].split()[2])


def kill_all(machine: Any) -> None:
    for execution_id in machine.handle.groups.executions():
        machine.handle.groups.kill(execution_id)


def test_cpus_seen(machine: Any) -> None:
    assert machine.agent.shell("nproc") == "1\n"
    assert machine.agent.run("python3", "-c", "import os; print(os.cpu_count())").stdout == "1\n"
    assert machine.agent.shell("grep -c ^processor /proc/cpuinfo") == "1\n"
    assert machine.agent.shell("cat /sys/devices/system/cpu/online") == "0\n"
    assert os.cpu_count() != 1, "the host shows another count"


def test_all_cpus_seen(rig: Any) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    with rig.machine(cpus=float(len(cpus)), cpu_ids=cpus) as machine:
        assert machine.agent.shell("nproc; grep -c ^processor /proc/cpuinfo") == f"{len(cpus)}\n{len(cpus)}\n"


def test_a_part_of_a_cpu(rig: Any) -> None:
    with rig.machine(cpus=0.25) as machine:
        script = "import time\nb = time.process_time(); e = time.monotonic() + 2\nwhile time.monotonic() < e: pass\n"
        used = float(machine.agent.run("python3", "-c", f"{script}print(time.process_time() - b)").stdout)
        assert 0.3 < used < 0.9


def test_memory_seen(machine: Any) -> None:
    total = machine.agent.shell("free -m").splitlines()[1].split()[1]
    assert total == "512"
    assert machine.agent.shell("grep MemTotal /proc/meminfo").split()[1] == str(512 * 1024)
    before = used_mib(machine.agent)
    program = "b = b'x' * (100 << 20); print('held', flush=True); import time; time.sleep(60)"
    hold = machine.agent.start("python3", "-c", program)
    while True:
        frame = machine.agent.frame()
        if frame.stream == hold and b"held" in bytes(frame.payload):
            break
    assert 90 <= used_mib(machine.agent) - before <= 130
    assert machine.agent.shell("cat /proc/swaps | wc -l") == "1\n"
    kill_all(machine)
    assert machine.agent.result(hold).signal == 9


def test_memory_limit(rig: Any) -> None:
    with rig.machine(memory_bytes=128 * MIB) as machine:
        assert machine.agent.run("python3", "-c", "print(len(bytearray(40 << 20)))").exit_code == 0
        assert machine.handle.groups.oom_kills() == 0
        hog = machine.agent.run("python3", "-c", "b'x' * (1 << 30)")
        assert (hog.exit_code, hog.signal) == (None, 9)
        assert machine.handle.groups.oom_kills() == 1
        assert machine.agent.shell("echo alive") == "alive\n"
        filler = machine.agent.run("dd", "if=/dev/zero", "of=/dev/shm/x", "bs=1M", "count=200")
        assert filler.exit_code != 0 or filler.signal == 9
        assert machine.agent.shell("rm -f /dev/shm/x; echo alive") == "alive\n"


def test_processes_limit(machine: Any) -> None:
    program = (
        "import os\nn = 0\n"
        "try:\n while True:\n  if os.fork() == 0: import time; time.sleep(30); os._exit(0)\n  n += 1\n"
        "except OSError as e: print(n, e.errno)\n"
    )
    made, number = map(int, machine.agent.run("python3", "-c", program).stdout.split())
    assert 30 <= made < 40 and number == 11
    kill_all(machine)


def test_disk_limit(rig: Any) -> None:
    with rig.machine(disk_bytes=64 * MIB, inodes=1000) as machine:
        before = os.statvfs(rig.data.root).f_bavail
        full = machine.agent.run("dd", "if=/dev/zero", "of=/root/x", "bs=1M")
        assert "No space left on device" in full.stderr
        written = int(machine.agent.shell("stat -c %s /root/x"))
        assert 40 * MIB < written < 64 * MIB
        taken = (before - os.statvfs(rig.data.root).f_bavail) * os.statvfs(rig.data.root).f_frsize
        assert taken < 200 * MIB
        machine.agent.shell("rm /root/x; mkdir /root/n")
        program = "import os\nn = 0\ntry:\n while True: os.mknod(f'/root/n/{n}'); n += 1\n"
        program += "except OSError as e: print(n, e.errno)"
        made, number = map(int, machine.agent.run("python3", "-c", program).stdout.split())
        assert 900 < made <= 1000 and number == 28
        assert machine.agent.shell("echo alive") == "alive\n"


def test_freed_blocks_go_back_to_the_host(rig: Any) -> None:
    with rig.machine() as machine:
        image = rig.data.sandbox_dir(machine.handle.sandbox_id) / "disk.img"
        machine.agent.shell("head -c 64M /dev/urandom > /root/x && sync -f /root/x")
        full = image.stat().st_blocks * 512
        assert full > 64 * MIB
        machine.agent.shell("rm /root/x && sync -f /root")

        async def shrunk() -> bool:
            for _ in range(100):  # ext4 discards after its commit, which nothing announces
                if image.stat().st_blocks * 512 < full - 60 * MIB:
                    return True
                await asyncio.sleep(0.1)
            return False

        assert rig.run(shrunk())
