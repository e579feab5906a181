"""Contexts on the node, with the fake driver and a host whose lines are an attacker's."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from harness import ME, Bench, Box, bench

from bellglass import ids
from bellglass.errors import AgentLost, Conflict, KernelDied, LimitExceeded, NotFound, NotSupported, SandboxGone
from bellglass.node.contexts import host, run
from bellglass.node.contexts.lines import MAX_LINE_BYTES

PROGRAM = Path(__file__).with_name("attackers_host.py")


@pytest.fixture(autouse=True)
def attackers_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "host"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} "$@"\n')
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(host, "PROGRAM", str(program))


class Kernel:
    """One context of a box."""

    def __init__(self, box: Box, context_id: str = "python") -> None:
        self.box, self.id = box, context_id

    def params(self, code: str, **more: Any) -> dict[str, Any]:
        around = {"cwd": self.box.workdir, "user": ME, "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}}
        given = {"context_id": self.id, "run_id": ids.new_ulid(), "code": code, "keepalive_s": 15.0}
        return self.box.ref | around | given | more

    async def open(self, code: str, **more: Any) -> Any:
        params = {"accept": "ndjson", **self.params(code), **more}
        return await self.box.bench.link.open("context.run", params, body=False)

    async def lines(self, code: str, **more: Any) -> list[dict[str, Any]]:
        async with await self.open(code, **more) as stream:
            await stream.head()
            raw = await stream.read_all(256 * 2**20)
        return [json.loads(line) for line in raw.splitlines()]

    async def text(self, code: str, **more: Any) -> str:
        return "".join(line["text"] for line in await self.lines(code, **more) if line["type"] == "stdout")

    async def buffered(self, code: str, **more: Any) -> dict[str, Any]:
        async with await self.open(code, accept="json", **more) as stream:
            await stream.head()
            found: dict[str, Any] = json.loads(await stream.read_all(64 * 2**20))
        return found

    async def call(self, op: str, **more: Any) -> dict[str, Any]:
        return await self.box.call(op, context_id=self.id, **more)

    async def create(self, language: str = "python", **more: Any) -> dict[str, Any]:
        around = {"cwd": self.box.workdir, "user": ME, "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}}
        return await self.box.call("context.create", context_id=self.id, language=language, **(around | more))


def in_a_node(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs it on the node's loop, with `kernel`, the default context of a sandbox, and where it asks for it `node`."""
    signature = inspect.signature(test)
    own = [parameter for name, parameter in signature.parameters.items() if name not in ("kernel", "node")]

    def runner(**given: Any) -> None:
        async def scenario() -> None:
            async with asyncio.timeout(60), bench() as node:
                made = {"kernel": Kernel(await node.create()), "node": node}
                await test(**{name: made[name] for name in made if name in signature.parameters}, **given)

        uvloop.run(scenario())

    functools.update_wrapper(runner, test)
    runner.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return runner


def new_id() -> str:
    return "cx" + ids.random_base32(20)


async def next_line(stream: Any) -> dict[str, Any]:
    rest = b""
    async for chunk in stream:
        rest += chunk
        if b"\n" in rest:
            found: dict[str, Any] = json.loads(rest.splitlines()[-1])
            return found
    raise AssertionError("the answer ended")


@in_a_node
async def test_state_is_kept_between_runs_and_the_buffered_answer_holds_all_of_it(kernel: Kernel) -> None:
    first = await kernel.lines("x = 41; say('one\\n')")
    assert [line["type"] for line in first] == ["started", "stdout", "end"]
    assert first[0]["execution_count"] == 1 and first[-1]["status"] == "ok"
    found = await kernel.buffered(
        "say(str(x + 1)); emit({'event': 'result', 'run': run_id, 'main': True, 'data': {'a/b': 'c'}})"
    )
    assert (found["stdout"], found["stderr"], found["execution_count"]) == ("42", "", 2)
    assert found["results"] == [{"main": True, "data": {"a/b": "c"}, "dropped": {}}] and found["error"] is None


@in_a_node
async def test_what_the_code_raises_is_told_and_is_no_failure(kernel: Kernel) -> None:
    lines = await kernel.lines("1/0")
    assert [line["type"] for line in lines] == ["started", "error", "end"]
    assert lines[1]["name"] == "ZeroDivisionError" and lines[-1]["status"] == "error" and lines[-1]["error"] is None


