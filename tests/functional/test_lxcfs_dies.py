"""lxcfs dies under running sandboxes: it comes back, and what they read of their own size with it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from bellglass.testing.stack import Stack

pytestmark = pytest.mark.own_stack(settings={"supervisor.log_limit": 2000})
OPTIONS: dict[str, Any] = {"cpus": 1, "memory": "320MiB", "disk": "512MiB", "lifetime": "15m"}
TOTAL = "awk '/^MemTotal:/ {print $2 * 1024}' /proc/meminfo"
PROC = "cat /proc/cpuinfo /proc/diskstats /proc/loadavg /proc/meminfo /proc/stat /proc/swaps /proc/uptime | wc -l"


def eventually(box: Any, command: str, wanted: str) -> None:
    deadline = time.monotonic() + 20
    while (result := box.exec(command)).stdout != wanted:
        assert time.monotonic() < deadline, result
        time.sleep(0.05)


def test_it_is_started_again_and_read_from(own_stack: Stack) -> None:
    wanted = f"{320 << 20}\n"
    with own_stack.sandbox(**OPTIONS) as box, own_stack.sandbox(**OPTIONS) as idle:
        assert box.exec(TOTAL).stdout == idle.exec(TOTAL).stdout == wanted
        mounts = int(box.exec("grep -c lxcfs /proc/self/mounts").stdout)
        for _ in range(2):
            dead = own_stack.pids()["lxcfs"]
            os.kill(dead, signal.SIGKILL)
            eventually(box, TOTAL, wanted)
            eventually(idle, TOTAL, wanted)
            assert own_stack.pids()["lxcfs"] != dead
        read = box.exec(PROC)
        assert int(read.stdout) > 20 and not read.stderr
        assert int(box.exec("grep -c lxcfs /proc/self/mounts").stdout) == mounts, "the dead ones are gone"
        assert box.exec("echo x > /proc/uptime").exit_code != 0, "read-only as before"
        with own_stack.sandbox(**OPTIONS) as another:
            assert another.exec(TOTAL).stdout == wanted
    logs = {path.name: path.read_text() for path in own_stack.data.logs_dir.glob("supervisor.log*")}
    assert "machines read from lxcfs again" in "".join(logs.values())
    server = own_stack.data.logs_dir / "server.log"
    assert server.with_name("server.log.1").stat().st_size > 2000, "the supervisor woke, and found it too long"


def test_doctor_says_whether_it_answers(own_stack: Stack) -> None:
    done = own_stack.command("doctor", "--data-dir", str(own_stack.data_dir))
    assert b"mounted and answering" in done.stdout, done.stdout
