"""Who answers calls is not made to wait by who moves bytes: what the kernel says of the daemons."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import pytest

from bellglass import scheduling

SYS_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
ATTRIBUTES = struct.Struct("=IIQiIQQQII")


def kept(pid):
    """(policy, nice, slice in us, the session's nice)"""
    raw = ctypes.create_string_buffer(ATTRIBUTES.size)
    number = SYS_SCHED_GETATTR[os.uname().machine]
    assert ctypes.CDLL(None).syscall(number, pid, raw, ATTRIBUTES.size, 0) == 0
    _, policy, _, nice, _, slice_ns, *_ = ATTRIBUTES.unpack(raw.raw)
    return policy, nice, slice_ns // 1000, session_nice(pid, nice)


def session_nice(pid, without):
    """`without` for a kernel without autogroups and for a session that has none: init's own."""
    shown = Path(f"/proc/{pid}/autogroup")
    return int([without, *shown.read_text().split()][-1]) if shown.exists() else without


@pytest.fixture
def has_slices():
    if kept(os.getpid())[2] == 0:
        pytest.skip("this kernel knows no slices: Linux 6.12 brought them")


def test_the_proxy_steps_back_and_the_other_daemons_are_as_usual(stack, has_slices):
    pids = stack.pids()
    usual = kept(pids["supervisor"])
    assert usual[0] == os.SCHED_OTHER
    for name in ("server", "node"):
        for thread in os.listdir(f"/proc/{pids[name]}/task"):
            assert kept(int(thread))[:3] == usual[:3], name
    assert kept(pids["resolver"])[:2] == usual[:2]
    nice = scheduling.RELAYING_NICE
    assert kept(pids["proxy"]) == (os.SCHED_BATCH, nice, scheduling.LONG_SLICE_US, nice)
    assert Path(f"/proc/{pids['proxy']}/timerslack_ns").read_text() == "1000\n"
