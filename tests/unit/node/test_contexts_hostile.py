"""A host whose lines are an attacker's: what it may say of its own run, and what it costs the node."""

from __future__ import annotations

import asyncio
import json

import pytest
from contexts_bench import Kernel, in_a_node, next_line
from harness import Bench

from bellglass.errors import (
    KernelDied,
)
from bellglass.node.contexts.lines import MAX_LINE_BYTES

pytestmark = pytest.mark.usefixtures("attackers_host")


@pytest.mark.parametrize(
    "code",
    [
        f"raw(b'x' * {MAX_LINE_BYTES + 1})",
        f"raw(b'[' * {MAX_LINE_BYTES - 10} + b'\\n')",
        "raw(b'nonsense\\n')",
        "raw(b'[]\\n')",
        "raw(b'\"text\"\\n')",
        "raw(b'\\xff\\xfe\\n')",
        'raw(b\'{"event": "stdout", "run": 5, "text": "x"}\\n\')',
        "emit({'event': 'stdout', 'run': run_id})",
        "emit({'event': 'stdout', 'run': run_id, 'text': 5})",
        "emit({'event': 'stdout', 'run': 'x' * 1000, 'text': ''})",
        "emit({'event': 'result', 'run': run_id, 'data': []})",
        "emit({'event': 'died', 'run': run_id, 'reason': 'boredom'})",
        "emit({'event': 'died', 'run': run_id, 'reason': 'signal', 'signal': 'x' * 1000})",
        "emit({'event': 'died', 'run': run_id, 'reason': 'exited', 'code': 10**1000})",
        'raw(b\'{"event": "result", "run": "%s", "data": {"a": NaN}}\\n\' % run_id.encode())',
        'raw(b\'{"event": "started", "run": "%s", "count": \' % run_id.encode() + b\'9\' * 5000 + b\'}\\n\')',
        "emit({'event': 'started', 'run': run_id, 'count': 2**53})",
        "emit({'event': [], 'run': run_id})",
        "emit({'event': {}, 'run': run_id})",
        'raw(b\'{"event": "result", "run": "%s", "data": {"a": [1e999]}}\\n\' % run_id.encode())',
        'raw(b\'{"event": "result", "run": "%s", "dropped": {"a": -1e999}}\\n\' % run_id.encode())',
        "emit({'event': 'result', 'run': run_id, 'piece': 'of nothing'})",
        "emit({'event': 'result', 'run': run_id, 'mime': 'text/plain'})",
        "deep = []\nfor _ in range(200): deep = [deep]\n"
        "emit({'event': 'result', 'run': run_id, 'dropped': {'a': deep}})",
    ],
)
@in_a_node
async def test_a_host_that_breaks_its_protocol_is_ended_and_the_next_run_works(kernel: Kernel, code: str) -> None:
    assert (await kernel.lines("emit({'event': 'stdout', 'run': run_id, 'text': 'fine'})"))[1]["text"] == "fine"
    end = (await kernel.lines(f"{code}\nimport time; time.sleep(60)"))[-1]
    assert (end["status"], end["error"]["details"]["reason"]) == ("died", "protocol"), end
    assert await kernel.text("say('alive')") == "alive"


@in_a_node
async def test_values_that_others_could_not_read_again_are_left_out_and_named(kernel: Kernel) -> None:
    code = (
        "import json\ndeep = json.loads('[' * 300 + ']' * 300)\n"
        "emit({'event': 'result', 'run': run_id, 'data': {'a': deep, 'b': [['fine']]}, 'dropped': {'c': 7}})\n"
        "part = {'event': 'result', 'run': run_id, 'part': 0, 'mime': 'chart', 'json': True}\n"
        "for text in ('{\"a\": [1.5]}', '[NaN]', '1e999', '[' * 300 + ']' * 300): emit({**part, 'piece': text})\n"
    )
    streamed = [line for line in await kernel.lines(code) if line["type"] == "result"]
    assert streamed[0]["data"] == {"b": [["fine"]]} and set(streamed[0]["dropped"]) == {"a", "c"}
    first, *pieces = (await kernel.buffered(code))["results"]
    assert first["data"] == {"b": [["fine"]]} and set(first["dropped"]) == {"a", "c"}
    assert [one["data"]["chart"] for one in pieces] == [{"a": [1.5]}, "[NaN]", "1e999", "[" * 300 + "]" * 300]


