"""The node's side of terminals: what it asks an agent for, an agent that has none, sizes over links and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from harness import bench
from puppet import PuppetHost, read_frames, spec

from bellglass.ballast import disk_full
from bellglass.errors import Conflict, InvalidRequest, NotSupported
from bellglass.wire import guest, tlv
from bellglass.wire.frames import encode
from bellglass.wire.guest import GuestType


def hello(features: int) -> bytes:
    fields = tlv.put(1, 1) + tlv.put(2, features) + tlv.put(3, b"b" * 16) + tlv.put(4, 1)
    return encode(GuestType.HELLO, 0, fields + tlv.put(5, "0.1.0") + tlv.put(6, "x86_64"))


def test_an_agent_of_an_earlier_release_is_asked_for_none(run, tmp_path: Path) -> None:
    async def scenario(features: int, folder: Path) -> None:
        async with PuppetHost(folder) as host:
            agent = await host.agent(hello=hello(features))
            await host.session.wait_link(asyncio.get_running_loop().time() + 5)
            made, _ = host.executions.create(
                spec(f"01ARZ3NDEKTSV4RRFFQ69G{features:04d}", terminal=(80, 24), stdin_open=True)
            )
            if not features & guest.FEATURE_TERMINAL:
                with pytest.raises(NotSupported, match="no terminals"):
                    await made.started()
                return
            _, start = await read_frames(agent, 2)
            fields = tlv.parse(start.payload)
            assert (tlv.number(fields, 9), tlv.number(fields, 10)) == (80, 24)
            # A storm: the first goes out at once, of the others only the last.
            for rows in range(1, 200):
                made.terminal.resize(100, rows)
            sizes = [tlv.parse(frame.payload) for frame in await read_frames(agent, 2)]
            assert [(tlv.number(size, 1), tlv.number(size, 2)) for size in sizes] == [(100, 1), (100, 199)]

    for features in (guest.FEATURE_TERMINAL, guest.FEATURE_DIAL):
        (tmp_path / str(features)).mkdir()
        run(scenario(features, tmp_path / str(features)))


def test_a_size_outlives_the_node(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            made = await box.start(SIZES, terminal={"cols": 80, "rows": 24})
            assert made["terminal"] == {"cols": 80, "rows": 24}
            await said(node, box, made["id"], "24 80\r\n")
            await box.call("execution.resize", execution_id=made["id"], cols=132, rows=43)
            await said(node, box, made["id"], "24 80\r\n43 132\r\n")
            await node.restart()
            assert (await box.call("execution.get", execution_id=made["id"]))["terminal"] == {"cols": 132, "rows": 43}
            await box.call("execution.resize", execution_id=made["id"], cols=1, rows=65535)
            await said(node, box, made["id"], "24 80\r\n43 132\r\n65535 1\r\n")
            for wrong in ({"cols": 0, "rows": 1}, {"cols": 65536, "rows": 1}, {"cols": True, "rows": 1}, {"cols": 5}):
                with pytest.raises(InvalidRequest):
                    await box.call("execution.resize", execution_id=made["id"], **wrong)
            with pytest.raises(Conflict, match="no end"):
                await box.call("execution.stdin", execution_id=made["id"], eof=True)
            plain = await box.start("sleep 30")
            with pytest.raises(Conflict, match="no terminal"):
                await box.call("execution.resize", execution_id=plain["id"], cols=1, rows=1)

    run(scenario())


def test_a_size_that_finds_no_room_on_the_disk_is_a_size_nevertheless(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is told with a new link: the sandbox's other executions come behind it."""

    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            made = await box.start(SIZES, terminal={"cols": 80, "rows": 24})
            await said(node, box, made["id"], "24 80\r\n")

            def full(*_: Any) -> None:
                raise disk_full()

            monkeypatch.setattr(node.node.records, "resized", full)
            await box.call("execution.resize", execution_id=made["id"], cols=132, rows=43)
            await said(node, box, made["id"], "24 80\r\n43 132\r\n")
            session = node.node.sandboxes.live(box.id, 1).session
            session._connection.close()
            async with asyncio.timeout(20):
                while session.link_is_up:
                    await asyncio.sleep(0.01)
                await box.call("execution.resize", execution_id=made["id"], cols=50, rows=20)
                assert (await box.exec("echo other"))["stdout"] == "other\n"
            await said(node, box, made["id"], "24 80\r\n43 132\r\n20 50\r\n")
            monkeypatch.undo()
            await box.call("execution.resize", execution_id=made["id"], cols=60, rows=30)
            await said(node, box, made["id"], "24 80\r\n43 132\r\n20 50\r\n30 60\r\n")

    run(scenario())


SIZES = 'while :; do now=$(stty size); [ "$now" = "$old" ] || echo $now; old=$now; sleep 0.05; done'
"""Says each new size once. A trap for WINCH would miss one: bash forgets what comes while the last one is handled."""


async def said(node: Any, box: Any, execution_id: str, wanted: str) -> None:
    heard = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while heard != wanted:
                heard = json.loads(await box.body("execution.output", execution_id=execution_id))["stdout"]
                await asyncio.sleep(0.02)
    assert heard == wanted
