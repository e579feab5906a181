"""What the helper knows from its start parameters, and the folders that follow from it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bellglass.datadir import DataDir
from bellglass.errors import InternalError, SandboxFailed
from bellglass.node.helper import cgroup, oci, seccomp, uids
from bellglass.node.helper.wait import until

DISK = "disk.img"
"""The sandbox's disk, in its folder."""
MACHINE = "machine.json"
"""What it was started with, beside it: for a node whose journal has lost it."""
STAGING = Path("/run/bellglass/stage")
"""An empty folder on the host. Each start mounts a tmpfs on it in a mount namespace of its own."""


@dataclass(frozen=True, slots=True)
class Context:
    data: DataDir
    templates_dir: Path
    blanks_dir: Path
    """Empty disk images, shared by all installations of the host."""
    installation: str
    node_uid: int
    node_gid: int
    proxy_uid: int
    proxy_gid: int
    resolver_uid: int
    resolver_gid: int
    machine: str
    """As platform.machine() tells it: chooses the agent's binary and the seccomp profile."""

    def group_name(self, sandbox_id: str) -> str:
        return cgroup.group_name(self.installation, sandbox_id)

    @property
    def has_lxcfs(self) -> bool:
        """Raises SandboxFailed when it was mounted and has died: its files then answer nothing but errors."""
        file = self.data.lxcfs_dir / oci.LXCFS_FILES[0]
        try:
            return file.exists()
        except OSError as error:
            raise SandboxFailed(
                f"lxcfs has died: {file}: {error.strerror}", hint="bellglass down, then bellglass up"
            ) from error

    @property
    def agent_binary(self) -> Path:
        return Path(__file__).parents[2] / "_agent" / f"bellglass-agent-{self.machine}"


@cache
def seccomp_profile(machine: str) -> dict[str, Any]:
    """Read once: the helper does so before it forks anything."""
    return seccomp.profile(arch=machine)


def make_folders(context: Context, sandbox_id: str, index: int) -> None:
    """The sandbox's folder is there; the node may then pass through it. In it `agent/`, where the node makes its
    socket.

    `agent/` belongs to the sandbox's root and the node's group and to nobody else; it is mounted read-only inside. It
    appears by a rename, whole: once the node can write in it, root no longer follows a path through it.
    """
    binary = context.agent_binary
    if not binary.exists():
        raise SandboxFailed(f"the guest agent is not built: {binary} is missing", hint="make agent")
    folder = context.data.sandbox_dir(sandbox_id)
    if not context.data.agent_dir(sandbox_id).exists():
        draft = folder / ".agent"
        with suppress(FileNotFoundError):
            shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        shutil.copyfile(binary, draft / "bellglass-agent")
        (draft / "bellglass-agent").chmod(0o755)
        os.chown(draft, uids.first_uid(index), context.node_gid)
        draft.chmod(0o770)
        draft.rename(context.data.agent_dir(sandbox_id))
    os.chown(folder, 0, context.node_gid)
    folder.chmod(0o710)


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot: with the pid it names one process for ever."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


@contextmanager
def locked(context: Context, sandbox_id: str, timeout_s: float) -> Iterator[bool]:
    """One operation at a time per sandbox, also across helpers: one that a dying node left behind ends its work first.

    Yields whether the sandbox's folder exists. Raises InternalError when the other one does not end in time.
    """
    deadline = time.monotonic() + timeout_s
    folder = context.data.sandbox_dir(sandbox_id)
    while True:
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            yield False
            return
        try:
            # flock has no deadline of its own; contention is rare.
            if not until(lambda: _try_flock(fd), deadline):  # noqa: B023 - used at once
                raise InternalError(f"another operation on {sandbox_id} takes longer than {timeout_s:g} s")
            if os.fstat(fd).st_nlink == 0:
                continue  # the other one has removed it
            yield True
            return
        finally:
            os.close(fd)


def _try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
