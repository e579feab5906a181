"""The allowlist: never wider than a published default but for named reasons, and without the known ways out.

Whether the kernel really refuses is tested inside a sandbox; here it is the profile as data.
"""

from __future__ import annotations

import ctypes
import json
from itertools import product
from pathlib import Path

import pytest

from bellglass.node.helper import seccomp

PUBLISHED = Path("/usr/share/containers/seccomp.json")

# Allowed here and not in the published default, which is older than these calls.
NEWER = {
    "cachestat": "page cache of a file that is open already",
    "fchmodat2": "fchmodat with flags; the C library asks for it first",
    "futex_waitv": "several futexes at once; Wine and games",
    "mseal": "a process makes its own mappings unchangeable",
    "set_mempolicy_home_node": "a hint on the process's own memory",
}

_NEVER = """
    unshare setns mount umount2 pivot_root move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
    open_by_handle_at kcmp pidfd_getfd process_madvise lookup_dcookie bpf perf_event_open userfaultfd add_key
    request_key keyctl modify_ldt vmsplice fanotify_init init_module finit_module delete_module create_module
    query_module kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd syslog settimeofday
    clock_settime clock_adjtime adjtimex sethostname setdomainname vhangup iopl ioperm nfsservctl move_pages
    migrate_pages uselib ustat sysfs _sysctl io_uring_setup io_uring_enter io_uring_register clone3 io_setup
    socketcall
"""
NEVER = set(_NEVER.split())

CONDITIONAL = {"clone", "personality", "socket", "socketpair"}

arches = pytest.mark.parametrize("arch", sorted(seccomp.ARCHITECTURES))


def allowed_unconditionally(profile: dict) -> set[str]:
    return {
        name
        for rule in profile["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")
        for name in rule["names"]
    }


def decide(profile: dict, name: str, *args: int) -> bool:
    """Whether a call passes, as the filter compares: 64 bits, any rule of that name."""

    def holds(condition: dict) -> bool:
        value = args[condition["index"]]
        if condition["op"] == "SCMP_CMP_MASKED_EQ":
            return value & condition["value"] == condition["valueTwo"]
        assert condition["op"] == "SCMP_CMP_EQ"
        return value == condition["value"]

    return any(
        rule["action"] == "SCMP_ACT_ALLOW" and name in rule["names"] and all(map(holds, rule.get("args", [])))
        for rule in profile["syscalls"]
    )


@arches
def test_no_call_is_listed_twice(arch: str) -> None:
    listed = seccomp.syscalls(arch=arch)
    names = listed.allowed + listed.enosys
    assert len(names) == len(set(names))
    assert not CONDITIONAL & set(names)


@arches
def test_refused_calls_are_not_allowed(arch: str) -> None:
    profile = seccomp.profile(arch=arch)
    allowed = allowed_unconditionally(profile)
    assert {"read", "openat", "execve", "chroot", "ptrace"} <= allowed
    assert not NEVER & allowed
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["architectures"] == [seccomp.ARCHITECTURES[arch]]


@arches
def test_calls_that_programs_fall_back_from_say_enosys(arch: str) -> None:
    rules = [rule for rule in seccomp.profile(arch=arch)["syscalls"] if rule.get("errnoRet") == 38]
    assert {"clone3", "io_uring_setup", "io_setup"} <= {name for rule in rules for name in rule["names"]}


@arches
def test_clone_makes_threads_and_processes_but_no_namespace(arch: str) -> None:
    profile = seccomp.profile(arch=arch)
    fork, thread = 0x01200011, 0x003D0F00
    assert decide(profile, "clone", fork) and decide(profile, "clone", thread)
    for flags, bit in product((0, fork, thread), range(17, 32)):
        is_namespace = bool((1 << bit) & seccomp.CLONE_NAMESPACES)
        if is_namespace:
            assert not decide(profile, "clone", flags | 1 << bit), hex(1 << bit)
    # The kernel reads the lower 32 bits only.
    assert not decide(profile, "clone", fork | 0x10000000 | 1 << 40)


@arches
def test_sockets_of_known_families_only(arch: str) -> None:
    profile = seccomp.profile(arch=arch)
    assert all(decide(profile, "socket", family, 1, 0) for family in (1, 2, 10))
    assert decide(profile, "socket", 16, 3, 0)
    refused = {family: decide(profile, "socket", family, 1, 0) for family in range(64) if family not in (1, 2, 10, 16)}
    assert not any(refused.values())
    # NETLINK_NETFILTER, NETLINK_GENERIC
    assert not decide(profile, "socket", 16, 3, 12) and not decide(profile, "socket", 16, 3, 16)
    # Bits that the kernel cuts off must not turn AF_VSOCK into something unknown to the filter and allowed.
    assert not decide(profile, "socket", 40 | 1 << 32, 1, 0)
    assert decide(profile, "socketpair", 1, 1, 0) and not decide(profile, "socketpair", 40, 1, 0)


@arches
def test_personality_keeps_address_randomisation(arch: str) -> None:
    profile = seccomp.profile(arch=arch)
    assert decide(profile, "personality", 0) and decide(profile, "personality", 0xFFFFFFFF)
    assert not decide(profile, "personality", 0x0040000) and not decide(profile, "personality", 0x0400000)


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.profile(arch="riscv64")


@arches
def test_not_wider_than_the_published_default(arch: str) -> None:
    """Debian's golang-github-containers-common ships the default that Podman and Buildah use."""
    published = json.loads(PUBLISHED.read_text())
    there = {
        name
        for rule in published["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")
        for name in rule["names"]
    }
    assert {"read", "socket", "unshare"} <= there
    ours = allowed_unconditionally(seccomp.profile(arch=arch))
    assert ours - there == set(NEWER)
    by_argument = {rule["names"][0] for rule in published["syscalls"] if rule.get("args")}
    assert not CONDITIONAL - there - by_argument


def test_names_exist_in_libseccomp() -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    unknown = set()
    for arch in seccomp.ARCHITECTURES:
        listed = seccomp.syscalls(arch=arch)
        names = {*listed.allowed, *listed.enosys, *CONDITIONAL}
        unknown |= {name for name in names if library.seccomp_syscall_resolve_name(name.encode()) == -1}
    assert library.seccomp_syscall_resolve_name(b"nosuchcall") == -1
    assert unknown <= set(NEWER), "a misspelt name would be skipped by the runtime without a word"