@in_a_node
async def test_results_in_pieces_are_put_together_in_the_buffered_answer_up_to_a_size(kernel: Kernel) -> None:
    code = (
        "part = lambda n, mime, piece, last, j=False: emit({'event': 'result', 'run': run_id, 'main': False,"
        " 'part': n, 'last': last, 'mime': mime, 'piece': piece, 'json': j})\n"
        "part(0, 'text/plain', 'ab', False)\npart(1, 'text/plain', 'cd', False)\n"
        "part(2, 'chart', '{\"type\":', False, True)\npart(3, 'chart', '1}', True, True)\n"
        "big = 'x' * 200000\n"
        "for n in range(30): part(n, 'image/png', big, n == 29)\n"
        "part(0, 'text/plain', 'again', True)\n"
    )
    results = (await kernel.buffered(code))["results"]
    assert results[0]["data"] == {"text/plain": "abcd", "chart": {"type": 1}}
    assert results[1] == {"main": False, "data": {}, "dropped": {"image/png": 6_000_000}}
    assert results[2]["data"] == {"text/plain": "again"}


@in_a_node
async def test_runs_of_one_context_go_one_after_the_other_and_two_contexts_side_by_side(kernel: Kernel) -> None:
    other = Kernel(kernel.box, new_id())
    await asyncio.gather(kernel.text("import threading; log = []"), other.create())
    one = "log.append('in'); import time; time.sleep(0.05); log.append('out')"
    await asyncio.gather(*[kernel.text(one) for _ in range(8)])
    assert await kernel.text("say(','.join(log))") == ",".join(["in,out"] * 8)
    wait = "import os.path, time\nopen('{}', 'w').close()\nwhile not os.path.exists('{}'): time.sleep(0.01)"
    box = kernel.box.workdir
    await asyncio.wait_for(
        asyncio.gather(
            kernel.lines(wait.format(f"{box}/a", f"{box}/b")), other.lines(wait.format(f"{box}/b", f"{box}/a"))
        ),
        20,
    )


@in_a_node
async def test_twenty_contexts_at_once_are_all_there_and_share_nothing(kernel: Kernel) -> None:
    kernels = [Kernel(kernel.box, new_id()) for _ in range(20)]
    await asyncio.gather(*[one.create() for one in kernels])
    listed = (await kernel.box.call("context.list"))["contexts"]
    assert {one["id"] for one in listed} == {one.id for one in kernels} and {one["state"] for one in listed} == {
        "ready"
    }
    assert [one["created_at"] for one in listed] == sorted(one["created_at"] for one in listed)
    await asyncio.gather(*[one.text(f"mine = {number}") for number, one in enumerate(kernels)])
    texts = await asyncio.gather(*[one.text("say(str(mine))") for one in kernels])
    assert texts == [str(number) for number in range(20)]
    await asyncio.gather(*[one.call("context.delete") for one in kernels])
    assert (await kernel.box.call("context.list"))["contexts"] == []
    assert not kernel.box.bench.node.sandboxes.running()[0].executions.running


@in_a_node
async def test_a_context_is_the_same_for_the_same_id_and_a_conflict_for_another(kernel: Kernel) -> None:
    one = Kernel(kernel.box, new_id())
    first = await one.create()
    await one.text("x = 1")
    assert await one.create() == first | {"state": "ready"}
    assert await one.text("say(str(x))") == "1"
    with pytest.raises(Conflict):
        await one.create("bash")
    with pytest.raises(NotFound):
        await Kernel(kernel.box, "cxnonsense").create()
    with pytest.raises(NotFound):
        await Kernel(kernel.box, new_id()).lines("1")


@in_a_node
async def test_a_template_without_a_host_says_so_and_leaves_nothing(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await kernel.text("say('with it')") == "with it"
    monkeypatch.setattr(host, "PROGRAM", "/nonexistent/host")
    one = Kernel(kernel.box, new_id())
    with pytest.raises(NotSupported, match="interpreter"):
        await one.create()
    with pytest.raises(NotSupported, match="interpreter"):
        await Kernel(kernel.box, "bash").lines("1")
    with pytest.raises(NotFound):
        await one.lines("1")
    assert [row["id"] for row in (await kernel.box.call("context.list"))["contexts"]] == ["python"]


# --- kernels that end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "more"),
    [
        ("os._exit(3)", "exited", {"code": 3}),
        ("os.kill(os.getpid(), 11)", "signal", {"signal": "SIGSEGV"}),
        ("emit({'event': 'died', 'run': run_id, 'reason': 'oom', 'signal': 'SIGKILL'})", "oom", {"signal": "SIGKILL"}),
    ],
)
@in_a_node
async def test_a_kernel_that_ends_is_a_typed_error_and_the_next_run_works(
    kernel: Kernel, code: str, reason: str, more: dict[str, Any]
) -> None:
    await kernel.text("x = 1")
    lines = await kernel.lines(f"say('before')\n{code}")
    assert lines[1]["text"] == "before" and lines[-1]["status"] == "died"
    assert lines[-1]["error"]["code"] == "kernel_died"
    assert lines[-1]["error"]["details"].items() >= {"reason": reason, "state_lost": True, **more}.items()
    assert await kernel.text("say('alive')") == "alive"
    with pytest.raises(KernelDied) as caught:  # the buffered answer has it as its status
        await kernel.buffered("os._exit(4)")
    assert caught.value.details["code"] == 4


