"""How much of a file the kernel holds in its page cache. With nothing but Python's library, so that the text of this
module also runs inside of a sandbox: `python3 -c TEXT PATH...` prints a number of bytes for each.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def cached_bytes(path: str | os.PathLike[str]) -> int:
    """In whole pages. The caller has to own the file or be allowed to write to it: of another's, mincore(2) says that
    all is there."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = ctypes.create_string_buffer((len(mapped) + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        first = ctypes.c_char.from_buffer(mapped)
        try:
            if _libc.mincore(ctypes.addressof(first), len(mapped), pages) != 0:
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            del first  # else the mapping cannot be closed
    return sum(byte & 1 for byte in pages.raw) * mmap.PAGESIZE


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(cached_bytes(name))
