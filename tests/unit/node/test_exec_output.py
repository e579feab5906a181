"""Output of executions, byte for byte: formats, floods, readers that are slow, late or gone."""

from __future__ import annotations

import asyncio
import errno
import json

import pytest
from harness import bench, frames

from bellglass import ids
from bellglass.errors import Conflict
from bellglass.node.executions import log
from bellglass.wire.output import OutputType


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


def test_output_that_the_host_cannot_store_is_a_counted_gap_and_the_outcome_stays(run, monkeypatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            kept = await box.exec("echo kept")
            assert (kept["stdout"], kept["execution"]["truncated"]) == ("kept\n", False)
            with monkeypatch.context() as patched:
                patched.setattr(log.os, "writev", full)
                lost = await box.exec("echo lost; exit 3")
            assert (lost["stdout"], lost["execution"]["truncated"], lost["execution"]["exit_code"]) == ("", True, 3)
            assert lost["execution"]["stdout_bytes"] == 5, "told all the same"
            assert (await box.exec("echo again"))["stdout"] == "again\n"

    run(scenario())
