"""In a process of its own: the heap of the tests' own is everybody's."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from bellglass.spare_memory import without

CODE = """
import asyncio, ctypes
from pathlib import Path
from bellglass import spare_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
spare_memory.IDLE_SHARE = 0.1

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

def burst():
    pieces = [libc.malloc(65536) for _ in range(480)]
    for piece in pieces:
        ctypes.memset(piece, 1, 65536)
    full = resident_mib()
    for piece in pieces:
        libc.free(piece)
    return full

async def down_to(mib):
    async with asyncio.timeout(30):
        while resident_mib() > mib:
            await asyncio.sleep(0.1)

async def main():
    before = resident_mib()
    full = burst()
    assert full >= before + 28 and resident_mib() >= full - 2, (before, full, resident_mib())
    task = asyncio.create_task(spare_memory.give_back(0.05))
    await down_to(before + 4)
    for _ in range(3):  # a busy time between: it gives back again
        deadline = asyncio.get_running_loop().time() + 0.2
        while asyncio.get_running_loop().time() < deadline:
            full = burst()
            await asyncio.sleep(0)
        assert full >= before + 28
        await down_to(before + 4)
    task.cancel()

asyncio.run(main())
print("given back")
"""


def test_an_idle_process_gives_back_what_its_heap_keeps() -> None:
    kept = {"MALLOC_MMAP_THRESHOLD_": str(16 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ | kept, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "given back\n", done.stderr


LOADED = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
print(sys.argv[1] in sys.modules)
"""


@pytest.mark.parametrize(
    ("package", "modules"),
    [
        ("rich", ["bellglass.server.__main__", "bellglass.server.serving"]),
        ("rich", ["bellglass.node.__main__"]),
        ("alembic", ["bellglass.server.__main__", "bellglass.server.serving"]),
        ("bellglass.model", ["bellglass.node.helper.__main__"]),
        ("bellglass.model", ["bellglass.supervise.__main__"]),
    ],
)
def test_what_daemons_do_without(package: str, modules: list[str]) -> None:
    def loaded(*names: str) -> str:
        argv = [sys.executable, "-c", LOADED, package, *names]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert loaded(package) == "True\n"
    assert loaded(*modules) == "False\n"


def test_without_hides_what_is_not_loaded_alone() -> None:
    unloaded = "turtledemo"
    assert unloaded not in sys.modules
    with without(unloaded), pytest.raises(ImportError):
        importlib.import_module(unloaded)
    assert unloaded not in sys.modules
    with without("subprocess"):
        assert importlib.import_module("subprocess") is subprocess
