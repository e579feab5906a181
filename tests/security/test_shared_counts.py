"""Counts of the kernel that are not one sandbox's own by themselves: what one uses up, the next one still has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bellglass.node.helper import cgroup

pytestmark = [pytest.mark.root]

USE_UP = """
import ctypes, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
attributes = (ctypes.c_long * 8)(0, 10, 8192)
def terminal(_):
    try: return os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    except OSError: return -1
kinds = {
    "inotify": lambda _: libc.inotify_init1(0),
    "terminals": terminal,
    "queues": lambda n: libc.mq_open(b"/q%d" % n, os.O_CREAT | os.O_RDWR, 0o600, attributes),
}
for name, make in kinds.items():
    made = next((n for n in range(5000) if make(n) < 0), 5000)
    print(name, made, flush=True)
sys.stdin.read()
"""
TRY = USE_UP.replace("range(5000)", "range(1)").replace("5000", "1")


def test_counts_are_each_sandboxs_own(new_box: Callable[..., Any]) -> None:
    greedy, other = new_box(), new_box()
    holder = greedy.start(["python3", "-c", USE_UP], stdin_open=True)
    try:
        told = ""
        for chunk in holder.output(follow=True):
            told += chunk.text
            if "queues" in told:
                break
        used = dict(line.split() for line in told.splitlines())
        assert all(0 < int(count) < 5000 for count in used.values()), f"each has a limit: {used}"
        assert int(used["terminals"]) <= 256, "a small part of the host's"
        assert other.exec(["python3", "-c", TRY], stdin="").stdout == "inotify 1\nterminals 1\nqueues 1\n"
    finally:
        holder.kill()


def test_open_files_of_the_host_do_not_run_out(shared_box: Any) -> None:
    most_of_one = int(shared_box.exec("ulimit -Hn").stdout) * int(shared_box.info().pids)
    assert int(Path("/proc/sys/fs/file-max").read_text()) > 100 * most_of_one


def test_buffers_of_sockets_are_counted(shared_box: Any, stack: Any) -> None:
    place = cgroup.layout()
    if place.is_v2:
        return  # part of memory.current
    folder = place.memory / cgroup.group_name(stack.scope.installation, shared_box.id)
    limit = int((folder / "memory.kmem.tcp.limit_in_bytes").read_text())
    assert limit == shared_box.info().memory_bytes // 8
    fill = (
        "import socket\nkept = []\nlistener = socket.create_server(('127.0.0.1', 0))\nfor _ in range(20):\n"
        "    sender = socket.create_connection(listener.getsockname()); sender.setblocking(False)\n"
        "    kept += [sender, listener.accept()[0]]\n    try:\n        while True: sender.send(bytes(65536))\n"
        "    except BlockingIOError: pass\nprint(len(kept))\n"
    )
    assert shared_box.exec(["python3", "-c", fill], timeout=30).stdout == "40\n"
    assert int((folder / "memory.kmem.tcp.max_usage_in_bytes").read_text()) > os.sysconf("SC_PAGE_SIZE")
