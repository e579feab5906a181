"""What the kernel holds at this moment, read from /proc and /sys: processes, mounts, loop devices, cgroups,
namespaces, links, sockets, descriptors.

Readers only; which of it belongs to whom is the leak check's business. Everything may vanish between two reads, so a
file that is gone is "nothing there" and not an error. Namespaces are counted by the kernel's own allocators, because
one that is pinned by a descriptor or a bind mount has no process that /proc would show.
"""

# A snapshot reads thousands of /proc entries, for which Path objects are too slow.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
NAMESPACE_TYPES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
SLAB_COUNTED = ("net", "pid", "user", "uts")
"""The namespaces that have an allocator cache of their own; ipc and cgroup ones share the general caches."""

_NS_MNT_GET_NEXT = 0x8010B70B
_NS_MNT_GET_PREV = 0x8010B70C
_MNT_NS_INFO_SIZE = 16


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start_ticks: int
    """Since boot; with the pid it names one process for ever."""
    parent: int
    uid: int
    state: str
    command: str
    cgroups: str


@dataclass(frozen=True, slots=True)
class Mount:
    root: str
    point: str
    filesystem: str
    source: str

    def __str__(self) -> str:
        return f"{self.source} ({self.filesystem}, {self.root}) on {self.point}"


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    except OSError as error:
        if error.errno == errno.ENODEV:  # a loop device that went between open and read
            return ""
        raise


def processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        stat = _read(f"/proc/{name}/stat")
        # The name in brackets may itself hold brackets and blanks.
        left, _, right = stat.rpartition(")")
        fields = right.split()
        if len(fields) < 20:
            continue
        uid = 0
        for line in _read(f"/proc/{name}/status").splitlines():
            if line.startswith("Uid:"):
                uid = int(line.split()[2])
                break
        command = " ".join(_read(f"/proc/{name}/cmdline").split("\0")).strip()
        yield Process(
            pid=int(name),
            start_ticks=int(fields[19]),
            parent=int(fields[1]),
            uid=uid,
            state=fields[0],
            command=command or f"[{left.partition('(')[2]}]",
            cgroups=_read(f"/proc/{name}/cgroup"),
        )


def namespaces_of(pid: int) -> dict[str, int]:
    """Inodes of a process's namespaces by type; empty when it is gone or not ours to look at."""
    found: dict[str, int] = {}
    for type in NAMESPACE_TYPES:
        try:
            found[type] = int(os.readlink(f"/proc/{pid}/ns/{type}").partition("[")[2].rstrip("]"))
        except (OSError, ValueError):
            continue
    return found


def held_namespaces(pid: int) -> set[tuple[str, int]]:
    """Type and inode of the namespaces that a process holds by descriptors."""
    found = set()
    for target in _open_files(pid):
        type, mark, inode = target.partition(":[")
        if mark and type in NAMESPACE_TYPES:
            found.add((type, int(inode.rstrip("]"))))
    return found


