"""Keepalives and the heads of answers, and what a record looks like."""

from __future__ import annotations

import json

from harness import bench, frames

from bellglass.model import format_time
from bellglass.node.executions import record
from bellglass.wire.output import OutputType


def test_silence_is_filled_in_every_format(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            _, _, others = await frames(await box.open("sleep 0.7", keepalive_s=0.2))
            assert [event.type for event in others].count(OutputType.KEEPALIVE) >= 2
            raw = await (await box.open("sleep 0.7", accept="ndjson", keepalive_s=0.2)).read_all(10**6)
            assert raw.count(b'{"stream":"keepalive"}\n') >= 2
            raw = await (await box.open("sleep 0.7; echo x", accept="json", keepalive_s=0.2)).read_all(10**6)
            assert raw.startswith(b"  ") and json.loads(raw)["stdout"] == "x\n"
            chatty = await box.open("for i in 1 2 3 4 5; do echo; sleep 0.1; done", keepalive_s=0.2)
            _, _, others = await frames(chatty)
            assert OutputType.KEEPALIVE not in [event.type for event in others], "output is life enough"

    run(scenario())


def test_unfollowed_output_of_a_running_one_ends_without_an_outcome(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            started = await box.start("echo now; sleep 31201")
            out = b""
            while not out:
                params = {"execution_id": started["id"], "accept": "frames", "follow": False}
                stream = await node.link.open("execution.output", box.ref | params, body=False)
                out, _, others = await frames(stream)
            assert out == b"now\n" and [event.type for event in others] == [OutputType.STARTED]

    run(scenario())


def test_times_are_the_models() -> None:
    from datetime import UTC, datetime

    for moment in (0.0, 1764437045.0, 1764437045.123456, 1764437045.9999999):
        assert record.rfc3339(moment) == format_time(datetime.fromtimestamp(moment, UTC))
