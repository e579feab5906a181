"""How executions end, and what stops a start, through the node's own link."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time

import pytest
from harness import bench
from node_looks import sleepers

from bellglass import ids
from bellglass.errors import Conflict, InvalidCommand, InvalidRequest, NotFound
from bellglass.node.executions.records import Records


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/bin/true"], {"exit_code": 0, "signal": None}),
        ("exit 255", {"exit_code": 255, "signal": None}),
        (["nosuchcmd"], {"exit_code": 127, "signal": None}),
        (["/etc/passwd"], {"exit_code": 126, "signal": None}),
        (["/tmp"], {"exit_code": 126, "signal": None}),
        ("kill -9 $$", {"exit_code": 137, "signal": "SIGKILL", "timed_out": False, "oom_killed": False}),
        ("kill -SEGV $$", {"exit_code": 139, "signal": "SIGSEGV"}),
    ],
)
def test_outcomes_are_told_as_they_are(run, command, expected) -> None:
    async def scenario() -> None:
        async with bench() as node:
            result = await (await node.create()).exec(command)
            assert {key: result["execution"][key] for key in expected} == expected
            assert result["execution"]["state"] == "exited"
            if command == ["nosuchcmd"]:
                assert result["stderr"] == "bellglass: nosuchcmd: not found\n"

    run(scenario())


def test_background_child_does_not_hold_the_exec(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            began = time.monotonic()
            result = await box.exec("sleep 31001 & echo hi")
            assert (result["stdout"], result["execution"]["exit_code"]) == ("hi\n", 0)
            assert time.monotonic() - began < 2
            assert sleepers("31001"), "it lives on until the sandbox ends"
            await node.delete(box)
            assert not sleepers("31001")

    run(scenario())


@pytest.mark.parametrize(
    ("command", "mark"),
    [
        ("sleep 31337 & sleep 31337; :", "31337"),
        ('trap "" TERM; sleep 31339; :', "31339"),
        ("echo part; setsid nohup sleep 31340 >/dev/null 2>&1 & sleep 31340", "31340"),
    ],
)
def test_timeout_kills_the_whole_tree(run, command, mark) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            stream = await box.open(command, accept="json", timeout_s=1.0)
            async with asyncio.timeout(1):
                while not sleepers(mark):
                    await asyncio.sleep(0.02)
            result = json.loads(await stream.read_all(10**6))
            execution = result["execution"]
            assert (execution["exit_code"], execution["timed_out"], execution["signal"]) == (137, True, "SIGKILL")
            assert not sleepers(mark)
            assert (await box.exec("echo still here"))["stdout"] == "still here\n"

    run(scenario())


def test_signals_reach_the_tree(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = (await box.start("sleep 31002 & sleep 31002; :"))["id"]
            async with asyncio.timeout(5):
                while len(sleepers("31002")) < 2:
                    await asyncio.sleep(0.02)
            await box.call("execution.signal", execution_id=execution_id, signal="TERM", scope="tree")
            raw = await box.body("execution.output", execution_id=execution_id, follow=True, accept="json")
            assert json.loads(raw)["execution"]["signal"] == "SIGTERM"
            assert not sleepers("31002")
            with pytest.raises(Conflict, match="ended"):
                await box.call("execution.signal", execution_id=execution_id, signal="SIGTERM")
            other = (await box.start("sleep 31003"))["id"]
            with pytest.raises(InvalidRequest):
                await box.call("execution.signal", execution_id=other, signal="SIGNOTHING")
            await box.call("execution.signal", execution_id=other, signal=9)
            raw = await box.body("execution.output", execution_id=other, follow=True, accept="json")
            killed = json.loads(raw)["execution"]
            assert (killed["exit_code"], killed["signal"], killed["timed_out"]) == (137, "SIGKILL", False)

    run(scenario())


def test_bad_starts_are_typed_and_leave_nothing(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = ids.new_ulid()
            for more, field in (
                ({"cwd": "/nope"}, "cwd"),
                ({"cwd": "/etc/passwd"}, "cwd"),
                ({"user": "nobodyhere"}, "user"),
            ):
                with pytest.raises(InvalidCommand) as caught:
                    await box.exec("echo hi", execution_id=execution_id, **more)
                assert caught.value.details["field"] == field
                assert str(next(iter(more.values()))) in caught.value.message
            for command in ("", "  ", [], [""], ["a\0b"], "a\0b"):
                with pytest.raises(InvalidCommand):
                    await box.exec(command)
            for env in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}):
                with pytest.raises(InvalidRequest):
                    await box.exec("true", env=env)
            with pytest.raises(NotFound):
                await box.exec("true", execution_id="../../etc")
            with pytest.raises(NotFound):
                await box.call("execution.get", execution_id=execution_id)
            assert (await box.exec("echo hi", execution_id=execution_id))["stdout"] == "hi\n", "the id is free again"

    run(scenario())


def test_env_round_trips(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            values = {"ODD": "a\nb\"c$d`e'f=é", "A-B": "dash", "BIG": "v" * 120_000, "PATH": "/usr/bin:/bin"}
            dump = ["python3", "-c", "import os,json;print(json.dumps(dict(os.environ)))"]
            seen = json.loads((await box.exec(dump, env=values))["stdout"])
            assert {key: seen[key] for key in values} == values
            assert seen["HOME"] and seen["USER"]

    run(scenario())


def test_huge_scripts_and_heredocs_run(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            script = "x=0\n" + "x=$((x+1)) # " + "padding " * 40 + "\n"
            script += "\n".join(["x=$((x+1)) # " + "p" * 290] * 1000) + "\necho $x; echo $#; cat << 'EOF'\nhello\nEOF\n"
            assert len(script) > 300_000
            assert (await box.exec(script))["stdout"] == "1001\n0\nhello\n"
            broken = await box.exec("cat << 'EOF'\nnever ended")
            assert "never ended" in broken["stdout"]
            too_long = ["/bin/echo", "x" * 200_000]
            with pytest.raises(InvalidCommand, match="too long"):
                await box.exec(too_long)

    run(scenario())


def test_records_have_the_fields_of_the_model(run) -> None:
    from dataclasses import fields

    from bellglass.model import Execution, ExecutionResult

    async def scenario() -> None:
        async with bench() as node:
            result = await (await node.create()).exec("true")
            assert set(result) == {field.name for field in fields(ExecutionResult)}
            assert set(result["execution"]) == {field.name for field in fields(Execution)}

    run(scenario())


def test_an_id_is_free_at_once_after_a_failed_start(run) -> None:
    """What ends the failed attempt inside must not reach the next one, which has the same cgroup."""

    async def scenario() -> None:
        async with bench() as node:
            for _ in range(10):
                box = await node.create()
                execution_id = ids.new_ulid()
                for _ in range(3):
                    with pytest.raises(InvalidCommand):
                        await box.exec("true", execution_id=execution_id, cwd="/nope")
                result = await box.exec("sleep 0.02; echo hi", execution_id=execution_id)
                assert (result["stdout"], result["execution"]["exit_code"]) == ("hi\n", 0)

    run(scenario())


def test_an_outcome_is_told_even_if_its_record_cannot_be_stored(run, monkeypatch) -> None:
    def full(self, *_, **__) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            monkeypatch.setattr(Records, "finish", full)
            assert (await asyncio.wait_for(box.exec("exit 3"), 10))["execution"]["exit_code"] == 3

    run(scenario())
