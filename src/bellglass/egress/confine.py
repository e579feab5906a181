"""What proxy and resolver give up before they read the first byte of a sandbox.

Each is started by root, imports all of its program, binds its control socket, and then leaves everything behind: the
host's files (chroot into a folder that holds what both may see), root and every capability, and each system call that
its work does not need. So nothing is imported after that, no thread or process is made, no program executed.

    confine.enter(confine.RESOLVER, identity, root="/var/lib/bellglass/run/egress", listen=[control], keep=[...])

A chroot alone is no wall for a process that holds a folder or root; here nothing holds either. What is left to reach by
address is the other wall's: nft's rules for the process's uid.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bellglass.egress import seccomp
from bellglass.egress.seccomp import Syscalls

_PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 4, 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_LAST_POSSIBLE_CAP = 63
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_RESTRICT_SELF = 444, 446  # the same on x86_64 and aarch64
_LANDLOCK_CREATE_VERSION, _SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 1, 2
SCOPING_LANDLOCK = 6
MIB = 1 << 20


class Identity(NamedTuple):
    uid: int
    gid: int


class Confinement(NamedTuple):
    """What one daemon keeps."""

    syscalls: Syscalls
    memory_bytes: int
    """Address space. Beyond it a piece of work fails, not the host."""
    descriptors: int


RESOLVER = Confinement(seccomp.SERVING, 2048 * MIB, 65_536)
PROXY = Confinement(seccomp.SERVING | seccomp.DIALING, 4096 * MIB, 131_072)


def enter(
    confinement: Confinement,
    identity: Identity,
    *,
    root: str,
    listen: Iterable[socket.socket] = (),
    keep: Iterable[int] = (),
) -> None:
    """For good. `listen`: sockets that are bound and listen from now on, as the new uid; `keep`: descriptors besides
    these and the standard ones; all others are closed. Raises OSError (the process must end then), RuntimeError where
    something did not hold."""
    listening = list(listen)
    if identity.uid == 0 or identity.gid == 0:
        raise RuntimeError("a confined daemon needs a uid and gid of its own, not root's")
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError("a confined daemon has one thread: the filter would bind this one alone")
    _close_others({0, 1, 2, *keep, *(one.fileno() for one in listening)})
    os.chroot(root)
    os.chdir("/")
    _limit(confinement)
    libc = ctypes.CDLL(None, use_errno=True)
    _drop_bounding_set(libc)
    os.setgroups([])
    os.setresgid(identity.gid, identity.gid, identity.gid)
    # With the last uid of root go the capabilities, effective and permitted.
    os.setresuid(identity.uid, identity.uid, identity.uid)
    _prctl(libc, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
    _prctl(libc, _PR_SET_DUMPABLE, 0)
    _scope(libc)
    for one in listening:
        one.listen(16)
    seccomp.install(libc, confinement.syscalls)
    _prove(root)


def _close_others(kept: set[int]) -> None:
    """Not least every folder: one descriptor of a folder is a way out of a chroot."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in kept:
            try:
                os.close(int(entry.name))
            except OSError:
                continue  # the descriptor that listed them
    for descriptor in kept:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise RuntimeError(f"descriptor {descriptor} is a folder: a way out of the chroot")


def _limit(confinement: Confinement) -> None:
    for which, most in (
        (resource.RLIMIT_AS, confinement.memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(which, (most, most))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(confinement.descriptors, hard) if hard != resource.RLIM_INFINITY else confinement.descriptors
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (confinement.descriptors, confinement.descriptors))
    except (ValueError, PermissionError):
        # In some containers root may not raise its hard limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))


def _drop_bounding_set(libc: ctypes.CDLL) -> None:
    for capability in range(_LAST_POSSIBLE_CAP + 1):
        if libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _prctl(libc, _PR_CAPBSET_DROP, capability)


def landlock_version(libc: ctypes.CDLL) -> int:
    """Of the kernel's Landlock; 0 where it has none, or it is off."""
    return max(0, libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_VERSION))


def _scope(libc: ctypes.CDLL) -> None:
    """No abstract unix socket, no signal to what is outside: on top of the rest, where the kernel can (Linux 6.12)."""
    if landlock_version(libc) < SCOPING_LANDLOCK:
        return
    wanted = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL)
    ruleset = libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, wanted, ctypes.c_size_t(len(wanted)), 0)
    if ruleset < 0 or libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"landlock: {os.strerror(number)}")
    os.close(ruleset)


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def _prove(root: str) -> None:
    """By trying: a confinement that does not hold must not serve."""
    for what, attempt, refusal in (
        ("setuid(0)", lambda: os.setuid(0), PermissionError),
        ("chroot", lambda: os.chroot("/"), PermissionError),
        ("writing a file", lambda: os.close(os.open("/proof", os.O_WRONLY | os.O_CREAT, 0o600)), PermissionError),
        ("a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close(), PermissionError),
        ("executing a program", lambda: os.execv("/proof", ["proof"]), PermissionError),
        ("seeing the host's files", lambda: Path(root).stat(), OSError),
    ):
        try:
            attempt()
        except refusal:
            continue
        raise RuntimeError(f"the confinement does not hold: {what} works")
