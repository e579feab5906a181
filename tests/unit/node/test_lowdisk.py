"""When executions are frozen and thawed, and what is refused meanwhile; the disk itself is made up here."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from harness import Bench, bench

from bellglass import errors
from bellglass.ballast import Ballast
from bellglass.node import lowdisk
from bellglass.node.lowdisk import LEAST_PAUSE_S, MOST_PAUSE_S, RATE_BYTES_S, LowDisk

MIB = 2**20
MARK = 64 * MIB


class Disk:
    """Free bytes on order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1000 * MIB
        self.unwritten = 0
        monkeypatch.setattr(lowdisk, "free_bytes", lambda folder: self.free)
        monkeypatch.setattr(lowdisk, "_host_unwritten", lambda: self.unwritten)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class Sandbox:
    """As much of a sandbox as the watch of the disk needs."""

    sandbox_id = "sbmade"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.unwritten = 0
        self.going_on = ["stuck"]

    def freeze(self, why: str) -> None:
        self.said.append("freeze")

    def thaw(self, why: str) -> None:
        self.said.append("thaw")

    def not_frozen(self) -> list[str]:
        return self.going_on

    def kill_group(self, execution_id: str) -> None:
        self.said.append(f"kill {execution_id}")

    def unwritten_bytes(self) -> int:
        return self.unwritten


async def watch(tmp_path: Path, sandbox: Sandbox, told: list[bool], *, is_low: bool = False) -> LowDisk:
    return LowDisk(
        tmp_path, MARK, Ballast(tmp_path / "ballast", MIB), lambda: [sandbox], lambda low, free: told.append(low),
        is_low=is_low,
    )  # fmt: skip


