"""A second process in the sandbox swaps a file, a folder and links in a loop while the API works on the path.

10,000 calls of each kind. Whatever the calls answer, a canary on the host is never read, written, moved or removed:
paths are resolved by the sandbox's own kernel view, in its own root, so there is no moment in which a link could win.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

CALLS = 10_000
WORKERS = 16
CANARY = Path(f"/etc/bellglass-race-{os.getpid()}/canary")
MARK = b"inside"

# One swap is a rename over a link, so each state lasts a few microseconds.
SWAPPER = """
import os, sys
os.makedirs('/tmp/race/real', exist_ok=True)
open('/tmp/race/real/canary', 'w').write('inside')
os.chdir('/tmp/race')
def link(target):
    try: os.unlink('.next')
    except FileNotFoundError: pass
    os.symlink(target, '.next')
    try: os.rename('.next', 'at')
    except OSError: pass
print('swapping', flush=True)
n = 0
while True:
    n += 1
    link('/etc/FOLDER')
    link('/tmp/race/real')
    link('../../../../../../../../etc/FOLDER')
    link('/proc/1/root/etc/FOLDER')
    try:
        os.unlink('at'); os.mkdir('at')
        with open('at/canary', 'w') as f: f.write('inside')
        os.unlink('at/canary'); os.rmdir('at')
    except OSError: pass
    if n % 64 == 0:
        try:
            os.makedirs('real', exist_ok=True)
            if not os.path.exists('real/canary'): open('real/canary', 'w').write('inside')
        except OSError: pass
"""


def small_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("canary")
        info.size = len(MARK)
        archive.addfile(info, io.BytesIO(MARK))
    return buffer.getvalue()


TAR = small_tar()
AT = "/tmp/race/at"
KINDS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "read": ("GET", "files", {"path": f"{AT}/canary"}, None),
    "write": ("PUT", "files", {"path": f"{AT}/canary"}, MARK),
    "write in place": ("PUT", "files", {"path": f"{AT}/canary", "mode": "in_place"}, MARK),
    "list": ("GET", "files/list", {"path": AT}, None),
    "stat": ("GET", "files/stat", {"path": f"{AT}/canary"}, None),
    "mkdir": ("POST", "files/mkdir", {}, {"path": f"{AT}/made"}),
    "move": ("POST", "files/move", {}, {"source": f"{AT}/canary", "destination": f"{AT}/moved", "overwrite": True}),
    "remove": ("DELETE", "files", {"path": AT, "recursive": "true", "missing_ok": "true"}, None),
    "archive out": ("GET", "files/archive", {"path": AT}, None),
    "archive in": ("PUT", "files/archive", {"path": f"{AT}/in", "parents": "true"}, TAR),
}


@pytest.fixture(scope="module")
def canary_folder() -> Iterator[Path]:
    CANARY.parent.mkdir(exist_ok=True)
    CANARY.write_text("host canary")
    CANARY.chmod(0o666)
    CANARY.parent.chmod(0o777)  # only the wall is to keep it, not its mode
    yield CANARY.parent
    for path in CANARY.parent.iterdir():
        path.unlink()
    CANARY.parent.rmdir()


@pytest.fixture(scope="module")
def swapped_box(stack: Any, canary_folder: Path) -> Iterator[Any]:
    with stack.sandbox(cpus=1, memory="512MiB", disk="1GiB", lifetime="30m") as box:
        swapper = box.start(["python3", "-c", SWAPPER.replace("FOLDER", canary_folder.name)])
        next(iter(swapper.output(follow=True)))
        yield box


@pytest.fixture(scope="module")
def pool_client(stack: Any) -> Iterator[httpx2.Client]:
    with httpx2.Client(
        base_url=stack.api_url,
        headers={"Authorization": f"Bearer {stack.api_key}"},
        timeout=120,
        limits=httpx2.Limits(max_connections=WORKERS, max_keepalive_connections=WORKERS),
        trust_env=False,
    ) as client:
        yield client


def host_is_untouched(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["canary"]
    assert CANARY.read_text() == "host canary"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_swapped_link_never_leads_to_the_host(
    swapped_box: Any, pool_client: httpx2.Client, canary_folder: Path, kind: str
) -> None:
    method, route, query, body = KINDS[kind]
    url = f"/v1/sandboxes/{swapped_box.id}/{route}"
    request: Callable[[], httpx2.Response]
    if isinstance(body, dict):
        request = lambda: pool_client.request(method, url, json=body)  # noqa: E731
    else:
        request = lambda: pool_client.request(method, url, params=query, content=body)  # noqa: E731

    def some(_: int) -> Counter[int]:
        found: Counter[int] = Counter()
        for _ in range(CALLS // WORKERS):
            answer = request()
            found[answer.status_code] += 1
            if b"host canary" in answer.content:
                raise AssertionError(f"the host's canary was read: {answer.content!r}")
        return found

    with ThreadPoolExecutor(WORKERS) as pool:
        statuses = sum(pool.map(some, range(WORKERS)), Counter())
    host_is_untouched(canary_folder)
    assert sum(statuses.values()) == CALLS // WORKERS * WORKERS
    assert not [status for status in statuses if status >= 500 and status != 507], statuses
    successes = sum(n for status, n in statuses.items() if status < 300)
    assert successes > CALLS // 100, f"the race was hardly ever in a state that works: {statuses}"
    assert any(status >= 400 for status in statuses) or kind in ("remove", "archive in"), f"nothing swapped: {statuses}"
