"""What a sandbox fills up is its own: an error inside, nothing for its neighbours, nothing for the host's disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from bellglass.errors import DiskFull

MIB = 2**20
DISK_MIB = 128
LOG_MIB = 64


class Filling(NamedTuple):
    command: str
    user: str
    says: str
    then: str | None
    """A path that can't be written any more, told as DiskFull."""


NO_SPACE = "No space left on device"
MANY = "import os\nos.makedirs('many')\nfor i in range(10**7): os.close(os.open(f'many/{i}', os.O_CREAT))"
FILLINGS = {
    "disk": Filling("dd if=/dev/zero of=filler bs=1M", "user", NO_SPACE, "more"),
    "disk by fallocate": Filling("fallocate -l 1T filler; dd if=/dev/zero of=filler2 bs=1M", "user", NO_SPACE, "more"),
    "inodes": Filling(f'python3 -c "{MANY}"', "user", NO_SPACE, "more"),
    "/dev/shm": Filling("dd if=/dev/zero of=/dev/shm/filler bs=1M", "user", NO_SPACE, "/dev/shm/more"),
    "/run": Filling("dd if=/dev/zero of=/run/filler bs=1M", "root", NO_SPACE, "/run/more"),
    "/dev": Filling("dd if=/dev/zero of=/dev/filler bs=4k", "root", NO_SPACE, "/dev/more"),
    "output of the first process": Filling("yes | head -c 50M >> /proc/1/fd/1", "root", "Permission denied", None),
    "system log": Filling("yes | head -n 100000 | logger; ls /dev/log", "root", "No such file", None),
    "core": Filling("ulimit -c unlimited", "root", "cannot modify limit", None),
}


@pytest.mark.parametrize("kind", FILLINGS)
def test_a_filling_is_its_own_problem(
    kind: str, new_box: Callable[..., Any], shared_box: Any, stack: Any, tmp_path: Any
) -> None:
    filling = FILLINGS[kind]
    box = new_box(disk=f"{DISK_MIB}MiB")
    box.files.write_text("before", "still here")
    if filling.then:
        box.files.write_bytes(filling.then, b"x" * 65536, user=filling.user)  # there is room now
        box.files.remove(filling.then, user=filling.user)
    host_free = shutil.disk_usage(stack.data_dir).free
    result = box.exec(filling.command, user=filling.user, timeout=120)
    assert filling.says in result.stderr, result
    assert check_neighbour(shared_box) < 5
    # Other installations write on the same disk: the bound is wide, and what it must not be is what was asked for.
    assert host_free - shutil.disk_usage(stack.data_dir).free < (DISK_MIB + 256) * MIB

    assert box.exec(["echo", "still runs"]).stdout == "still runs\n"
    assert box.files.read_text("before") == "still here" and box.info().state == "running"
    if filling.then:
        with pytest.raises(DiskFull) as caught:
            for number in range(200):
                box.files.write_bytes(f"{filling.then}{number}", b"x" * 65536, user=filling.user)
        assert caught.value.details["errno"] == "ENOSPC" and caught.value.status == 507
    began = time.monotonic()
    box.delete()
    assert time.monotonic() - began < 10


def test_output_without_end_stays_in_its_ring(new_box: Callable[..., Any], shared_box: Any, stack: Any) -> None:
    box = new_box()
    flood = box.start("head -c 200M /dev/zero | tr '\\0' y; echo the end")
    logs = stack.data.executions_dir / box.id
    deadline = time.monotonic() + 120
    while flood.status().state == "running":
        assert time.monotonic() < deadline, "the flood does not end"
        assert check_neighbour(shared_box) < 5
        assert size_of(logs) <= (LOG_MIB + 1) * MIB
        time.sleep(0.1)
    assert flood.status().truncated and flood.status().stdout_bytes == 200 * MIB + len("the end\n")
    assert 0 < size_of(logs) <= (LOG_MIB + 1) * MIB
    tail = b"".join(chunk.data for chunk in flood.output(offset=200 * MIB))
    assert tail == b"the end\n"


def size_of(folder: Any) -> int:
    """Files come and go while the ring turns."""
    size = 0
    for path in folder.glob("*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size


def check_neighbour(box: Any) -> float:
    """Seconds that a command and a durable write take next door."""
    began = time.monotonic()
    assert box.exec(["echo", "fine"]).stdout == "fine\n"
    box.files.write_text("neighbour", "fine")
    return time.monotonic() - began
