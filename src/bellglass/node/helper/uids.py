"""Leases of host uid ranges: 65536 ids each, from 0x70000000 up, so above what distributions and systemd hand out.

Ranges are shared by all installations of a host. A lease is a symbolic link `/run/bellglass/uids/<index>` whose text is
`<installation>/<sandbox id>`: made in one step together with its owner's name, and by one caller only. Only the
installation that made a lease removes it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from bellglass.errors import InternalError, NoCapacity
from bellglass.node.helper.wait import until

UID_BASE = 0x70000000
RANGE_SIZE = 65536
RANGE_COUNT = 30_000
MOST_OF_ONE = 10_000
"""An installation whose node is no longer itself must not take what others on the host need."""
LEASES = Path("/run/bellglass/uids")


def first_uid(index: int) -> int:
    """The host uid (and gid) that is root inside."""
    return UID_BASE + index * RANGE_SIZE


def lease(installation: str, sandbox_id: str) -> int:
    """The index of the sandbox's range, taken now if it has none. Raises NoCapacity when all are taken."""
    if (index := find(installation, sandbox_id)) is not None:
        return index
    LEASES.mkdir(mode=0o755, parents=True, exist_ok=True)
    if sum(owner.startswith(f"{installation}/") for _, owner in _owners()) >= MOST_OF_ONE:
        raise NoCapacity(
            f"this installation has {MOST_OF_ONE} uid ranges, the most that one may have",
            hint="delete sandboxes",
            details={"resource": "uids"},
        )
    start = secrets.randbelow(RANGE_COUNT)
    for step in range(RANGE_COUNT):
        index = (start + step) % RANGE_COUNT
        try:
            (LEASES / str(index)).symlink_to(f"{installation}/{sandbox_id}")
        except FileExistsError:
            continue
        return index
    raise NoCapacity(
        f"all {RANGE_COUNT} uid ranges of this host are taken",
        hint=f"see {LEASES}: leases of installations that no longer exist can be removed by hand",
        details={"resource": "uids"},
    )


def find(installation: str, sandbox_id: str) -> int | None:
    wanted = f"{installation}/{sandbox_id}"
    return next((index for index, owner in _owners() if owner == wanted), None)


def release(installation: str, sandbox_id: str, deadline: float) -> None:
    """Give the range back; none is success. Raises InternalError if a process of the host has a uid in it when the
    monotonic `deadline` has passed."""
    index = find(installation, sandbox_id)
    if index is None:
        return
    # The last of them may be on their way out, though their group was empty.
    if not until(lambda: not holders_of(index), deadline, 0.01):
        holders = holders_of(index)[:8]
        raise InternalError(f"uid range {index} of {sandbox_id} is still in use by processes {holders}")
    (LEASES / str(index)).unlink(missing_ok=True)


def holders_of(index: int) -> list[int]:
    """Processes with an effective uid in the range. In a user namespace that maps the range alone, nobody has another
    real, saved or file system uid than one of it."""
    low, high = first_uid(index), first_uid(index + 1)
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - strings: hundreds of Path objects cost more than all the reading
        # The owner of this one folder is the process's effective uid, dumpable or not. Reading `status` takes five
        # times as long, and there may be thousands.
        try:
            if name.isdecimal() and low <= os.stat(f"/proc/{name}").st_uid < high and not _is_dead(name):  # noqa: PTH116
                found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _is_dead(pid: str) -> bool:
    """Only not yet collected by its parent, which may be anybody's."""
    status = Path(f"/proc/{pid}/status").read_bytes()
    state = status.partition(b"\nState:\t")[2][:1]
    threads = status.partition(b"\nThreads:\t")[2].partition(b"\n")[0]
    return state in (b"Z", b"X") and int(threads) <= 1


def _owners() -> Iterator[tuple[int, str]]:
    """Indices that are taken, and by whom."""
    if LEASES.is_dir():
        for name in os.listdir(LEASES):  # noqa: PTH208 - names alone: there may be thousands
            if name.isdecimal():
                try:
                    yield int(name), os.readlink(f"{LEASES}/{name}")  # noqa: PTH115 - as above
                except FileNotFoundError:
                    continue  # released meanwhile
