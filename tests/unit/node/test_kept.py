"""Disks of sandboxes that were lost with their host: read by the files operations, counted, dropped on delete."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from harness import DIGEST, bench
from node_looks import until
from pool_calls import apply, members, pool, ready

from bellglass import errors
from bellglass.node import kept, recovery
from bellglass.node.drivers.fake_groups import alive


async def lost(node, **more):
    """A sandbox whose machine was gone when the node came back."""
    box = await node.create(**more)
    node.driver.faults["recover"] = "gone"
    await node.restart()
    node.driver.faults.pop("recover")
    await node.node.sandboxes.wait_reclaimed()
    return box


async def write(node, box, path: Path, data: bytes) -> None:
    async with await node.link.open("file.write", box.ref | {"path": str(path)}, body=True) as stream:
        await stream.send(data)
        await stream.end()
        await stream.head()


def machines(node) -> int:
    return sum(alive(handle.pid, handle._start_ticks) for handle in node.driver.handles)


def test_files_of_a_lost_sandbox_are_read_and_nothing_else(run, monkeypatch) -> None:
    monkeypatch.setattr(kept, "READING_S", 0.3)

    async def scenario() -> None:
        async with bench() as node:
            node.root.joinpath("work").mkdir()
            box = await lost(node)
            (node.root / "work" / "a.txt").write_bytes(b"kept")
            row = node.node.sandboxes.row(box.id, 1)
            assert (row.state, row.reason, row.reclaimed, row.disk_kept) == ("ended", "node_lost", True, True)
            await until(lambda: machines(node) == 0)
            assert await box.body("file.read", path="a.txt") == b"kept"
            assert machines(node) == 1
            stat, listed, tar = await asyncio.gather(
                box.call("file.stat", path="a.txt"),
                box.call("file.list", path="."),
                box.body("file.archive_read", path="."),
            )
            assert stat["info"]["size"] == 4 and [entry["name"] for entry in listed["entries"]] == ["a.txt"]
            assert b"a.txt" in tar
            assert machines(node) == 1, "one machine for all readers"
            for op, more in (
                ("file.mkdir", {"path": "b"}), ("file.move", {"source": "a.txt", "destination": "b"}),
                ("file.remove", {"path": "a.txt"}),
                ("execution.create", {"execution_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "spec": box.spec("true")}),
                ("sandbox.update", {"lifetime_s": 60.0}),
            ):  # fmt: skip
                with pytest.raises(errors.SandboxGone):
                    await box.call(op, **more)
            with pytest.raises(errors.SandboxGone):
                await write(node, box, node.root / "work" / "new", b"x")
            assert sorted(path.name for path in (node.root / "work").iterdir()) == ["a.txt"]
            await until(lambda: machines(node) == 0)
            assert await box.body("file.read", path="a.txt") == b"kept", "and again"
            with pytest.raises(errors.NotFound):
                await node.link.call("file.stat", {"sandbox_id": box.id, "generation": 2, "path": "a.txt"})

    run(scenario())


def test_other_ends_leave_no_disk(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create(lifetime_s=0.3)
            await until(lambda: node.node.sandboxes.row(box.id, 1).reclaimed)
            assert not node.node.sandboxes.row(box.id, 1).disk_kept
            with pytest.raises(errors.SandboxGone, match="lifetime"):
                await box.call("file.stat", path="/")
            node.driver.faults["disk"] = "gone"
            without = await lost(node)
            row = node.node.sandboxes.row(without.id, 1)
            assert row.reclaimed and not row.disk_kept, "there was none"
            with pytest.raises(errors.SandboxGone, match="node_lost"):
                await without.call("file.stat", path="/")

    run(scenario())


def test_a_kept_disk_is_counted_until_it_is_deleted(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await lost(node, disk_bytes=2**30, memory_bytes=2**28)
            for _ in range(2):
                committed = {k: v["committed"] for k, v in node.node.sandboxes.admission.report()["resources"].items()}
                assert committed == {"cpu": 0, "memory": 0, "disk": 2**30, "pids": 0}
                await node.restart()
            await box.call("file.stat", path="/")
            (item,) = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert (item["state"], item["disk_kept"]) == ("ended", True)
            ended = [await node.delete(box) for _ in range(2)]
            assert ended[0]["ended_at"] == ended[1]["ended_at"] == item["ended_at"]
            assert node.node.sandboxes.admission.report()["resources"]["disk"]["committed"] == 0
            await until(lambda: machines(node) == 0)  # its reader went with it
            (item,) = (await node.link.call("sandbox.list", {}))["sandboxes"]
            assert (item["disk_kept"], item["termination_reason"]) == (False, "user")
            with pytest.raises(errors.SandboxGone):
                await box.call("file.stat", path="/")
            await node.restart()
            assert node.node.sandboxes.admission.report()["resources"]["disk"]["committed"] == 0

    run(scenario())


def test_a_delete_before_the_disk_is_kept_takes_it_along(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            gate, calls = asyncio.Event(), []
            keep = node.driver.keep_disk

            async def slow(sandbox_id: str) -> bool:
                calls.append(sandbox_id)
                await gate.wait()
                return await keep(sandbox_id)

            node.driver.keep_disk = slow  # type: ignore[method-assign]
            node.driver.faults["recover"] = "gone"
            await node.restart()
            await until(lambda: bool(calls))
            deleting = asyncio.create_task(node.delete(box))
            await asyncio.sleep(0.05)
            gate.set()
            await deleting
            await node.node.sandboxes.wait_reclaimed()
            row = node.node.sandboxes.row(box.id, 1)
            assert (row.disk_kept, row.reason, row.reclaimed) == (False, "user", True)
            assert node.node.sandboxes.admission.report()["sandboxes"] == 0

    run(scenario())


def test_it_goes_when_its_retention_ends(run) -> None:
    async def scenario() -> None:
        async with bench(**{"server.retention": 1.0}) as node:
            box = await lost(node)
            assert node.node.sandboxes.row(box.id, 1).disk_kept
            await node.node.sandboxes.forget_old()
            assert node.node.sandboxes.row(box.id, 1).disk_kept, "not yet"
            await asyncio.sleep(1.1)
            await node.node.sandboxes.forget_old()
            assert node.node.sandboxes.rows() == [] and await node.node.journal.sandboxes() == []
            assert node.node.sandboxes.admission.report()["sandboxes"] == 0

    run(scenario())


def committed(node) -> dict:
    return {name: found["committed"] for name, found in node.node.sandboxes.admission.report()["resources"].items()}


def test_a_reader_is_counted_while_it_is_up(run, monkeypatch) -> None:
    monkeypatch.setattr(kept, "READING_S", 0.3)
    monkeypatch.setattr("bellglass.node.creating.HELLO_DEADLINE_S", 0.3)

    async def scenario() -> None:
        async with bench() as node:
            box = await lost(node, disk_bytes=2**30)
            alone = {"cpu": 0, "memory": 0, "disk": 2**30, "pids": 0}
            assert committed(node) == alone
            await box.call("file.stat", path="/")
            assert committed(node) == {"cpu": 1.0, "memory": kept.MEMORY_BYTES, "disk": 2**30, "pids": kept.PIDS}
            await until(lambda: committed(node) == alone)
            node.driver.faults["connect"] = "hang"
            with pytest.raises(errors.SandboxFailed):
                await box.call("file.stat", path="/")
            assert committed(node) == alone, "one that did not start"
            node.driver.faults.clear()
            await box.call("file.stat", path="/")
            await node.delete(box)
            assert committed(node) == {"cpu": 0, "memory": 0, "disk": 0, "pids": 0}

    run(scenario())


ONE_MORE_FITS = {"node.cpu_reserve": 0.0, "node.memory_reserve": 1, "node.pids_reserve": 1} | {
    f"node.{name}_overcommit": 1.0 for name in ("cpu", "memory", "pids")
}


def set_host(node, monkeypatch) -> None:
    """Room for a reader and little else."""
    monkeypatch.setattr("bellglass.node.admission._pid_max", lambda: kept.PIDS + 8 + 1)
    node.node.sandboxes.admission.memory_total_bytes = kept.MEMORY_BYTES + 2**20 + 1
    node.node.sandboxes.admission._host_cpus = [0]


@pytest.mark.parametrize(
    ("resource", "more"), [("cpu", {"cpus": 0.1}), ("memory", {"memory_bytes": 2 * 2**20}), ("pids", {"pids": 9})]
)
def test_a_reader_that_does_not_fit_is_refused(run, monkeypatch, resource, more) -> None:
    small = {"cpus": 0.0001, "memory_bytes": 2**19, "pids": 4}
    monkeypatch.setattr(kept, "CPUS", 0.95)

    async def scenario() -> None:
        async with bench(**ONE_MORE_FITS) as node:
            box, second = await lost(node), await lost(node)
            set_host(node, monkeypatch)
            fits = await node.create(**small)
            await box.call("file.stat", path="/")
            await node.delete(box)  # with its reader
            await node.create(**(small | more))
            with pytest.raises(errors.NoCapacity, match="small machine") as caught:
                await second.call("file.stat", path="/")
            assert caught.value.details["resource"] == resource
            await node.delete_all()
            await second.call("file.stat", path="/")
            assert fits.id not in {row.id for row in node.node.sandboxes.rows() if row.state == "running"}

    run(scenario())


def test_a_pools_members_give_way_to_a_reader(run, monkeypatch) -> None:
    async def scenario() -> None:
        async with bench(**ONE_MORE_FITS) as node:
            box = await lost(node)
            set_host(node, monkeypatch)
            await apply(node, pool(1, cpus=0.5, memory_bytes=2**26, pids=8))
            await ready(node, 1)
            await box.call("file.stat", path="/")
            assert members(node) == {}
            await apply(node)

    run(scenario())


def test_readers_are_bounded_and_a_broken_start_is_typed(run, monkeypatch) -> None:
    monkeypatch.setattr(kept, "READERS", 1)
    monkeypatch.setattr("bellglass.node.creating.HELLO_DEADLINE_S", 0.3)

    async def scenario() -> None:
        async with bench() as node:
            first, second = await node.create(), await node.create()
            node.driver.faults["recover"] = "gone"
            await node.restart()
            node.driver.faults.clear()
            await node.node.sandboxes.wait_reclaimed()
            node.driver.faults["connect"] = "hang"
            with pytest.raises(errors.SandboxFailed):
                await first.call("file.stat", path="/")
            node.driver.faults.clear()
            await first.call("file.stat", path="/")
            with pytest.raises(errors.LimitExceeded):
                await second.call("file.stat", path="/")
            await node.delete(first)
            await second.call("file.stat", path="/")
            (node.root / "templates" / f"base-{DIGEST[:16]}" / "template.json").rename(node.root / "template.json")
            await node.restart()
            with pytest.raises(errors.NotFound, match="base"):
                await second.call("file.stat", path="/")

    run(scenario())


def test_output_and_record_of_what_ran_when_the_host_went_down(run, tmp_path) -> None:
    async def scenario() -> None:
        (tmp_path / "boot_id").write_text("one\n")
        async with bench(boot_id_file=tmp_path / "boot_id") as node:
            box = await node.create()
            done = (await box.exec("echo done; exit 3"))["execution"]
            running = await box.start("echo out; echo err >&2; sleep 31108")
            async with asyncio.timeout(10):
                while (await box.call("execution.get", execution_id=running["id"]))["output_bytes"] < 8:
                    await asyncio.sleep(0.01)
            (tmp_path / "boot_id").write_text("two\n")
            await node.restart()
            await node.node.sandboxes.wait_reclaimed()
            row = node.node.sandboxes.row(box.id, 1)
            assert (row.reason, row.message) == ("node_lost", "the host was restarted")
            assert (await box.call("execution.get", execution_id=done["id"]))["exit_code"] == 3
            record = await box.call("execution.get", execution_id=running["id"])
            assert (record["state"], record["exit_code"], record["output_bytes"]) == ("lost", None, 8)
            raw = json.loads(await box.body("execution.output", execution_id=running["id"], accept="json"))
            assert (raw["stdout"], raw["stderr"]) == ("out\n", "err\n")

    run(scenario())


def test_a_node_that_dies_while_it_recovers_knows_of_the_restart_again(run, monkeypatch, tmp_path) -> None:
    async def scenario() -> None:
        (tmp_path / "boot_id").write_text("one\n")
        async with bench(boot_id_file=tmp_path / "boot_id") as node:
            (tmp_path / "boot_id").write_text("two\n")
            await node.stop()
            with monkeypatch.context() as patched:
                patched.setattr(recovery, "_remove_strays", None)  # dies there
                with pytest.raises(TypeError):
                    await node.start()
            assert node.node.journal is not None
            from bellglass.node.journal import Journal

            journal = await Journal.open(node.data.journal_file)
            assert await journal.meta("boot_id") == "one"
            journal.close()
            await node.start()
            assert await node.node.journal.meta("boot_id") == "two"

    run(scenario())
