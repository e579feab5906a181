"""What the seccomp filter refuses, tried inside a sandbox as root; outside, the same calls reach the kernel."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root]

PAYLOAD = Path(__file__).with_name("seccomp_calls.py")

_REFUSED = """
unshare setns mount umount2 pivot_root move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
open_by_handle_at kcmp pidfd_getfd process_madvise bpf perf_event_open userfaultfd add_key request_key keyctl
vmsplice fanotify_init init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct
quotactl syslog settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname move_pages migrate_pages
"""
REFUSED = _REFUSED.split()
NOT_THERE = ["clone3", "io_uring_setup", "io_setup"]

FORK = 17  # SIGCHLD alone
CLONES = {"NEWNS": 0x20000, "NEWCGROUP": 0x02000000, "NEWUTS": 0x04000000, "NEWIPC": 0x08000000}
CLONES |= {"NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000}
FAMILIES = {"AF_VSOCK": 40, "AF_ALG": 38, "AF_PACKET": 17, "AF_KEY": 15, "AF_BLUETOOTH": 31, "AF_TIPC": 30}


def number(name: str) -> int:
    found: int = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name(name.encode())
    assert found >= 0, name
    return found


def inside(box: Any, calls: dict[str, tuple[int, list[int]]], *, user: str = "root") -> dict[str, str]:
    box.files.write_text("/tmp/seccomp_calls.py", PAYLOAD.read_text())
    result = box.exec(["python3", "/tmp/seccomp_calls.py", json.dumps(calls)], user=user, timeout=60)
    assert result.ok, result.stderr
    answers: dict[str, str] = json.loads(result.stdout)
    return answers


def outside(calls: dict[str, tuple[int, list[int]]]) -> dict[str, str]:
    done = subprocess.run([sys.executable, PAYLOAD, json.dumps(calls)], capture_output=True, text=True, check=True)
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def test_filter_is_on_for_everybody(shared_box: Any) -> None:
    for user in ("root", "user"):
        status = shared_box.exec(["grep", "^Seccomp:", "/proc/self/status"], user=user).stdout
        assert status.split() == ["Seccomp:", "2"], user


def test_refused_calls(shared_box: Any) -> None:
    calls = {name: (number(name), [-1] * 5) for name in REFUSED + NOT_THERE}
    there = outside(calls)
    reached = {name for name, answer in there.items() if answer not in ("EPERM", "ENOSYS")}
    # A kernel may be built without some; nearly all must reach it, or this test proves nothing.
    assert len(reached) >= len(calls) - 8, there
    for user in ("root", "user"):
        answers = inside(shared_box, calls, user=user)
        assert {name: answers[name] for name in REFUSED if answers[name] != "EPERM"} == {}
        assert {name: answers[name] for name in NOT_THERE if answers[name] != "ENOSYS"} == {}


def test_clone_makes_no_namespace(shared_box: Any) -> None:
    clone = number("clone")
    calls = {name: (clone, [flag | FORK, 0, 0, 0, 0]) for name, flag in CLONES.items()}
    assert set(outside(calls).values()) == {"ok"}
    answers = inside(shared_box, {"plain": (clone, [FORK, 0, 0, 0, 0]), **calls})
    assert answers.pop("plain") == "ok"
    assert set(answers.values()) == {"EPERM"}


def test_sockets_of_other_families(shared_box: Any) -> None:
    socket = number("socket")
    calls = {name: (socket, [family, 3, 0]) for name, family in FAMILIES.items()}
    # Bits that the kernel cuts off before it reads the family.
    calls["AF_VSOCK with high bits"] = (socket, [40 | 1 << 32, 1, 0])
    allowed = {name: (socket, [family, 1, 0]) for name, family in {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}.items()}
    assert set(outside(allowed).values()) == {"ok"} and "EPERM" not in outside(calls).values()
    answers = inside(shared_box, {**allowed, **calls})
    assert {answers[name] for name in allowed} == {"ok"}
    assert {answers[name] for name in calls} == {"EPERM"}


def test_other_abis_die(shared_box: Any) -> None:
    x32_getpid = {"native": (39, []), "x32": (0x40000000 | 39, [])}
    if number("getpid") != 39:
        pytest.skip("x32 exists on x86-64 only")
    answers = inside(shared_box, x32_getpid)
    assert answers == {"native": "ok", "x32": "signal 31"}
