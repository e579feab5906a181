"""A second process in the sandbox swaps folders and links in a loop while the API works on the path.

10,000 calls of each kind. Whatever the calls answer, a canary on the host is never read, written, moved or removed:
paths are resolved inside the sandbox, so there is no moment in which a link could win. The requests are written by
hand: a real client would take more of the machine than all that is tested.
"""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

CALLS = 10_000
WORKERS = 12
HOST = Path(f"/etc/bellglass-race-{os.getpid()}")
MARK = b"inside"

# Every state lasts about as long as a call takes to look up its path.
SWAPPER = """
import os, shutil, time
os.makedirs('/tmp/race/real', exist_ok=True)
os.chdir('/tmp/race')
def write(path):
    with open(path, 'w') as file: file.write('inside')
def mend():
    os.makedirs('real', exist_ok=True)
    for entry in os.scandir('real'):
        if entry.name != 'canary':
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    if not os.path.exists('real/canary'): write('real/canary')
def clear():
    try:
        if os.path.islink('at'): os.unlink('at')
        else:
            # The API may be writing into it, so that not all of it goes: a fresh name each time.
            old = f'.old{time.monotonic_ns()}'
            os.rename('at', old); shutil.rmtree(old, ignore_errors=True)
    except OSError: pass
def link(target):
    try: os.symlink(target, '.next')
    except FileExistsError: pass
    try: os.rename('.next', 'at')
    except OSError: clear(); os.rename('.next', 'at')
def folder():
    shutil.rmtree('.folder', ignore_errors=True)
    os.mkdir('.folder'); write('.folder/canary'); clear(); os.rename('.folder', 'at')
steps = [lambda: link('HOST'), folder, lambda: link('../../../../../../..HOST'), lambda: link('/tmp/race/real'),
         lambda: link('/proc/1/root' + 'HOST'), mend]
print('swapping', flush=True)
swaps = 0
while True:
    for step in steps:
        try: step()
        except OSError: pass
        time.sleep(0.0003)
    swaps += len(steps)
    if swaps % 600 == 0: write('/tmp/race/.swaps' ); os.truncate('/tmp/race/.swaps', swaps)
"""


def small_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("canary")
        info.size = len(MARK)
        archive.addfile(info, io.BytesIO(MARK))
    return buffer.getvalue()


AT = "/tmp/race/at"
KINDS: dict[str, tuple[str, str, dict[str, str], bytes]] = {
    "read": ("GET", "files", {"path": f"{AT}/canary"}, b""),
    "write": ("PUT", "files", {"path": f"{AT}/canary"}, MARK),
    "write in place": ("PUT", "files", {"path": f"{AT}/canary", "mode": "in_place"}, MARK),
    "list": ("GET", "files/list", {"path": AT}, b""),
    "stat": ("GET", "files/stat", {"path": f"{AT}/canary"}, b""),
    "mkdir": ("POST", "files/mkdir", {}, json.dumps({"path": f"{AT}/made"}).encode()),
    "move": (
        "POST",
        "files/move",
        {},
        json.dumps({"source": f"{AT}/canary", "destination": f"{AT}/moved", "overwrite": True}).encode(),
    ),
    "remove": ("DELETE", "files", {"path": AT, "recursive": "true", "missing_ok": "true"}, b""),
    "archive out": ("GET", "files/archive", {"path": AT}, b""),
    "archive in": ("PUT", "files/archive", {"path": f"{AT}/in", "parents": "true"}, small_tar()),
}


class Line:
    """One connection that is used over and over."""

    def __init__(self, stack: Any) -> None:
        host, port = stack.api_url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._head = f"Host: {host}\r\nAuthorization: Bearer {stack.api_key}\r\nContent-Type: application/json\r\n"
        self._open()

    def _open(self) -> None:
        self._socket = socket.create_connection(self._address, timeout=120)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def call(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        head = f"{method} {target} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        status = int(self._file.readline().split()[1])
        headers = {}
        while (line := self._file.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        if status == 204:
            return status, b""
        if headers.get(b"transfer-encoding") == b"chunked":
            pieces = []
            while True:
                size = self._file.readline()
                if not size:  # cut in the middle: what was sent so far counts, the connection is gone
                    self.close()
                    self._open()
                    return status, b"".join(pieces)
                piece = self._file.read(int(size, 16) + 2)[:-2]
                if not piece:
                    return status, b"".join(pieces)
                pieces.append(piece)
        return status, self._file.read(int(headers[b"content-length"]))


@pytest.fixture(scope="module")
def host_folder() -> Iterator[Path]:
    """Only the wall is to keep it, not its mode."""
    HOST.mkdir()
    HOST.chmod(0o777)
    (HOST / "canary").write_text("host canary")
    (HOST / "canary").chmod(0o666)
    yield HOST
    for path in HOST.iterdir():
        path.unlink()
    HOST.rmdir()


@pytest.fixture(scope="module")
def swapped_box(stack: Any, host_folder: Path) -> Iterator[Any]:
    with stack.sandbox(cpus=2, memory="512MiB", disk="1GiB", lifetime="30m") as box:
        swapper = box.start(["python3", "-c", SWAPPER.replace("HOST", str(host_folder))])
        next(iter(swapper.output(follow=True)))
        yield box
        assert swapper.status().state == "running", swapper.wait().stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_swapped_link_never_leads_to_the_host(swapped_box: Any, stack: Any, host_folder: Path, kind: str) -> None:
    method, route, query, body = KINDS[kind]
    target = f"/v1/sandboxes/{swapped_box.id}/{route}" + (f"?{urlencode(query)}" if query else "")

    def some(_: int) -> Counter[int]:
        line, found = Line(stack), Counter[int]()
        for _ in range(CALLS // WORKERS + 1):
            status, content = line.call(method, target, body)
            found[status] += 1
            assert b"host canary" not in content, f"the host's canary was read: {content!r}"
        line.close()
        return found

    with ThreadPoolExecutor(WORKERS) as pool:
        statuses = sum(pool.map(some, range(WORKERS)), Counter())
    assert [path.name for path in host_folder.iterdir()] == ["canary"]
    assert (host_folder / "canary").read_text() == "host canary"
    assert statuses.total() >= CALLS
    assert not [status for status in statuses if status >= 500], statuses
    assert sum(n for status, n in statuses.items() if status < 300) > CALLS // 1000, (
        f"hardly ever it worked: {statuses}"
    )
    if kind not in ("remove", "archive in"):  # those make do with any state
        assert sum(n for status, n in statuses.items() if status >= 400) > CALLS // 50, f"hardly a swap: {statuses}"