def test_it_freezes_below_the_mark_and_thaws_above_more(run, tmp_path: Path, disk: Disk) -> None:
    async def scenario() -> None:
        sandbox, told = Sandbox(), []
        made = await watch(tmp_path, sandbox, told)
        made._look(first=True)
        assert sandbox.said == ["thaw"] and not made.is_low, "whatever an earlier node left"
        made.check()
        for free, is_low in ((MARK, False), (MARK - 1, True), (MARK * 5 // 4 - 1, True), (MARK * 5 // 4, False)):
            disk.free = free
            made._look()
            assert made.is_low is is_low, free
        await asyncio.sleep(0)
        assert told == [True, False]
        assert sandbox.said == ["thaw", "freeze", "freeze", "thaw"], "again at each look: something may have started"
        made._look()
        assert sandbox.said[-1] == "thaw" and len(sandbox.said) == 4, "but not where there is room"

    run(scenario())


def test_one_that_could_not_be_thawed_is_thawed_later(run, tmp_path: Path, disk: Disk, monkeypatch) -> None:
    async def scenario() -> None:
        sandbox, other = Sandbox(), Sandbox()
        made = await watch(tmp_path, sandbox, [])
        made._sandboxes = lambda: [sandbox, other]
        disk.free = MARK - 1
        made._look()
        disk.free = 2 * MARK

        def no_descriptor(why: str) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(sandbox, "thaw", no_descriptor)
            made._look()
        assert (sandbox.said, other.said) == (["freeze"], ["freeze", "thaw"])
        made._look()
        assert sandbox.said == ["freeze", "thaw"] and other.said[1:] == ["thaw", "thaw"]
        made._look()
        assert len(sandbox.said) == 2 and len(other.said) == 3, "and then no more"

    run(scenario())


def test_what_guests_have_written_counts_before_it_is_on_the_disk(run, tmp_path: Path, disk: Disk) -> None:
    async def scenario() -> None:
        sandbox = Sandbox()
        made = await watch(tmp_path, sandbox, [])
        disk.unwritten = 950 * MIB
        made._look()
        assert not made.is_low, "it is somebody else's: no sandbox has written it"
        sandbox.unwritten = 950 * MIB
        made._look()
        assert made.is_low
        with pytest.raises(errors.NoCapacity) as caught:
            made.check()
        assert caught.value.details == {"resource": "disk", "free": 50 * MIB, "needed": MARK * 5 // 4}

    run(scenario())


def test_only_what_goes_on_writing_is_killed(run, tmp_path: Path, disk: Disk, monkeypatch) -> None:
    async def scenario() -> None:
        sandbox, clock = Sandbox(), [100.0]
        monkeypatch.setattr(lowdisk.time, "monotonic", lambda: clock[0])
        made = await watch(tmp_path, sandbox, [])
        disk.free = MARK // 4
        made._look()
        disk.free -= 1
        made._look()
        assert sandbox.said == ["freeze", "freeze"], "freezing takes its time"
        clock[0] += 2 * lowdisk.KILL_AFTER_S
        made._look()
        assert sandbox.said[2:] == ["freeze"], "nobody writes any more"
        disk.free = MARK // 2
        made._look()
        disk.free -= 1
        made._look()
        assert sandbox.said[4:] == ["freeze", "kill stuck"]
        sandbox.going_on = []
        disk.free -= 1
        made._look()
        assert sandbox.said[6:] == ["freeze"]

    run(scenario())


def test_no_writer_reaches_the_mark_between_two_looks(run, tmp_path: Path, disk: Disk, monkeypatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(lowdisk, "BUSY_PART", 1e9)
        made = await watch(tmp_path, Sandbox(), [])
        for free in (MARK, MARK + MIB, MARK + 100 * MIB, MARK + 2 * RATE_BYTES_S, 2**50):
            disk.free = free
            made._look()
            assert LEAST_PAUSE_S <= made._pause_s <= MOST_PAUSE_S
            most = max((free - MARK) / RATE_BYTES_S, LEAST_PAUSE_S)
            assert made._pause_s <= most
        disk.free = MARK - 1
        made._look()
        assert made._pause_s == LEAST_PAUSE_S, "what has started meanwhile is caught at once"

    run(scenario())


def test_a_look_that_costs_much_is_made_less_often(run, tmp_path: Path, disk: Disk, monkeypatch) -> None:
    async def scenario() -> None:
        made = await watch(tmp_path, Sandbox(), [])
        moments = iter([10.0, 10.5])
        monkeypatch.setattr(lowdisk.time, "monotonic", lambda: next(moments))
        disk.free = MARK
        made._look()
        assert made._pause_s == 0.5 / lowdisk.BUSY_PART

    run(scenario())


def test_the_watch_outlives_a_look_that_fails(run, tmp_path: Path, disk: Disk) -> None:
    async def scenario() -> None:
        sandbox, told = Sandbox(), []
        made = await watch(tmp_path, sandbox, told)
        await made.start()
        try:
            disk.free = None  # type: ignore[assignment]
            async with asyncio.timeout(10):
                while made._pause_s != lowdisk.FROZEN_PAUSE_S:
                    await asyncio.sleep(0.01)
            disk.free = 0
            async with asyncio.timeout(10):
                while not told:
                    await asyncio.sleep(0.01)
        finally:
            await made.close()
        assert told == [True]

    run(scenario())


async def set_free(node: Bench, disk: Disk, free: int) -> None:
    disk.free = free
    async with asyncio.timeout(10):
        while node.node.disk.is_low is not (free < node.settings["node.disk_low_water"]):
            await asyncio.sleep(0.01)


def test_a_node_refuses_what_writes_and_serves_the_rest(run, disk: Disk) -> None:
    async def scenario() -> None:
        async with bench(**{"node.disk_low_water": MARK, "node.disk_reserve": MIB}) as node:
            box = await node.create()
            os.makedirs(box.workdir, exist_ok=True)
            await box.exec("echo here > kept")
            first = await box.start("sleep 30", execution_id="0" * 26)
            write = {"path": f"{box.workdir}/new"}
            calls: dict[str, Any] = {
                "exec": lambda: box.exec("true"),
                "start": lambda: box.start("true"),
                "mkdir": lambda: box.call("file.mkdir", path=f"{box.workdir}/made"),
                "move": lambda: box.call(
                    "file.move", source=f"{box.workdir}/kept", destination=f"{box.workdir}/kept", overwrite=True
                ),
                "create": node.create,
            }
            for call in calls.values():
                await call()
            await set_free(node, disk, MARK - 1)
            for name, call in calls.items():
                with pytest.raises(errors.NoCapacity) as caught:
                    await call()
                assert caught.value.details["resource"] == "disk", name
            with pytest.raises(errors.NoCapacity):
                async with await node.link.open("file.write", box.ref | write, body=True) as stream:
                    await stream.end()
                    await stream.head()
            assert await box.body("file.read", path=f"{box.workdir}/kept") == b"here\n"
            assert (await box.start("sleep 30", execution_id="0" * 26))["id"] == first["id"], "that is no new one"
            await box.call("file.remove", path=f"{box.workdir}/kept")
            info = await node.link.call("node.info", {})
            assert info["disk"]["low"] and info["disk"]["enough_bytes"] == MARK * 5 // 4
            await set_free(node, disk, 1000 * MIB)
            await calls["exec"]()
            await box.call("execution.signal", execution_id="0" * 26, signal="KILL")
            kinds: list[str] = []
            async with asyncio.timeout(20):  # it is told behind the thaw
                while "sandbox.thawed" not in kinds:
                    await asyncio.sleep(0.01)
                    kinds = [event.kind for event in await node.node.journal.events(0) if event.sandbox_id == box.id]
            assert kinds[:3] == ["sandbox.started", "sandbox.frozen", "sandbox.thawed"]

    run(scenario())


def test_an_upload_under_way_is_cut_off(run, disk: Disk) -> None:
    async def scenario() -> None:
        async with bench(**{"node.disk_low_water": MARK, "node.disk_reserve": MIB}) as node:
            box = await node.create()
            os.makedirs(box.workdir, exist_ok=True)
            path = f"{box.workdir}/large"
            async with await node.link.open("file.write", box.ref | {"path": path}, body=True) as stream:
                await stream.send(b"x" * 100_000)
                await set_free(node, disk, MARK - 1)
                with pytest.raises(errors.NoCapacity):
                    while True:
                        await stream.send(b"x" * 100_000)
                        await asyncio.sleep(0.01)
            await set_free(node, disk, 1000 * MIB)
            async with asyncio.timeout(10):
                while os.listdir(box.workdir):
                    await asyncio.sleep(0.01)

    run(scenario())


@pytest.mark.parametrize(
    ("kind", "details", "told"),
    [
        (errors.DiskFull, {"errno": "ENOSPC"}, errors.NoCapacity),
        (errors.InternalError, {"errno": "EIO"}, errors.NoCapacity),
        (errors.InternalError, {"errno": "EBADF"}, errors.InternalError),
    ],
)
def test_an_error_of_the_hosts_disk_is_told_as_that(run, tmp_path, disk: Disk, kind, details, told) -> None:
    async def scenario() -> None:
        made = await watch(tmp_path, Sandbox(), [])
        with pytest.raises(kind):
            async with made.writing():
                raise kind("with room on the host it is what it is", details=details)
        with pytest.raises(told):
            async with made.writing():
                disk.free = 0
                made._look()
                raise kind("the host was full meanwhile", details=details)

    run(scenario())