@in_a_node
async def test_events_of_other_runs_and_of_unknown_kinds_are_nobodys(kernel: Kernel) -> None:
    code = (
        "forged = ''.join(reversed(run_id))\n"
        "for event in ({'event': 'stdout', 'text': 'x'}, {'event': 'end'}, {'event': 'error', 'name': '', 'value': '',"
        " 'traceback': ''}, {'event': 'died', 'reason': 'oom'}, {'event': 'result', 'data': {}}):\n"
        "  emit({**event, 'run': forged}); emit({**event, 'run': None}); emit(event)\n"
        "emit({'event': 'novelty', 'run': run_id}); raw(b'\\n\\n'); say('mine')"
    )
    assert [line["type"] for line in await kernel.lines(code)] == ["started", "stdout", "end"]


@in_a_node
async def test_a_forged_end_ends_its_own_run_alone(kernel: Kernel) -> None:
    lines = await kernel.lines("emit({'event': 'end', 'run': run_id}); say('behind'); old = run_id")
    assert [line["type"] for line in lines] == ["started", "end"]
    lines = await kernel.lines("emit({'event': 'stdout', 'run': old, 'text': 'late'}); say('new')")
    assert [line.get("text") for line in lines if line["type"] == "stdout"] == ["new"]


@in_a_node
async def test_text_that_json_and_line_readers_stumble_over_arrives_as_it_was(kernel: Kernel) -> None:
    text = "\u2028\u2029\x85\x0c\x1c\ud800\U0001f600\0\r\n"
    async with await kernel.open(f"say({text!r})") as stream:
        await stream.head()
        raw = await stream.read_all(2**20)
    assert raw.isascii() and len(raw.splitlines()) == len(raw.split(b"\n")) - 1 == 3
    assert json.loads(raw.splitlines()[1])["text"] == text


@in_a_node
async def test_a_flood_is_held_back_by_its_reader_and_all_of_it_comes(kernel: Kernel) -> None:
    code = "for n in range(40000): say(str(n) + '\\n')"
    stream = await kernel.open(code)
    await stream.head()
    live = kernel.box.bench.node.sandboxes.running()[0]
    held = next(iter(live.executions.running.values()))
    seen = -1
    while seen != held.log.total_bytes:  # until nothing moves: the reader takes nothing
        seen = held.log.total_bytes
        await asyncio.sleep(0.3)
    assert 0 < seen < 2**20
    lines = [json.loads(line) for line in (await stream.read_all(2**26)).splitlines()]
    texts = [line["text"] for line in lines if line["type"] == "stdout"]
    assert "".join(texts).split() == [str(n) for n in range(40000)]


@in_a_node
async def test_what_a_flood_costs_the_node_is_bounded_for_the_others(kernel: Kernel, node: Bench) -> None:
    flood = asyncio.create_task(kernel.lines("while True: raw(b'{}\\n' * 4000)", timeout_s=1.5))
    other = await node.create()
    waits = []
    while not flood.done():
        before = asyncio.get_running_loop().time()
        await other.exec(["true"])
        waits.append(asyncio.get_running_loop().time() - before)
    assert (await flood)[-1]["timed_out"]
    assert sorted(waits)[len(waits) // 2] < 0.5, waits


@in_a_node
async def test_a_death_told_in_a_novel_is_none_and_cuts_nobody_off(kernel: Kernel, node: Bench) -> None:
    """What a host says of a death becomes part of an error, which goes over the link that all share."""
    told = 'emit({"event": "died", "run": run_id, "reason": "signal", "signal": %s})'
    other = Kernel(await node.create())
    async with await other.open("import time; time.sleep(60)") as stream:
        await next_line(stream)
        with pytest.raises(KernelDied) as death:
            await kernel.buffered(told % '"SIGSEGV"')
        assert death.value.details["signal"] == "SIGSEGV"
        with pytest.raises(KernelDied) as death:
            await kernel.buffered(told % '"x" * 200_000')
        assert death.value.details["reason"] == "protocol" and len(str(death.value)) < 1000
        assert stream.peer_gone is None, "another sandbox's stream goes on"
    assert await kernel.text("say('on')") == "on"


@in_a_node
async def test_a_buffered_answer_counts_names_as_well(kernel: Kernel) -> None:
    part = "emit({'event': 'result', 'run': run_id, 'last': False, 'mime': 'm' * %d + str(n), 'piece': ''})\n"
    few = await kernel.buffered(f"for n in range(3): {part % 10}")
    assert not few["truncated"]
    code = (
        f"for n in range(60): {part % 200_000}"
        "for n in range(60): emit({'event': 'result', 'run': run_id, 'data': {}, 'dropped': {'d' * 200_000: n}})\n"
    )
    many = await kernel.buffered(code)
    assert many["truncated"] and len(json.dumps(many["results"])) < 6 * 2**20