@in_a_node
async def test_restart_and_delete_end_a_run_under_way_and_say_which(kernel: Kernel) -> None:
    one = Kernel(kernel.box, new_id())
    await one.create()
    for op, reason in (("context.restart", "restarted"), ("context.delete", "deleted")):
        stream = await one.open("x = 5\nimport time; say('on'); time.sleep(60)")
        assert (await next_line(stream))["type"] in ("started", "stdout")
        more = {k: v for k, v in one.params("").items() if k in ("cwd", "user", "env")} if "restart" in op else {}
        await one.call(op, **more)
        raw = await stream.read_all(2**20)
        last = json.loads(raw.splitlines()[-1])
        assert (last["status"], last["error"]["details"]["reason"]) == ("died", reason)
        if "restart" in op:
            assert (await one.lines("say(str(x))"))[1]["name"] == "NameError"
    with pytest.raises(NotFound):
        await one.lines("1")


# --- interrupts ---------------------------------------------------------------------------------------------------

SLEEPS = "say('on')\nimport time\nwhile True: time.sleep(0.01)"


@in_a_node
async def test_an_interrupt_and_a_timeout_stop_the_code_and_keep_the_state(kernel: Kernel) -> None:
    await kernel.text("x = 7")
    assert await kernel.call("context.interrupt") == {"interrupted": False}
    stream = await kernel.open(SLEEPS)
    while (await next_line(stream))["type"] != "stdout":
        pass
    assert await kernel.call("context.interrupt") == {"interrupted": True}
    *_, error, end = [json.loads(line) for line in (await stream.read_all(2**20)).splitlines()]
    assert error["name"] == "KeyboardInterrupt" and end["interrupted"] and not end["timed_out"]
    *_, error, end = await kernel.lines(SLEEPS, timeout_s=0.2)
    assert error["name"] == "KeyboardInterrupt" and end["timed_out"] and not end["interrupted"]
    assert await kernel.text("say(str(x))") == "7"


@in_a_node
async def test_a_client_that_hangs_up_interrupts_its_run(kernel: Kernel) -> None:
    await kernel.text("x = 7")
    async with await kernel.open(SLEEPS) as stream:
        await next_line(stream)  # and away
    assert await asyncio.wait_for(kernel.text("say(str(x))"), 10) == "7"


@in_a_node
async def test_a_client_that_hangs_up_while_it_waits_for_its_turn_never_runs(kernel: Kernel) -> None:
    await kernel.text("ran = []")
    async with await kernel.open("import time; time.sleep(0.5)") as first:
        await next_line(first)
        async with await kernel.open("ran.append(1)", keepalive_s=0.05) as second:
            assert (await next_line(second))["type"] == "keepalive"
    assert await kernel.text("say(str(ran))") == "[]"


@in_a_node
async def test_a_host_that_does_not_stop_is_killed(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "STOP_S", 0.5)
    code = "import time\nwhile True:\n  try:\n    time.sleep(60)\n  except KeyboardInterrupt: pass"
    end = (await kernel.lines(code, timeout_s=0.1))[-1]
    assert end["error"]["details"].items() >= {"reason": "unresponsive", "timed_out": True}.items()
    assert await kernel.text("say('alive')") == "alive"


# --- lines of an attacker -----------------------------------------------------------------------------------------


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
    ],
)
@in_a_node
async def test_a_host_that_breaks_its_protocol_is_ended_and_the_next_run_works(kernel: Kernel, code: str) -> None:
    assert (await kernel.lines("emit({'event': 'stdout', 'run': run_id, 'text': 'fine'})"))[1]["text"] == "fine"
    end = (await kernel.lines(f"{code}\nimport time; time.sleep(60)"))[-1]
    assert (end["status"], end["error"]["details"]["reason"]) == ("died", "protocol"), end
    assert await kernel.text("say('alive')") == "alive"


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


