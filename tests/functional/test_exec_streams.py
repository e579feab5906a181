"""Output as it was written: characters whole, bytes exact, nothing lost at the end, bounded when it is a flood."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bellglass import AsyncSandbox
from bellglass.testing import kernel

COFFEE = ["python3", "-c", "print('☕'*100000,end='')"]
CUT_BY_TIME = ["python3", "-c", "import os,time;os.write(1,b'caf\\xc3');time.sleep(.3);os.write(1,b'\\xa9')"]
CUT_AT_END = ["python3", "-c", "import os;os.write(1,b'caf\\xc3')"]
LINES = {
    "a\n\nb\n\n\nc": ["printf", "a\\n\\nb\\n\\n\\nc"],
    "10%\r50%\r100%": ["printf", "10%%\\r50%%\\r100%%"],
    "\n": ["printf", "\\n"],
    "no newline": ["printf", "no newline"],
}


def streamed_text(box: Any, command: list[str]) -> str:
    """stdout put together from the SDK's stream of a started execution."""
    execution = box.start(command)
    return "".join(event.text for event in execution.output(follow=True) if event.stream == "stdout")


def ndjson(api: httpx2.Client, box: Any, command: list[str]) -> list[dict[str, Any]]:
    answer = api.post(
        f"/v1/sandboxes/{box.id}/executions", json={"command": command}, headers={"Accept": "application/x-ndjson"}
    )
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def ndjson_bytes(lines: list[dict[str, Any]], stream: str = "stdout") -> bytes:
    pieces = [line for line in lines if line["stream"] == stream]
    return b"".join(base64.b64decode(p["b64"]) if "b64" in p else p["text"].encode() for p in pieces)


async def exec_async(stack: Any, box: Any, command: list[str]) -> str:
    same = await AsyncSandbox.connect(box.id, api_url=stack.api_url, api_key=stack.api_key)
    try:
        return (await same.exec(command)).stdout
    finally:
        await same.aclose()


@pytest.mark.parametrize(
    ("command", "text"),
    [(COFFEE, "☕" * 100_000), (CUT_BY_TIME, "café"), (CUT_AT_END, "caf\ufffd")],
    ids=["300 000 bytes", "cut by time", "cut for good"],
)
def test_characters_are_whole(shared_box: Any, stack: Any, api: httpx2.Client, command: list[str], text: str) -> None:
    assert shared_box.exec(command).stdout == text
    assert streamed_text(shared_box, command) == text
    assert asyncio.run(exec_async(stack, shared_box, command)) == text
    lines = ndjson(api, shared_box, command)
    assert ndjson_bytes(lines).decode("utf-8", "replace") == text
    assert not any("\ufffd" in line.get("text", "") for line in lines)
    assert lines[-1]["stream"] == "exit"


@pytest.mark.parametrize("text", LINES)
def test_line_ends_are_exact(shared_box: Any, stack: Any, api: httpx2.Client, text: str) -> None:
    command = LINES[text]
    assert shared_box.exec(command).stdout == text
    assert streamed_text(shared_box, command) == text
    assert asyncio.run(exec_async(stack, shared_box, command)) == text
    assert ndjson_bytes(ndjson(api, shared_box, command)) == text.encode()


def test_bytes_that_are_no_text_are_exact(shared_box: Any, api: httpx2.Client) -> None:
    command = ["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)"]
    wanted = bytes(range(256)) * 100
    assert shared_box.exec(command).stdout_raw == wanted
    assert ndjson_bytes(ndjson(api, shared_box, command)) == wanted


def test_the_last_line_is_never_lost(shared_box: Any) -> None:
    def last(_: int) -> str:
        return shared_box.exec(["seq", "1", "20000"]).stdout[-7:]

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(last, range(200))) == {"\n20000\n"}


def test_long_output_keeps_head_and_tail(shared_box: Any, api: httpx2.Client) -> None:
    command = ["seq", "1", "1000000"]
    whole = sum(len(str(n)) + 1 for n in range(1, 1_000_001))
    answer = api.post(f"/v1/sandboxes/{shared_box.id}/executions", json={"command": command}).json()
    text = answer["stdout"]
    assert text.startswith("1\n2\n3\n") and text.endswith("\n999999\n1000000\n")
    assert len(text) <= 1 << 20 < whole
    assert answer["stdout_omitted_bytes"] == whole - len(text)
    assert (answer["execution"]["truncated"], answer["execution"]["stdout_bytes"]) == (True, whole)

    result = shared_box.exec(command, max_output="1MiB")
    assert result.truncated and result.exit_code == 0 and result.stdout_total_bytes == whole
    assert result.stdout.startswith("1\n2\n3\n") and result.stdout.endswith("\n999999\n1000000\n")
    exact = shared_box.exec(command)
    assert not exact.truncated and exact.stdout == "".join(f"{n}\n" for n in range(1, 1_000_001))


def test_a_flood_is_bounded_everywhere(shared_box: Any, stack: Any) -> None:
    """Endless writers in parallel: every one ends by its timeout, marked, and no process of ours grows with them."""
    pids = stack.pids()
    before = {name: kernel.resident_bytes(pids[name]) for name in ("server", "node")}
    for name in before:
        kernel.reset_peak_memory(pids[name])
    floods = [["cat", "/dev/zero"], ["yes"], ["python3", "-c", "while 1: print('x'*10**6)"]]

    def flood(number: int) -> Any:
        return shared_box.exec(floods[number % 3], timeout=3, max_output="1MiB")

    started = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(flood, range(12)))
    assert time.monotonic() - started < 30
    for result in results:
        assert (result.exit_code, result.timed_out, result.truncated) == (137, True, True)
        assert len(result.stdout_raw) <= 1 << 20 < result.stdout_total_bytes
    for name, was in before.items():
        grown = kernel.peak_memory_bytes(pids[name]) - was
        assert grown < 200 << 20, f"{name} grew by {grown >> 20} MiB"
    assert shared_box.exec(["echo", "fine"]).stdout == "fine\n"
