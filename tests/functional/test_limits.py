"""Limits hold inside, are seen inside as the machine's size, and reaching one leaves sandbox and agent usable."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

from bellglass.errors import DiskFull, LimitExceeded


def test_the_disk_is_full_at_its_size(new_box: Callable[..., Any], stack: Any) -> None:
    box = new_box(disk="256MiB")
    host_before = shutil.disk_usage(stack.data_dir).free
    # What fallocate got before it failed stays in the file.
    assert box.exec("fallocate -l 1T big; code=$?; rm -f big; exit $code").exit_code == 1
    result = box.exec("dd if=/dev/zero of=filler bs=1M; df --output=avail . | tail -1", timeout=120)
    assert "No space left on device" in result.stderr
    assert box.exec(["echo", "still runs"]).stdout == "still runs\n"
    assert box.files.read_text("/etc/hostname"), "reading works on a full disk"
    with pytest.raises(DiskFull):
        box.files.write_bytes("more", b"x" * (64 << 20))
    with pytest.raises(DiskFull):
        for number in range(3000):
            box.files.write_bytes(f"more{number}", b"x" * 65536)
    assert host_before - shutil.disk_usage(stack.data_dir).free < 512 << 20, "the host pays at most the limit"
    box.files.remove("filler")
    box.files.write_text("after", "there is room again")


def test_inodes_run_out(new_box: Callable[..., Any]) -> None:
    box = new_box(disk="256MiB")
    limit = box.info().inodes
    program = "import os\nos.makedirs('many')\nfor i in range(10**7): os.close(os.open(f'many/{i}', os.O_CREAT))"
    result = box.exec(["python3", "-c", program], timeout=120)
    assert "No space left on device" in result.stderr
    count = int(box.exec("ls -U many | wc -l").stdout)
    assert limit * 0.5 < count <= limit
    with pytest.raises(DiskFull):
        box.files.write_text("one-more", "x")
    assert box.exec(["echo", "fine"]).stdout == "fine\n"
    box.exec(["rm", "-rf", "many"], timeout=120)
    box.files.write_text("one-more", "x")


def available_mib(box: Any) -> int:
    words = box.exec(["free", "--mebi"]).stdout.split()
    return int(words[12]) if len(words) > 12 else 0  # `free` itself was killed for memory


def test_memory_is_limited_and_the_agent_survives(new_box: Callable[..., Any]) -> None:
    box = new_box(memory="512MiB")
    small = box.exec(["python3", "-c", "b = bytearray(200 << 20); print(len(b))"])
    assert small.stdout == f"{200 << 20}\n"
    for _ in range(3):
        hog = box.exec(["python3", "-c", "b = bytearray(4 << 30)"], timeout=60)
        assert (hog.exit_code, hog.oom_killed, hog.signal) == (137, True, "SIGKILL")
    forked = "import os, time\nfor _ in range(3): os.fork()\nb = bytearray(150 << 20)\ntime.sleep(60)"
    storm = box.start(["python3", "-c", forked])
    deadline = time.monotonic() + 20
    while len(box.exec(["pgrep", "-f", "bytearray"]).stdout.split()) > 4:
        assert time.monotonic() < deadline, "nobody was killed"
    storm.kill()
    storm.wait()
    # Where the kernel chose the first of them, the execution is over, and the others are background processes.
    box.exec(["pkill", "-KILL", "-f", "bytearray"])
    # The kernel takes memory back from the dead a little later; until then it may really kill the next for it.
    deadline = time.monotonic() + 30
    while available_mib(box) < 300:
        assert time.monotonic() < deadline, "memory does not come back"
    killed_by_user = box.exec("kill -9 $$")
    assert (killed_by_user.exit_code, killed_by_user.oom_killed) == (137, False)
    assert box.exec(["echo", "alive"]).stdout == "alive\n"
    assert box.info().state == "running"
    box.exec("rm -f /dev/shm/x; head -c 2G /dev/zero > /dev/shm/x", timeout=60)
    assert box.exec(["rm", "-f", "/dev/shm/x"]).ok, "memory of tmpfs is charged to the sandbox, and it lives on"


def test_processes_are_limited(new_box: Callable[..., Any]) -> None:
    box = new_box(pids=64)
    bomb = (
        "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(20); os._exit(0)\n    n += 1\n"
        "except OSError as error: print(n, error.errno, flush=True); time.sleep(20)"
    )
    started = time.monotonic()
    execution = box.start(["python3", "-c", bomb])
    count, error = next(iter(execution.output(follow=True))).text.split()
    assert 40 <= int(count) < 64 and int(error) == 11, "EAGAIN at the limit"
    answered = time.monotonic()
    with pytest.raises(LimitExceeded):
        box.files.exists("/etc/passwd")
    with pytest.raises(LimitExceeded):
        box.exec(["true"])
    assert box.info().state == "running"
    assert time.monotonic() - answered < 2 and time.monotonic() - started < 15
    execution.kill()
    execution.wait()
    assert box.exec(["echo", "after"]).stdout == "after\n"


def test_a_fork_bomb_hurts_nobody_else(new_box: Callable[..., Any]) -> None:
    bad, good = new_box(pids=128), new_box()
    execution = bad.start("bomb() { bomb | bomb & }; bomb; sleep 30")
    time.sleep(1)
    for _ in range(10):
        started = time.monotonic()
        assert good.exec(["echo", "neighbour"]).stdout == "neighbour\n"
        assert time.monotonic() - started < 2
    execution.kill()
    started = time.monotonic()
    bad.delete()
    assert time.monotonic() - started < 2


def test_the_size_seen_inside_is_the_sandboxes(new_box: Callable[..., Any]) -> None:
    box = new_box(cpus=1, memory="640MiB", disk="2GiB")
    assert box.exec(["nproc"]).stdout == "1\n"
    assert (
        box.exec(["python3", "-c", "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))"]).stdout == "1 1\n"
    )
    assert box.exec("grep -c ^processor /proc/cpuinfo").stdout == "1\n"
    total = int(box.exec("free -b | awk '/^Mem:/ {print $2}'").stdout)
    assert total == 640 << 20
    meminfo = box.exec("awk '/^MemTotal:/ {print $2}' /proc/meminfo").stdout
    assert int(meminfo) * 1024 == total
    size = int(box.exec("df --output=size -B1 / | tail -1").stdout)
    assert 1.7 * (1 << 30) < size <= 2 << 30
    assert (os.cpu_count() or 1) >= 2, "this test tells something only on a host with more than one CPU"
    two = new_box(cpus=2, memory="512MiB")
    assert two.exec(["nproc"]).stdout == "2\n"
    assert box.exec(["sh", "-c", "ulimit -c"]).stdout == "0\n", "no core dumps"


def test_free_changes_with_use(new_box: Callable[..., Any]) -> None:
    box = new_box(memory="512MiB")
    used = "free -b | awk '/^Mem:/ {print $3}'"
    before = int(box.exec(used).stdout)
    program = "b = bytearray(100 << 20); print('held', flush=True); import time; time.sleep(30)"
    execution = box.start(["python3", "-c", program])
    next(iter(execution.output(follow=True)))
    grown = int(box.exec(used).stdout) - before
    execution.kill()
    assert 90 << 20 < grown < 140 << 20, f"free shows {grown >> 20} MiB more for 100 MiB"


def test_cpu_is_limited(new_box: Callable[..., Any]) -> None:
    box = new_box(cpus=0.5)
    program = "import time\nend=time.monotonic()+3\nwhile time.monotonic()<end: pass\nprint(time.process_time())"
    used = float(box.exec(["python3", "-c", program]).stdout)
    assert used < 0.5 * 3 * 1.25, f"half a CPU ran for {used:.2f} s of 3"
    assert box.exec(["nproc"]).stdout == "1\n"


def test_shared_memory_fits_the_sandbox(new_box: Callable[..., Any]) -> None:
    box = new_box(memory="512MiB")
    size = int(box.exec("df --output=size -B1 /dev/shm | tail -1").stdout)
    assert 128 << 20 <= size <= 512 << 20


def test_too_much_is_told_before_it_starts(new_box: Callable[..., Any]) -> None:
    from bellglass.errors import BellglassError

    for options in ({"memory": "900TiB"}, {"disk": "900TiB"}, {"cpus": 63}):
        with pytest.raises(BellglassError) as raised:
            new_box(**options)
        assert raised.value.status in (422, 503), raised.value
        assert next(iter(options)) in str(raised.value).lower()