# --- restarts -----------------------------------------------------------------------------------------------------


@in_a_node
async def test_contexts_and_their_state_outlive_the_node(kernel: Kernel, node: Bench) -> None:
    one = Kernel(kernel.box, new_id())
    made = await one.create()
    await one.text("x = 'kept'")
    await kernel.text("y = 'too'")
    await node.restart()
    assert await one.text("say(x)") == "kept" and await kernel.text("say(y)") == "too"
    listed = (await one.box.call("context.list"))["contexts"]
    assert next((row["id"], row["execution_id"]) for row in listed) == (made["id"], made["execution_id"])
    await one.call("context.delete")
    await node.restart()
    assert [row["id"] for row in (await one.box.call("context.list"))["contexts"]] == ["python"]


@in_a_node
async def test_a_run_goes_on_over_a_restart_and_is_attached_to_by_its_id(kernel: Kernel, node: Bench) -> None:
    code = "import time; say('a')\nwhile not os.path.exists(cwd + '/go'): time.sleep(0.01)\nsay('b'); ran = 1"
    params = {"run_id": ids.new_ulid()}
    stream = await kernel.open(code, **params)
    line = await next_line(stream)
    while line["type"] != "stdout":
        line = await next_line(stream)
    await node.restart()
    Path(kernel.box.workdir, "go").touch()
    lines = await kernel.lines(code, after=line["offset"], **params)
    assert [line.get("text") for line in lines if line["type"] != "end"] == ["b"] and lines[-1]["status"] == "ok"
    again = await kernel.lines(code, **params)  # the same run, over by now
    assert [line.get("text") for line in again if line["type"] == "stdout"] == ["a", "b"]
    with pytest.raises(Conflict):
        await kernel.lines("other code", **params)
    await node.restart()
    again = await kernel.lines(code, **params)
    assert [line.get("text") for line in again if line["type"] == "stdout"] == ["a", "b"]
    assert again[-1]["run_id"] == params["run_id"]


@in_a_node
async def test_a_run_that_nobody_comes_back_for_is_interrupted(
    kernel: Kernel, node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kernel.text("x = 7")
    stream = await kernel.open(SLEEPS)
    await next_line(stream)
    monkeypatch.setattr(run, "RETURN_S", 0.3)
    await node.restart()
    assert await asyncio.wait_for(kernel.text("say(str(x))"), 20) == "7"


@in_a_node
async def test_a_sandbox_that_is_deleted_ends_its_runs_with_its_own_error(kernel: Kernel, node: Bench) -> None:
    stream = await kernel.open(SLEEPS)
    await next_line(stream)
    queued = asyncio.create_task(kernel.lines("1"))
    await node.delete(kernel.box)
    last = json.loads((await stream.read_all(2**20)).splitlines()[-1])
    assert last["status"] == "lost" and last["error"]["code"] == "sandbox_gone"
    with pytest.raises((SandboxGone, AgentLost)):
        await queued


@in_a_node
async def test_a_sandbox_that_is_deleted_under_a_create_ends_it_and_leaves_no_row(kernel: Kernel, node: Bench) -> None:
    Path(host.PROGRAM).write_text("#!/bin/sh\nexec sleep 60\n")  # it is never ready
    one = Kernel(kernel.box, new_id())
    creating = asyncio.create_task(one.create())
    while not (live := node.node.sandboxes.running()[0]).executions.running:
        await asyncio.sleep(0.01)
    assert [row.id for row in live.context_rows.of(kernel.box.id)] == [one.id]
    await node.delete(kernel.box)
    with pytest.raises((SandboxGone, AgentLost)):
        await asyncio.wait_for(creating, 20)
    async with asyncio.timeout(20):
        while node.node.records.contexts.of(kernel.box.id):
            await asyncio.sleep(0.01)


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


@in_a_node
async def test_too_many_contexts_and_too_many_waiting_runs_are_refused(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellglass.node.contexts.registry.MOST", 2)
    monkeypatch.setattr("bellglass.node.contexts.context.MOST_WAITING", 1)
    await kernel.text("1")
    await Kernel(kernel.box, new_id()).create()
    with pytest.raises(LimitExceeded):
        await Kernel(kernel.box, new_id()).create()
    async with await kernel.open(SLEEPS) as first:
        await next_line(first)
        async with await kernel.open("1", keepalive_s=0.05) as second:
            await next_line(second)
            with pytest.raises(LimitExceeded):
                await kernel.lines("1")
