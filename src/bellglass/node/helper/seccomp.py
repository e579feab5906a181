"""The seccomp profile of the container tier: an allowlist of our own, in the form that OCI runtimes take.

Only the native 64-bit ABI is allowed. 32-bit and x32 programs die with SIGSYS: they reach the kernel through
multiplexed calls (`socketcall`, `ipc`) and a second numbering, which argument checks do not cover.

Arguments are compared in full 64 bits, so each check names what is allowed: a list of what is refused could be
passed by setting bits that the kernel ignores.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

ENOSYS: Final = 38

# CLONE_NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET. CLONE_NEWTIME is a signal number to clone(2).
CLONE_NAMESPACES: Final = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

# PER_LINUX, PER_LINUX32, each with UNAME26, and the query. ADDR_NO_RANDOMIZE and READ_IMPLIES_EXEC are left out:
# they weaken programs that run with other rights.
PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

AF_UNIX: Final = 1
AF_INET: Final = 2
AF_INET6: Final = 10
AF_NETLINK: Final = 16
# route: interfaces and addresses; sock_diag: `ss`; audit: sudo asks for it and takes the kernel's own refusal.
NETLINK_PROTOCOLS: Final = (0, 4, 9)


@dataclass(frozen=True, slots=True)
class Syscalls:
    """The names of seccomp.toml for one architecture, and those answered with ENOSYS."""

    allowed: tuple[str, ...]
    enosys: tuple[str, ...]


def syscalls(*, arch: str) -> Syscalls:
    """Reads the list. Raises ValueError for an architecture without a profile."""
    if arch not in ARCHITECTURES:
        raise ValueError(f"no seccomp profile for {arch!r}, only for {', '.join(ARCHITECTURES)}")
    data = tomllib.loads(resources.files(__package__).joinpath("seccomp.toml").read_text("utf-8"))
    allowed = [name for group in data["allow"].values() for name in group]
    enosys = [name for group in data["enosys"].values() for name in group]
    return Syscalls(allowed=tuple(allowed + data["allow_on"][arch]), enosys=tuple(enosys))


def profile(*, arch: str) -> dict[str, Any]:
    """`linux.seccomp` of an OCI configuration. `arch` as `platform.machine()` tells it.

    `defaultErrnoRet` is left out on purpose: without it the runtime refuses with EPERM, and runc answers ENOSYS
    for calls newer than the list. Names that the host's libseccomp does not know are skipped by the runtime.
    Raises ValueError for an architecture without a profile.
    """
    names = syscalls(arch=arch)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": [ARCHITECTURES[arch]],
        "syscalls": [
            {"names": list(names.allowed), "action": "SCMP_ACT_ALLOW"},
            {"names": list(names.enosys), "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
            # The flags are clone's first argument on both architectures.
            _allow("clone", _masked(0, mask=CLONE_NAMESPACES, equals=0)),
            *(_allow("personality", _equal(0, value)) for value in PERSONALITIES),
            *(_allow("socket", _equal(0, family)) for family in (AF_UNIX, AF_INET, AF_INET6)),
            *(_allow("socket", _equal(0, AF_NETLINK), _equal(2, value)) for value in NETLINK_PROTOCOLS),
            _allow("socketpair", _equal(0, AF_UNIX)),
        ],
    }


def _allow(name: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": list(conditions)}


def _equal(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(index: int, *, mask: int, equals: int) -> dict[str, Any]:
    """True when argument & mask == equals: the OCI form carries the mask in `value`."""
    return {"index": index, "value": mask, "valueTwo": equals, "op": "SCMP_CMP_MASKED_EQ"}
