"""System call filters of the egress daemons: allow lists as classic BPF programs, made here and installed by prctl(2).

What is not listed is answered EPERM. Another architecture's numbers (32-bit, x32) end the process: they would reach the
kernel past the list. Only what stands in registers can be compared, so addresses are left to the uid's nft wall.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM = 1
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data
_X32_BIT = 0x40000000
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

Condition = tuple[int, int, int]
"""(argument, mask, value): the argument's lower 32 bits under the mask are the value. All that is compared here are
ints to the kernel, which sees no more of them either."""
Syscalls = dict[str, tuple[tuple[Condition, ...], ...]]
"""Name to its alternatives, one of which must hold in all its conditions; () is always allowed."""

NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "recvmsg": (47, 212),
    "recvfrom": (45, 207),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "accept4": (288, 242),
    "read": (0, 63),
    "write": (1, 64),
    "splice": (275, 76),
    "close": (3, 57),
    "epoll_ctl": (233, 21),
    "epoll_create1": (291, 20),
    "readv": (19, 65),
    "writev": (20, 66),
    "clock_gettime": (228, 113),
    "gettimeofday": (96, 169),
    "clock_nanosleep": (230, 115),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "eventfd2": (290, 19),
    "pipe2": (293, 59),
    "shutdown": (48, 210),
    "getsockopt": (55, 209),
    "setsockopt": (54, 208),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "dup": (32, 23),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "stat": (4, None),
    "lseek": (8, 62),
    "openat": (257, 56),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "mprotect": (10, 226),
    "brk": (12, 214),
    "madvise": (28, 233),
    "futex": (202, 98),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrandom": (318, 278),
    "sched_yield": (24, 124),
    "getrusage": (98, 165),
    "prlimit64": (302, 261),
}
"""On x86_64 and aarch64; None where the architecture has no such call. The busiest first: the list is walked."""

ALWAYS: tuple[tuple[Condition, ...], ...] = ((),)
_PROT_EXEC = 4
_NOT_EXECUTABLE = (((2, _PROT_EXEC, 0),),)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)
_READ_ONLY = (((2, _WRITING, 0),),)
_FIONBIO, _FIOCLEX, _FIONREAD = 0x5421, 0x5451, 0x541B
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _RAW, _SEQPACKET, _TYPE = 1, 2, 3, 5, 0xF
_WHOLE = 0xFFFFFFFF


def _sockets(family: int, kind: int, *protocols: int) -> tuple[tuple[Condition, ...], ...]:
    return tuple(((0, _WHOLE, family), (1, _TYPE, kind), (2, _WHOLE, protocol)) for protocol in protocols)


SERVING: Syscalls = {
    **dict.fromkeys(
        (
            *("epoll_wait", "epoll_pwait", "epoll_ctl", "epoll_create1", "poll", "ppoll", "select", "pselect6"),
            *("recvmsg", "recvfrom", "sendto", "sendmsg", "accept4", "read", "write", "readv", "writev", "close"),
            *("shutdown", "getsockopt", "setsockopt", "getsockname", "getpeername", "fcntl", "dup", "fstat", "lseek"),
            *("munmap", "mremap", "brk", "madvise", "futex", "sched_yield", "getrandom", "getrusage"),
            *("clock_gettime", "gettimeofday", "clock_nanosleep", "restart_syscall", "exit", "exit_group"),
            *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack"),
            *("getpid", "gettid", "getuid", "geteuid", "getgid", "getegid"),
        ),
        ALWAYS,
    ),
    "mmap": _NOT_EXECUTABLE,
    "mprotect": _NOT_EXECUTABLE,
    "ioctl": tuple(((1, _WHOLE, request),) for request in (_FIONBIO, _FIOCLEX, _FIONREAD)),
}
"""Answering on sockets that were there or were handed over: not one socket of its own, no file."""

DIALING: Syscalls = {
    **dict.fromkeys(("connect", "splice", "pipe2", "eventfd2", "stat", "newfstatat"), ALWAYS),
    "openat": _READ_ONLY,
    "prlimit64": (((0, _WHOLE, 0), (2, _WHOLE, 0)),),  # reading its own: how many connections it may hold
    "socketpair": (((0, _WHOLE, _AF_UNIX),),),
    # Of unix sockets only the kind that the resolver has: abstract ones know no chroot. Netlink: the host's addresses.
    "socket": (
        *_sockets(_AF_INET, _STREAM, 0, 6),
        *_sockets(_AF_INET6, _STREAM, 0, 6),
        *_sockets(_AF_INET, _DATAGRAM, 0, 17),
        *_sockets(_AF_INET6, _DATAGRAM, 0, 17),
        *_sockets(_AF_UNIX, _SEQPACKET, 0),
        *_sockets(_AF_NETLINK, _RAW, 0),
    ),
}
"""Besides: connections of its own, and reading the two files of the chroot."""


def program(syscalls: Syscalls, machine: str) -> bytes:
    """An array of struct sock_filter. Raises ValueError for an architecture or a name without a number."""
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system call numbers for {machine!r}, only for {', '.join(_ARCHITECTURES)}")
    if unknown := set(syscalls) - set(NUMBERS):
        raise ValueError(f"no number is known for {', '.join(sorted(unknown))}")
    audit, column = _ARCHITECTURES[machine]
    made = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        made += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    for name, numbers in NUMBERS.items():
        number = numbers[column]
        if name in syscalls and number is not None:
            block = _block(syscalls[name])
            made += [(_EQUAL, 0, len(block), number), *block]
    made.append((_RETURN, 0, 0, _ERRNO | _EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in made)


def _block(alternatives: tuple[tuple[Condition, ...], ...]) -> list[tuple[int, int, int, int]]:
    """For a call whose number fits: whether it is allowed. Always ends with a return."""
    made: list[tuple[int, int, int, int]] = []
    for conditions in alternatives:
        left = 3 * len(conditions) + 1  # with the return at the end
        for argument, mask, value in conditions:
            left -= 3
            # Both architectures are little-endian: the lower half comes first.
            made += [
                (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),
                (_AND, 0, 0, mask),
                (_EQUAL, 0, left, value),
            ]
        made.append((_RETURN, 0, 0, _ALLOW))
    if all(alternatives):
        made.append((_RETURN, 0, 0, _ERRNO | _EPERM))
    return made


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install(libc: ctypes.CDLL, syscalls: Syscalls) -> None:
    """For this thread and what it would make. Needs no_new_privs. Raises OSError."""
    raw = program(syscalls, os.uname().machine)
    described = _Program(len(raw) // 8, raw)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_SECCOMP): {os.strerror(number)}")