def mounts(pid: int | str = "self") -> list[Mount]:
    """Mounts of the namespace that `pid` is in."""
    found = []
    for line in _read(f"/proc/{pid}/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        found.append(Mount(_unescape(fields[3]), _unescape(fields[4]), tail[0], _unescape(tail[1])))
    return found


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def loop_devices() -> dict[str, str]:
    """Attached loop devices: `loop3` to the path of its file (with ` (deleted)` behind where it is unlinked)."""
    found = {}
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        if backing := _read(str(path)).strip():
            found[path.parts[3]] = backing
    return found


def cgroups() -> Iterator[str]:
    """Every cgroup of every hierarchy, as a path."""
    for mount in mounts():
        if mount.filesystem not in ("cgroup", "cgroup2"):
            continue
        for folder, names, _ in os.walk(mount.point, onerror=None):
            for name in names:
                yield f"{folder}/{name}"


def nft_tables() -> set[str]:
    """Of this network namespace, as `inet bellglass_...`. For root; nothing where nft is not installed."""
    try:
        done = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return set()
    return {line.removeprefix("table ") for line in done.stdout.splitlines()}


def links() -> list[str]:
    """Network links of this process's namespace."""
    return sorted(os.listdir("/sys/class/net"))


def unix_sockets() -> Counter[str]:
    """Bound unix sockets of this process's network namespace by path; accepted connections count for theirs."""
    found: Counter[str] = Counter()
    for line in _read("/proc/self/net/unix").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8:
            found[fields[7]] += 1
    return found


def tcp_connections() -> set[str]:
    """Inodes of TCP sockets whose both ends are open (ESTABLISHED), in this process's network namespace."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/self/net/{table}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01":
                found.add(fields[9])
    return found


def descriptors(pid: int, connections: set[str]) -> Counter[str]:
    """Open descriptors of a process by what they are: `socket`, `pipe`, `anon_inode:[eventpoll]`, a path, and
    `tcp connection` for a socket in `connections`, whose peer holds its end as well."""
    found: Counter[str] = Counter()
    for target in _open_files(pid):
        kind, _, inode = target.partition(":")
        if kind == "socket" and inode.strip("[]") in connections:
            found["tcp connection"] += 1
        else:
            found[kind if kind in ("socket", "pipe") else target] += 1
    return found


def _open_files(pid: int) -> Iterator[str]:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    for number in numbers:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue  # closed meanwhile


def namespace_counts() -> dict[str, int]:
    """How many `net pid user uts` namespaces the kernel has allocated, its static first ones not counted (root only).

    By the allocator's statistics, made exact by first handing back what CPUs hold in reserve. A cache that the
    kernel has merged with another's is left out.
    """
    counts: dict[str, int] = {}
    for type in SLAB_COUNTED:
        cache = Path(f"/sys/kernel/slab/{type}_namespace")
        if cache.exists() and int(_read(str(cache / "aliases")).strip() or 0) == 0:
            (cache / "shrink").write_text("1")
            counts[type] = -1
    for line in _read("/proc/slabinfo").splitlines():
        type, _, rest = line.partition("_namespace ")
        if type in counts:
            counts[type] = int(rest.split()[0])
    return {type: count for type, count in counts.items() if count >= 0}


def free_dead_net_namespaces() -> None:
    """Since 6.13 the kernel frees the memory of dismantled network namespaces when it dismantles the next one, so the
    count holds the last batch until then. This makes one and lets it go, and is itself the last batch afterwards."""
    subprocess.run(["unshare", "--net", "true"], check=True, stdin=subprocess.DEVNULL, capture_output=True)


def mount_namespaces() -> set[int] | None:
    """Inodes of the mount namespaces that there are, processes in them or not; None before kernel 6.12 (root only)."""
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        seen = {os.fstat(own).st_ino}
        for request in (_NS_MNT_GET_NEXT, _NS_MNT_GET_PREV):
            current = os.dup(own)
            try:
                while True:
                    info = bytearray(_MNT_NS_INFO_SIZE)
                    struct.pack_into("I", info, 0, _MNT_NS_INFO_SIZE)
                    following = fcntl.ioctl(current, request, info)
                    os.close(current)
                    current = following
                    seen.add(os.fstat(current).st_ino)
            except FileNotFoundError:
                continue  # the end of the list
            except OSError:
                return None  # ENOTTY: an older kernel
            finally:
                os.close(current)
        return seen
    finally:
        os.close(own)


def peak_memory_bytes(pid: int) -> int:
    """VmHWM: the most memory a process ever had resident."""
    return _status_bytes(pid, "VmHWM")


def resident_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmRSS")


def reset_peak_memory(pid: int) -> None:
    """Makes the peak start again from the present."""
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def _status_bytes(pid: int, field: str) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def effective_capabilities(pid: int) -> int:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    raise ProcessLookupError(pid)


def start_ticks(pid: int) -> int:
    """The second half of a process's name; raises ProcessLookupError when it is gone."""
    _, _, right = _read(f"/proc/{pid}/stat").rpartition(")")
    fields = right.split()
    if len(fields) < 20:
        raise ProcessLookupError(pid)
    return int(fields[19])


_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """unshare(2), which Python 3.11 lacks. Never in a process with threads: the other threads stay behind."""
    if _libc.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
