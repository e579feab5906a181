"""The main job: a script analyses a CSV inside a sandbox; what misbehaves is stopped and told; nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from bellglass.errors import NotFound

SALES = "region,amount\neu,120\nus,80\neu,95\nus,210\napac,40\n"
SCRIPT = """
import csv
from collections import defaultdict

amounts = defaultdict(list)
with open("sales.csv") as file:
    for row in csv.DictReader(file):
        amounts[row["region"]].append(float(row["amount"]))
for region in sorted(amounts):
    print(region, len(amounts[region]), sum(amounts[region]) / len(amounts[region]))
"""


def test_the_job(new_box: Callable[..., Any], stack: Any) -> None:
    box = new_box(memory="512MiB")
    box.files.write_text("job/sales.csv", SALES)
    box.files.write_text("job/main.py", SCRIPT)
    result = box.exec("python3 main.py", cwd="job", timeout=20)
    assert (result.stdout, result.stderr, result.exit_code) == ("apac 1 40.0\neu 2 107.5\nus 2 145.0\n", "", 0)
    assert result.ok and not result.timed_out and not result.oom_killed and not result.truncated

    started = time.monotonic()
    endless = box.exec(["python3", "-c", "while True: pass"], timeout=5)
    took = time.monotonic() - started
    assert (endless.exit_code, endless.timed_out, endless.oom_killed) == (137, True, False)
    assert 4.9 < took < 6.5, f"a timeout of 5 s came after {took:.2f} s"
    started = time.monotonic()
    assert box.exec(["echo", "here"]).stdout == "here\n"
    assert time.monotonic() - started < 1

    hog = box.exec(["python3", "-c", "b = bytearray(1 << 30); print(len(b))"], timeout=60)
    assert (hog.exit_code, hog.oom_killed, hog.timed_out, hog.stdout) == (137, True, False, "")
    assert box.exec(["echo", "still here"]).stdout == "still here\n"
    assert box.info().state == "running"

    identity = box.id
    box.delete()
    with pytest.raises(NotFound):
        type(box).connect(identity, api_url=stack.api_url, api_key=stack.api_key).exec(["true"])
