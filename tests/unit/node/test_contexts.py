"""Contexts on the node, with the fake driver: state, turns, kernels that end, interrupts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from contexts_bench import SLEEPS, Kernel, in_a_node, new_id, next_line

from bellglass.errors import (
    Conflict,
    KernelDied,
    LimitExceeded,
    NotFound,
    NotSupported,
)
from bellglass.node.contexts import host, run

pytestmark = pytest.mark.usefixtures("attackers_host")


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
