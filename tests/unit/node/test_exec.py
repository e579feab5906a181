"""Outcomes, bytes and trees of executions, through the node's own link."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import time
from pathlib import Path

import pytest
from harness import bench, frames

from bellglass import ids
from bellglass.errors import Conflict, InvalidCommand, InvalidRequest, LimitExceeded, NoCapacity, NotFound
from bellglass.node.executions.log import ExecutionLog
from bellglass.node.executions.records import Records
from bellglass.wire.output import OutputType


def sleepers(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"sleep\0{mark}".encode() in line:
                found.append(entry.name)
    return found


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


def test_output_is_exact_in_every_format(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            for text in ("a\\n\\nb\\n\\n\\nc", "10%%\\r50%%\\r100%%", "\\n"):
                want = text.replace("%%", "%").replace("\\n", "\n").replace("\\r", "\r").encode()
                assert (await box.exec(["printf", text]))["stdout"].encode() == want
                stream = await box.open(["printf", text])
                assert (await frames(stream))[0] == want
                stream = await box.open(["printf", text], accept="ndjson")
                lines = [json.loads(line) for line in (await stream.read_all(10**6)).splitlines()]
                assert "".join(line.get("text", "") for line in lines).encode() == want
                assert [line["stream"] for line in lines][0 :: len(lines) - 1] == ["started", "exit"]
            cups = await box.exec(["python3", "-c", "print('☕'*100000,end='')"])
            assert cups["stdout"] == "☕" * 100000
            cut = ["python3", "-c", r"import os,time;os.write(1,b'caf\xc3');time.sleep(.3);os.write(1,b'\xa9')"]
            assert (await box.exec(cut))["stdout"] == "café"
            stream = await box.open(cut, accept="ndjson")
            lines = [json.loads(line) for line in (await stream.read_all(10**6)).splitlines()]
            assert "".join(line.get("text", "") for line in lines) == "café"
            torn = await box.exec(["printf", r"caf\303"])
            assert (torn["stdout"], torn["stdout_b64"]) == ("caf\ufffd", "Y2Fmww==")

    run(scenario())


def test_last_line_is_never_lost(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            for _ in range(50):
                result = await box.exec("seq 1 20000")
                assert result["stdout"].endswith("\n20000\n")
                assert result["execution"]["exit_code"] == 0

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


def test_timeout_counts_while_nobody_reads(run) -> None:
    """A reader that takes nothing blocks the program, never its deadline; the log keeps what came."""

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = ids.new_ulid()
            stream = await box.open("yes", timeout_s=1.0, execution_id=execution_id)
            await stream.head()
            await asyncio.sleep(1.5)
            record = await box.call("execution.get", execution_id=execution_id)
            assert (record["state"], record["timed_out"]) == ("exited", True)
            assert record["output_bytes"] < 4 * 2**20, "the window holds the program back"
            out, _, others = await frames(stream)
            assert len(out) == record["output_bytes"]
            assert others[-1].type is OutputType.EXIT

    run(scenario())


def test_without_stdin_there_is_an_end_at_once(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            assert (await box.exec("cat; echo done"))["stdout"] == "done\n"
            assert (await box.exec("cat", stdin="given at once"))["stdout"] == "given at once"
            big = "x" * 500_000
            assert (await box.exec("wc -c", stdin=big))["stdout"] == "500000\n"
            assert (await box.exec("head -c 3", stdin=big))["stdout"] == "xxx", "a program that reads no more"

    run(scenario())


def test_stdin_is_streamed_with_its_end(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = (await box.start("sha256sum", stdin_open=True))["id"]
            import hashlib

            data = os.urandom(3_000_000)
            params = box.ref | {"execution_id": execution_id}
            stream = await node.link.open("execution.stdin", params)
            await stream.send(data)
            await stream.end()
            assert (await stream.head())["result"] == {"written": len(data), "offset": len(data)}
            await box.call("execution.stdin", execution_id=execution_id, eof=True)
            raw = await box.body("execution.output", execution_id=execution_id, follow=True, accept="json")
            assert json.loads(raw)["stdout"].split()[0] == hashlib.sha256(data).hexdigest()
            with pytest.raises(Conflict):
                await box.call("execution.stdin", execution_id=execution_id, eof=True)
            other = (await box.start("sleep 5"))["id"]
            with pytest.raises(Conflict, match="not open"):
                await box.call("execution.stdin", execution_id=other, eof=True)

    run(scenario())


def test_stdin_waits_for_the_program(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = (await box.start("sleep 0.5; wc -c", stdin_open=True))["id"]
            began = time.monotonic()
            stream = await node.link.open("execution.stdin", box.ref | {"execution_id": execution_id, "eof": True})
            await stream.send(b"y" * 2_000_000)
            await stream.end()
            assert (await stream.head())["result"]["written"] == 2_000_000
            assert time.monotonic() - began > 0.4
            raw = await box.body("execution.output", execution_id=execution_id, follow=True, accept="json")
            assert json.loads(raw)["stdout"] == "2000000\n"

    run(scenario())


def test_the_same_id_attaches(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            execution_id = ids.new_ulid()
            first = await box.open("echo $$; sleep 0.5; echo end", execution_id=execution_id)
            second = await box.open("echo $$; sleep 0.5; echo end", execution_id=execution_id)
            one, two = await asyncio.gather(frames(first), frames(second))
            assert one[0] == two[0] and one[0].endswith(b"end\n")
            again = await box.exec("echo $$; sleep 0.5; echo end", execution_id=execution_id)
            assert again["stdout"].encode() == one[0], "after its end: the log, not a second run"
            with pytest.raises(Conflict, match="another command"):
                await box.exec("echo other", execution_id=execution_id)

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


def test_flood_is_bounded_and_counted(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.log_limit": 4 * 2**20}) as node:
            box = await node.create()
            result = await box.exec("head -c 30000000 /dev/zero | tr '\\0' x; echo end", timeout_s=30)
            assert result["execution"]["stdout_bytes"] == 30_000_004
            assert result["execution"]["truncated"] and result["stdout"].endswith("xend\n")
            assert len(result["stdout"]) + result["stdout_omitted_bytes"] == 30_000_004
            started = await box.start("head -c 30000000 /dev/zero; echo end")
            stream = await node.link.open(
                "execution.output",
                box.ref | {"execution_id": started["id"], "follow": True, "accept": "frames"},
                body=False,
            )
            await stream.head()
            out, _, others = await frames(stream)
            late = await node.link.open(
                "execution.output",
                box.ref | {"execution_id": started["id"], "follow": True, "accept": "frames"},
                body=False,
            )
            out, _, others = await frames(late)
            skipped = [event.value for event in others if event.type is OutputType.SKIPPED]
            assert skipped and skipped[0]["offset"] == 0
            assert sum(gap["bytes"] for gap in skipped) + len(out) == 30_000_004 and out.endswith(b"end\n")
            kept = sum(p.stat().st_size for p in node.node.sandboxes.log_folder(box.id).glob(f"{started['id']}.*"))
            assert kept <= 4 * 2**20 + 2**20

    run(scenario())


def test_output_from_an_offset(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = await box.start("printf 0123456789; sleep 0.3; printf abc")
            params = {"execution_id": started["id"], "accept": "frames", "offset": 4, "follow": True}
            stream = await node.link.open("execution.output", box.ref | params, body=False)
            out, _, others = await frames(stream)
            assert out == b"456789abc" and others[-1].value["exit_code"] == 0
            listed = await box.call("execution.list", limit=10)
            assert [row["id"] for row in listed["executions"]] == [started["id"]]

    run(scenario())


def test_a_client_that_hung_up(run, monkeypatch) -> None:
    """A waiting execution is killed once nobody came back; a detached one and one that lost its server go on."""
    from bellglass.node.executions import run as run_module

    monkeypatch.setattr(run_module, "HANGUP_GRACE_S", 0.3)

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            waiting, kept = ids.new_ulid(), ids.new_ulid()
            for execution_id in (waiting, kept):
                stream = await box.open("sleep 31004", execution_id=execution_id)
                await stream.head()
                await stream.reset()
            back = await box.open("sleep 31004", execution_id=kept)
            await back.head()
            await asyncio.sleep(0.8)
            assert (await box.call("execution.get", execution_id=waiting))["signal"] == "SIGKILL"
            assert (await box.call("execution.get", execution_id=kept))["state"] == "running"
            from bellglass.link import LinkClient

            await node.link.close()
            node.link = await LinkClient.connect(
                node.data.node_socket, secret="unit-test-secret", installation="aaaaaaaa"
            )
            await asyncio.sleep(0.8)
            assert (await box.call("execution.get", execution_id=kept))["state"] == "running"

    run(scenario())


def test_executions_at_once_are_limited(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.max_executions": 3}) as node:
            box = await node.create()
            for _ in range(3):
                await box.start("sleep 31005")
            with pytest.raises(LimitExceeded, match="at once is 3"):
                await box.exec("true")

    run(scenario())


def test_logs_of_finished_ones_have_a_size_together(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.log_limit": 4 * 2**20}) as node:
            box = await node.create()
            for _ in range(24):
                await box.exec("head -c 3500000 /dev/zero")
            folder = node.node.sandboxes.log_folder(box.id)
            assert sum(path.stat().st_size for path in folder.iterdir()) < 17 * 4 * 2**20
            kept = (await box.call("execution.list"))["executions"]
            assert 10 < len(kept) < 24

    run(scenario())


def test_finished_ones_are_kept_up_to_a_number(run) -> None:
    async def scenario() -> None:
        async with bench(**{"node.execution_retention": 5}) as node:
            box = await node.create()
            for number in range(8):
                await box.exec(f"echo {number}")
            listed = (await box.call("execution.list"))["executions"]
            assert len(listed) == 5
            logs = list(node.node.sandboxes.log_folder(box.id).iterdir())
            assert {path.name.split(".")[0] for path in logs} == {row["id"] for row in listed}

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


def test_output_that_the_host_cannot_store_is_an_error_and_not_a_hole(run, monkeypatch) -> None:
    def full(self, channel, data) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            assert (await box.exec("echo kept"))["stdout"] == "kept\n"
            with monkeypatch.context() as patched:
                patched.setattr(ExecutionLog, "append", full)
                with pytest.raises(NoCapacity) as caught:
                    await asyncio.wait_for(box.exec("echo lost; sleep 31360"), 10)
            assert caught.value.details == {"resource": "disk"}
            async with asyncio.timeout(10):
                while sleepers("31360"):  # killed, but not waited for before the error is told
                    await asyncio.sleep(0.01)
            assert (await box.exec("echo again"))["stdout"] == "again\n"

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
