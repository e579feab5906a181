"""A download that the sandbox's memory could not hold leaves its page cache to the sandbox's own programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bellglass.testing import page_cache

MIB = 1 << 20
SMALL, LARGE = 64 * MIB, 200 * MIB
PIECE = MIB
SPARED = 16 * MIB
MOST = SMALL * 3 // 4


def pieces(size: int) -> Iterator[bytes]:
    """Each another one."""
    for number in range(size // PIECE):
        yield number.to_bytes(8, "little") * (PIECE // 8)


def upload(box: Any, folder: Path, size: int, remote: str) -> None:
    with open(folder / remote, "wb") as file:
        file.writelines(pieces(size))
    box.files.upload(folder / remote, remote)


def check_download(box: Any, folder: Path, size: int, remote: str) -> None:
    box.files.download(remote, folder / "back")
    with open(folder / "back", "rb") as file:
        assert all(file.read(PIECE) == piece for piece in pieces(size)) and not file.read()


def cached(box: Any, *paths: str) -> list[int]:
    """Bytes of each that the sandbox's kernel holds in memory."""
    done = box.exec(["python3", "-c", Path(page_cache.__file__).read_text(), *paths], check=True)
    return [int(line) for line in done.stdout.split()]


def test_a_download_of_most_of_the_memory_leaves_the_others_pages(new_box: Callable[..., Any], tmp_path: Path) -> None:
    box = new_box(memory="256MiB")
    upload(box, tmp_path, LARGE, "large")
    upload(box, tmp_path, SMALL, "small")
    check_download(box, tmp_path, SMALL, "small")
    large, small = cached(box, "large", "small")
    assert small > MOST, "a file that it can hold stays"
    assert large > SPARED, "what was uploaded stays as far as there is room"
    check_download(box, tmp_path, LARGE, "large")
    large, small = cached(box, "large", "small")
    assert large <= SPARED and small > MOST
