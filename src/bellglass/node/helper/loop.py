"""Loop devices for the sandboxes' disks, with direct I/O and auto-clear.

Auto-clear means that the device goes with its last user: when the machine's mount namespace is gone, so is the loop
device. Until something has mounted it, the descriptor that `attach` answers is that user.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bellglass.errors import NoCapacity

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_LO_FLAGS_DIRECT_IO = 16
_BLOCK_SIZE = 4096
_ATTEMPTS = 64


class _LoopInfo(ctypes.Structure):
    _fields_ = [
        ("lo_device", ctypes.c_uint64),
        ("lo_inode", ctypes.c_uint64),
        ("lo_rdevice", ctypes.c_uint64),
        ("lo_offset", ctypes.c_uint64),
        ("lo_sizelimit", ctypes.c_uint64),
        ("lo_number", ctypes.c_uint32),
        ("lo_encrypt_type", ctypes.c_uint32),
        ("lo_encrypt_key_size", ctypes.c_uint32),
        ("lo_flags", ctypes.c_uint32),
        ("lo_file_name", ctypes.c_char * 64),
        ("lo_crypt_name", ctypes.c_char * 64),
        ("lo_encrypt_key", ctypes.c_char * 32),
        ("lo_init", ctypes.c_uint64 * 2),
    ]


class _LoopConfig(ctypes.Structure):
    _fields_ = [
        ("fd", ctypes.c_uint32),
        ("block_size", ctypes.c_uint32),
        ("info", _LoopInfo),
        ("reserved", ctypes.c_uint64 * 8),
    ]


@dataclass(frozen=True, slots=True)
class LoopDevice:
    path: str
    fd: int
    """Keeps the device; the caller closes it once the device is mounted."""
    direct_io: bool


def attach(image: Path, name: str) -> LoopDevice:
    """The image as a block device. `name` is told by `losetup`. Raises NoCapacity when no device can be had."""
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    config = _LoopConfig(fd=file, block_size=_BLOCK_SIZE)
    config.info.lo_flags = _LO_FLAGS_AUTOCLEAR | _LO_FLAGS_DIRECT_IO
    config.info.lo_file_name = name.encode()[:63]
    try:
        for _ in range(_ATTEMPTS):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            try:
                device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except (FileNotFoundError, OSError) as error:
                if error.errno not in (errno.ENOENT, errno.ENXIO, errno.EBUSY):
                    raise
                continue
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                # Somebody else took the device that was free, or is just removing it.
                if error.errno not in (errno.EBUSY, errno.ENXIO):
                    raise
                continue
            return LoopDevice(path, device, _direct_io(path))
    finally:
        os.close(control)
        os.close(file)
    raise NoCapacity(
        f"no free loop device after {_ATTEMPTS} attempts", details={"resource": "disk"}, hint="see `losetup --list`"
    )


def devices_below(folder: Path, among: Iterable[str] | None = None) -> list[str]:
    """The loop devices, such as `loop7`, whose image lies in this folder, also when it is unlinked by now."""
    found = []
    # Not by /proc/partitions, which is shorter: a device has no size already while it still lets its image go.
    for name in os.listdir("/sys/block") if among is None else among:  # noqa: PTH208 - names alone: there may be many
        if not name.startswith("loop"):
            continue
        try:
            file = os.open(f"/sys/block/{name}/loop/backing_file", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # it has none
        try:
            if os.read(file, 4096).startswith(os.fsencode(f"{folder}/")):
                found.append(name)
        except OSError:
            continue  # cleared meanwhile
        finally:
            os.close(file)
    return found


def _direct_io(path: str) -> bool:
    return Path(f"/sys/block/{Path(path).name}/loop/dio").read_text().strip() == "1"
