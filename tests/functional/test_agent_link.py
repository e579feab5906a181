"""The link between node and agent breaks midway: output is whole all the same, or the outcome is told as unknown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bellglass.errors import BellglassError
from bellglass.testing.stack import Stack

WANTED = "".join(f"{n}\n" for n in range(1, 300_001))


@pytest.fixture
def broken_box(fake_stack: Stack) -> Iterator[Any]:
    """A sandbox whose every link ends after 400,000 bytes from the agent: more than one frame, or nothing ever came."""
    faults = fake_stack.data_dir / "faults.json"
    faults.write_text(json.dumps({"drop_link_after_bytes": 400_000}))
    faults.chmod(0o644)
    try:
        with fake_stack.sandbox() as box:
            yield box
    finally:
        faults.unlink()


def test_output_is_whole_over_broken_links(broken_box: Any) -> None:
    for _ in range(2):
        result = broken_box.exec(["seq", "1", "300000"], timeout=60)
        assert (result.stdout == WANTED, result.exit_code, result.truncated) == (True, 0, False)


def test_a_detached_log_is_whole_over_broken_links(broken_box: Any) -> None:
    execution = broken_box.start("for i in 1 2 3 4 5 6 7 8; do seq 1 50000 | tail -n 20000; sleep 0.05; done; exit 3")
    result = execution.wait()
    part = "".join(f"{n}\n" for n in range(30_001, 50_001))
    assert (result.stdout == part * 8, result.exit_code) == (True, 3)


def test_a_file_is_whole_or_an_error(broken_box: Any) -> None:
    """A file operation does not survive its link: it is told, never cut short."""
    data = bytes(range(256)) * 4000
    broken_box.exec(["python3", "-c", "open('f', 'wb').write(bytes(range(256)) * 4000)"])
    with pytest.raises(BellglassError):
        for _ in range(3):
            assert broken_box.files.read_bytes("f") == data


def test_a_machine_that_dies_is_no_success(fake_stack: Stack) -> None:
    faults = fake_stack.data_dir / "faults.json"
    faults.write_text(json.dumps({"die_after_s": 1.5}))
    faults.chmod(0o644)
    try:
        box = fake_stack.sandbox()
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(box.exec, ["sleep", "30"]).exception(timeout=30)
        assert isinstance(error, BellglassError), error
        deadline = time.monotonic() + 5
        while (record := box.info()).state == "running":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (record.state, record.termination_reason) == ("ended", "failed")
        box.delete()
    finally:
        faults.unlink()
