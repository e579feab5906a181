"""Bombs of processes, threads and memory in many sandboxes at once: the API and neighbours answer, and it all goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bellglass.errors import BellglassError, LimitExceeded, SandboxGone

CALL_S = 2.0
GROWTH_BYTES = 32 << 20
FORKS = "bomb() { bomb | bomb & }; while :; do bomb; sleep 0.2; done"
THREADS = """
import threading, time
def rest(): time.sleep(60)
while True:
    try: threading.Thread(target=rest, daemon=True).start()
    except RuntimeError: time.sleep(0.001)
"""
FORK_AND_EXEC = "while :; do for i in 1 2 3 4 5 6 7 8; do (exec sh -c 'sleep 0.01') & done; done"
FLAT = "open('/proc/self/oom_score_adj', 'w').write('0')\n"
ONE_BIG = ["python3", "-c", "b = bytearray(8 << 30)"]
MANY_SMALL = [
    "python3", "-c",
    "import os\nfor _ in range(5): os.fork()\nkept = []\nwhile True: kept.append(b'x' * (1 << 20))",
]  # fmt: skip
HOGS: dict[str, Any] = {
    "one big": ONE_BIG,
    "many small": MANY_SMALL,
    "shared memory": "head -c 8G /dev/zero > /dev/shm/full; mkdir -p /dev/shm/d; cp /dev/shm/full /dev/shm/d/more",
    "page cache": "for i in 1 2 3; do head -c 200M /dev/urandom > f$i; done; cat f1 f2 f3 f1 f2 f3 | wc -c",
}


def within(call: Callable[[], Any], bound_s: float = CALL_S) -> Any:
    began = time.monotonic()
    answer = call()
    took_s = time.monotonic() - began
    assert took_s < bound_s, f"{took_s:.2f} s"
    return answer


def served(box: Any) -> None:
    assert within(lambda: box.exec(["echo", "neighbour"])).stdout == "neighbour\n"
    assert within(lambda: box.files.read_text("/etc/hostname"))
    assert within(box.info).state == "running"


def test_eight_sandboxes_bombing(stack: Any, new_box: Callable[..., Any]) -> None:
    neighbour = new_box()
    served(neighbour)
    before = stack.status()["pss_bytes"]
    boxes = [new_box(pids=128, memory="256MiB") for _ in range(8)]
    bombs = [FORKS] * 4 + [["python3", "-c", THREADS]] * 2 + [FORK_AND_EXEC] * 2
    for box, bomb in zip(boxes, bombs, strict=True):
        box.start(bomb)
    with pytest.raises(LimitExceeded):  # its pids are used up: told, and at once
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            within(lambda: boxes[4].exec(["true"], timeout=5), 6)
    for _ in range(5):
        served(neighbour)
    for box in boxes:
        assert within(box.info).state == "running"
    another = within(new_box, 2 * CALL_S)
    served(another)
    grown = {name: size - before[name] for name, size in stack.status()["pss_bytes"].items() if name != "lxcfs"}
    assert all(size < GROWTH_BYTES for size in grown.values()), grown
    for box in boxes:
        within(box.delete)
    served(neighbour)


def test_hogs_of_memory_of_every_kind(stack: Any, new_box: Callable[..., Any]) -> None:
    neighbour = new_box()
    boxes = {name: new_box(memory="256MiB", disk="1GiB") for name in HOGS}
    with ThreadPoolExecutor(len(boxes)) as pool:
        ends = {name: pool.submit(box.exec, HOGS[name], timeout=20) for name, box in boxes.items()}
        for _ in range(5):
            served(neighbour)
        results = {name: end.result(timeout=60) for name, end in ends.items()}
    assert results["one big"].oom_killed and not results["page cache"].oom_killed
    assert results["page cache"].stdout == f"{6 * 200 << 20}\n", "the cache makes room"
    assert not results["shared memory"].ok
    for box in boxes.values():
        served(box)
        within(box.delete)
    served(neighbour)


def test_an_agent_killed_for_memory_is_told_at_once(new_box: Callable[..., Any]) -> None:
    """Root inside can make the agent the kernel's first choice."""
    box = new_box(memory="256MiB")
    preferred = box.exec("sudo sh -c 'echo 1000 > /proc/1/oom_score_adj; cat /proc/1/oom_score_adj'")
    assert preferred.stdout == "1000\n"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(box.exec, ["sleep", "60"])
        began = time.monotonic()
        hog = (
            "import os\n" + FLAT + "for _ in range(3): os.fork()\nkept = []\nwhile True: kept.append(b'x' * (1 << 20))"
        )
        with pytest.raises(SandboxGone) as raised:
            box.exec(["python3", "-c", hog], timeout=60)
        assert raised.value.details["reason"] == "oom"
        try:
            assert waiting.result(timeout=CALL_S).oom_killed, "or it went before the agent did"
        except SandboxGone as error:
            assert error.details["reason"] == "oom"
        assert time.monotonic() - began < 20
    deadline = time.monotonic() + CALL_S
    while (record := box.info()).state != "ended":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert record.termination_reason == "oom"
    with pytest.raises(BellglassError, match="oom"):
        box.exec(["true"])


def test_what_was_killed_for_memory_is_told_of_the_right_one(new_box: Callable[..., Any]) -> None:
    box = new_box(memory="256MiB")
    hog = box.exec(ONE_BIG)
    assert (hog.oom_killed, hog.oom_ambiguous) == (True, False)
    plain = box.exec("kill -9 $$")
    assert (plain.exit_code, plain.oom_killed) == (137, False), "a storm before it is none of its own"
    # A background child of one that has ended is killed for memory while another one kills itself.
    late = "(while [ ! -e go ]; do sleep 0.02; done; exec python3 -c 'b = bytearray(8 << 30)')"
    box.exec(f"{late} > /dev/null 2>&1 & echo $! > pid")
    beside = box.exec("touch go; while kill -0 $(cat pid) 2> /dev/null; do sleep 0.05; done; kill -9 $$", timeout=20)
    assert (beside.exit_code, beside.oom_killed, beside.oom_ambiguous) == (137, True, True), "one of two, it says"
    deadline = time.monotonic() + 10
    while (plain := box.exec("kill -9 $$")).oom_killed:
        assert time.monotonic() < deadline, "the blame stays"
        time.sleep(0.1)
    assert plain.exit_code == 137
