"""FIFOs, devices, sockets, folders and the odd files of /proc: refused or bounded at once, and no worker is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bellglass.errors import BellglassError, DiskFull, FilePermission, FileTypeMismatch

SPECIAL = {
    "fifo": "mkfifo /tmp/special-fifo",
    "socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/tmp/special-socket')\"",
    "folder": "mkdir -p /tmp/special-folder",
    "link": "ln -s /tmp/special-fifo /tmp/special-link",
}
PATHS = [f"/tmp/special-{name}" for name in SPECIAL] + ["/dev/zero", "/dev/random", "/dev/null", "/dev/full"]


@pytest.fixture(scope="module", autouse=True)
def specials(shared_box: Any) -> None:
    for command in SPECIAL.values():
        assert shared_box.exec(command).ok


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 20


def refused(call: Callable[[], Any], *errors: type[BellglassError]) -> None:
    started = time.monotonic()
    with pytest.raises(errors):
        call()
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("path", PATHS)
def test_neither_read_nor_written(shared_box: Any, path: str) -> None:
    files = shared_box.files
    refused(lambda: files.read_bytes(path), FileTypeMismatch)
    refused(lambda: files.write_bytes(path, b"x"), FileTypeMismatch, DiskFull, FilePermission)
    assert files.stat(path).type != "file"


def test_many_at_once_hold_no_worker(shared_box: Any) -> None:
    with ThreadPoolExecutor(16) as pool:
        started = time.monotonic()
        waiting = [pool.submit(shared_box.files.read_bytes, PATHS[n % len(PATHS)]) for n in range(64)]
        shared_box.files.write_text("/tmp/beside", "fine")
        assert shared_box.files.read_text("/tmp/beside") == "fine"
        assert all(isinstance(job.exception(), FileTypeMismatch) for job in waiting)
        assert time.monotonic() - started < 10
    assert shared_box.exec(["true"]).ok


@pytest.mark.parametrize(
    "path", ["/proc/self/mem", "/proc/kmsg", "/proc/kcore", "/proc/sysrq-trigger", "/proc/self/clear_refs"]
)
def test_files_of_proc_end(shared_box: Any, path: str) -> None:
    """Their size is a lie and a read may block; what counts is that an answer comes, and is no internal error."""
    started = time.monotonic()
    try:
        shared_box.files.read_bytes(path)
    except BellglassError as error:
        assert error.status < 500, error
    assert time.monotonic() - started < 5


def test_ordinary_files_of_proc_are_read(shared_box: Any) -> None:
    assert "Linux version" in shared_box.files.read_text("/proc/version")
    assert shared_box.files.read_text("/proc/sys/kernel/ostype") == "Linux\n"


def test_a_full_device_is_told(shared_box: Any) -> None:
    result = shared_box.exec("echo x > /dev/full")
    assert result.exit_code != 0 and "No space left" in result.stderr


def test_a_folder_with_special_files_is_listed_downloaded_and_removed(shared_box: Any, tmp_path: Any) -> None:
    setup = (
        "mkdir -p /tmp/mixed && cd /tmp/mixed && mkfifo p && ln -s /dev/zero z && ln -s / up && echo fine > f && "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\""
    )
    assert shared_box.exec(setup).ok
    assert len(list(shared_box.files.list("/tmp/mixed"))) == 5
    shared_box.files.download_dir("/tmp/mixed", tmp_path / "mixed")
    assert (tmp_path / "mixed/f").read_text() == "fine\n"
    assert not (tmp_path / "mixed/p").exists()
    shared_box.files.remove("/tmp/mixed", recursive=True)
    assert not shared_box.files.exists("/tmp/mixed")
    assert shared_box.files.exists("/etc/passwd"), "the removal did not follow the link to the root"
