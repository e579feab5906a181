"""A watch of very many folders, and of more than there may be: a minute of making and removing them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bellglass import Sandbox
from bellglass.errors import LimitExceeded
from tests.functional.waiting import wait_until

pytestmark = pytest.mark.slow
FOLDERS = """python3 - <<'END'
import os
for top in range({tops}):
    for middle in range({middles}):
        os.makedirs(f"many/{{top}}/{{middle}}")
        for low in range(99):
            os.mkdir(f"many/{{top}}/{{middle}}/{{low}}")
END"""


def test_a_hundred_thousand_folders(new_box: Callable[..., Sandbox]) -> None:
    box = new_box(disk="4GiB", memory="2GiB")
    box.exec(FOLDERS.format(tops=100, middles=10), check=True, timeout=300)
    begun = time.monotonic()
    with box.files.watch("many", recursive=True) as watch:
        print(f"ready after {time.monotonic() - begun:.2f} s")
        worker = "ps -eo rss=,args= --sort=-rss | grep '[b]ellglass-agent' | head -1"
        print("resident KiB of the largest agent process:", box.exec(worker).stdout.split()[0])
        box.exec("touch many/99/9/98/f many/0/0/0/f && mv many/50 many/moved && touch many/moved/3/7/f", check=True)
        told = [(event.kind, event.path) for event in watch.sync() if event.kind != "chmod"]
        assert told == [
            ("create", "99/9/98/f"), ("create", "0/0/0/f"), ("rename", "50"), ("create", "moved"),
            ("create", "moved/3/7/f"),
        ]  # fmt: skip
        begun = time.monotonic()
        box.exec("rm -r many/[0-4]*", check=True, timeout=300)
        while True:
            events = watch.sync()
            if any(event.kind == "overflow" or event.path == "0" for event in events):
                break
        print(f"half of them removed, seen after {time.monotonic() - begun:.2f} s")
        box.files.mkdir("many/99/9/98/new")
        wait_until(lambda: any(event.path == "99/9/98/new" for event in watch.sync()), 60, "it tells no more")


def test_more_than_one_watch_may_have(new_box: Callable[..., Sandbox]) -> None:
    box = new_box(disk="4GiB", memory="2GiB")
    box.exec(FOLDERS.format(tops=132, middles=10), check=True, timeout=300)
    with pytest.raises(LimitExceeded, match="folders"):
        box.files.watch("many", recursive=True)
    with box.files.watch("many") as watch:
        box.files.mkdir("many/new")
        first = watch.sync()[0]
        assert (first.kind, first.path) == ("create", "new")
