"""The filters of the egress daemons, walked by a small interpreter of classic BPF: every number, also of the other
architecture, and the calls that depend on an argument."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest

from bellglass.egress import confine, seccomp

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
ALLOW, EPERM, KILL = "allow", "EPERM", "kill"
VERDICTS = {0x7FFF0000: ALLOW, 0x00050001: EPERM, 0x80000000: KILL}
COLUMN = {"x86_64": 0, "aarch64": 1}
FILTERS = {"resolver": confine.RESOLVER.syscalls, "proxy": confine.PROXY.syscalls}


def verdict(program: bytes, number: int, *arguments: int, audit: int) -> str:
    data = struct.pack("=iIQ6Q", number, audit, 0, *(list(arguments) + [0] * 6)[:6])
    accumulator, at = 0, 0
    instructions = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    while True:
        code, true, false, value = instructions[at]
        at += 1
        match code:
            case 0x20:
                assert value % 4 == 0
                accumulator = struct.unpack_from("=I", data, value)[0]
            case 0x54:
                accumulator &= value
            case 0x15:
                at += true if accumulator == value else false
            case 0x35:
                at += true if accumulator >= value else false
            case 0x06:
                return VERDICTS[value]
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.fixture(params=[(daemon, machine) for daemon in FILTERS for machine in AUDIT], ids="-".join)
def filtered(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    daemon, machine = request.param
    program = seccomp.program(FILTERS[daemon], machine)

    def ask(call: str | int, *arguments: int) -> str:
        number = seccomp.NUMBERS[call][COLUMN[machine]] if isinstance(call, str) else call
        assert number is not None
        return verdict(program, number, *arguments, audit=AUDIT[machine])

    ask.daemon, ask.machine, ask.program = daemon, machine, program  # type: ignore[attr-defined]
    return ask


def test_only_what_is_listed_is_allowed(filtered) -> None:  # type: ignore[no-untyped-def]
    listed = FILTERS[filtered.daemon]
    known = {seccomp.NUMBERS[name][COLUMN[filtered.machine]] for name in listed}
    assert len(known) > 40
    unconditional = {seccomp.NUMBERS[name][COLUMN[filtered.machine]] for name, how in listed.items() if () in how}
    for number in range(1000):
        # With arguments that no condition allows.
        expected = ALLOW if number in unconditional else EPERM
        assert filtered(number, *[0xFFFFFFFF] * 6) == expected, number


def test_other_numberings_end_the_process(filtered) -> None:  # type: ignore[no-untyped-def]
    assert filtered("read") == ALLOW
    for number in range(500):
        assert verdict(filtered.program, number, audit=I386) == KILL
    other = AUDIT["aarch64" if filtered.machine == "x86_64" else "x86_64"]
    assert verdict(filtered.program, 63, audit=other) == KILL
    if filtered.machine == "x86_64":
        assert filtered(0x40000000) == KILL, "x32"


def test_memory_never_becomes_executable(filtered) -> None:  # type: ignore[no-untyped-def]
    for call in ("mmap", "mprotect"):
        assert filtered(call, 0, 4096, 3) == ALLOW
        for protection in (4, 5, 7, 0x01000004, 0xFFFFFFFF_00000004):
            assert filtered(call, 0, 4096, protection) == EPERM


def test_ioctl_knows_three_requests(filtered) -> None:  # type: ignore[no-untyped-def]
    assert filtered("ioctl", 5, 0x5421) == ALLOW
    assert {filtered("ioctl", 5, request) for request in (0x5412, 0x8912, 0x5401, 0x40045431)} == {EPERM}  # TIOCSTI ...


def test_the_resolver_has_no_way_to_a_socket_or_file_of_its_own() -> None:
    program = seccomp.program(confine.RESOLVER.syscalls, "x86_64")
    for call in ("socket", "socketpair", "connect", "openat", "pipe2", "splice"):
        number = seccomp.NUMBERS[call][0]
        assert verdict(program, number, 2, 1, 0, audit=AUDIT["x86_64"]) == EPERM
        assert (
            verdict(seccomp.program(confine.PROXY.syscalls, "x86_64"), number, 1, 5, 0, audit=AUDIT["x86_64"]) == ALLOW
        )


@pytest.mark.parametrize("machine", AUDIT)
def test_the_proxys_sockets(machine: str) -> None:
    program = seccomp.program(confine.PROXY.syscalls, machine)

    def made(family: int, kind: int, protocol: int) -> str:
        number = seccomp.NUMBERS["socket"][COLUMN[machine]]
        assert number is not None
        return verdict(program, number, family, kind, protocol, audit=AUDIT[machine])

    flags = 0o2000000 | 0o4000  # SOCK_CLOEXEC | SOCK_NONBLOCK
    for family in (2, 10):
        assert {made(family, 1 | flags, 0), made(family, 1, 6), made(family, 2 | flags, 0), made(family, 2, 17)} == {
            ALLOW
        }
        for kind, protocol in ((3, 1), (3, 255), (1, 132), (5, 132), (1, 262), (2, 136), (2, 58), (4, 0), (10, 0)):
            assert made(family, kind, protocol) == EPERM, (family, kind, protocol)
    assert made(1, 5 | flags, 0) == ALLOW and made(16, 3 | flags, 0) == ALLOW
    assert {
        made(1, 1, 0),
        made(1, 2, 0),
        made(16, 3, 12),
        made(16, 2, 0),
        made(17, 3, 0),
        made(38, 5, 0),
        made(40, 1, 0),
    } == {EPERM}, "unix streams, nfnetlink, packet, alg, vsock"


def test_files_are_opened_for_reading_only() -> None:
    number = seccomp.NUMBERS["openat"][0]
    assert number is not None

    def opened(flags: int) -> str:
        return verdict(
            seccomp.program(confine.PROXY.syscalls, "x86_64"),
            number,
            -100 & 0xFFFFFFFF,
            0,
            flags,
            audit=AUDIT["x86_64"],
        )

    assert opened(os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) == ALLOW
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_TMPFILE):
        assert opened(flag) == EPERM, oct(flag)


def test_a_name_without_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="execve"):
        seccomp.program({"execve": seccomp.ALWAYS}, "x86_64")
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program(confine.RESOLVER.syscalls, "riscv64")


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", AUDIT)
def test_the_numbers_are_the_kernels(machine: str) -> None:
    """Against its headers, where they are installed."""
    if not HEADERS[machine].exists():
        pytest.skip("linux-libc-dev is not installed")
    text = HEADERS[machine].read_text()
    kernels = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    if machine == "aarch64":
        kernels["newfstatat"] = kernels["fstatat"]
    # What the generic table has for 32-bit architectures alone has no number here.
    ours = {name: numbers[COLUMN[machine]] for name, numbers in seccomp.NUMBERS.items()}
    assert {name: number for name, number in ours.items() if number is not None and kernels.get(name) != number} == {}
