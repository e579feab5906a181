"""File operations through the node: bytes, errors, limits, and what becomes of half-done ones."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import resource
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Box, bench

from bellglass import errors
from bellglass.node.files import info, lists
from bellglass.node.operations import files


async def write(box: Box, path: str, data: bytes, **more) -> dict:
    stream = await box.bench.link.open("file.write", box.ref | {"path": path} | more)
    async with stream:
        await stream.send(data)
        await stream.end()
        return (await stream.head())["result"]


async def box_with_workdir(node) -> Box:
    box = await node.create()
    Path(box.workdir).mkdir()
    return box


def test_write_read_and_describe(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            body = os.urandom(3_000_000)
            written = await write(box, "deep/er/data.bin", body, parents=True, mode_bits=0o640)
            assert written["created"] is True and written["bytes"] == len(body)
            info = written["info"]
            assert info["sha256"] == hashlib.sha256(body).hexdigest()
            assert (info["path"], info["name"]) == (f"{box.workdir}/deep/er/data.bin", "data.bin")
            assert (info["type"], info["size"], info["mode"]) == ("file", len(body), "0640")
            assert await box.body("file.read", path="deep/er/data.bin") == body
            assert await box.body("file.read", path="deep/er/data.bin", offset=10, length=5) == body[10:15]
            assert await box.body("file.read", path="deep/er/data.bin", offset=len(body) + 5) == b""
            again = await write(box, "deep/er/data.bin", b"short", parents=True)
            assert again["created"] is False and again["info"]["mode"] == "0640"
            assert await box.body("file.read", path="deep/er/data.bin") == b"short", "no stale tail"
            assert (await write(box, "empty", b""))["info"]["size"] == 0
            assert await box.body("file.read", path="empty") == b""
            patched = await write(box, "deep/er/data.bin", b"XY", in_place=True, offset=1)
            assert patched["info"]["size"] == 5 and await box.body("file.read", path="deep/er/data.bin") == b"sXYrt"
            await write(box, "deep/er/data.bin", b"Z", in_place=True, truncate=True)
            assert await box.body("file.read", path="deep/er/data.bin") == b"Z"

    run(scenario())


def test_what_was_written_is_seen_by_the_next_command(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            for number in range(100):
                await write(box, "f", str(number).encode())
                assert (await box.exec("cat f"))["stdout"] == str(number)

    run(scenario())


def test_errors_are_typed(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            work = Path(box.workdir)
            os.mkfifo(work / "fifo")
            (work / "loop").symlink_to("loop")
            (work / "folder" / "inner").mkdir(parents=True)
            await write(box, "there", b"x")
            cases = [
                ("file.read", {"path": "nope"}, errors.FileMissing),
                ("file.read", {"path": "folder"}, errors.FileTypeMismatch),
                ("file.read", {"path": "fifo"}, errors.FileTypeMismatch),
                ("file.read", {"path": "/dev/zero"}, errors.FileTypeMismatch),
                ("file.read", {"path": "loop"}, errors.InvalidRequest),
                ("file.read", {"path": "x" * 300}, errors.InvalidRequest),
                ("file.read", {"path": ""}, errors.InvalidRequest),
                ("file.read", {"path": "a\0b"}, errors.InvalidRequest),
                ("file.read", {"path": "there", "user": "nobodyhere"}, errors.InvalidRequest),
                ("file.stat", {"path": "there/below"}, errors.FileTypeMismatch),
                ("file.list", {"path": "there"}, errors.FileTypeMismatch),
                ("file.mkdir", {"path": "there"}, errors.FileExists),
                ("file.mkdir", {"path": "folder", "exist_ok": False}, errors.FileExists),
                ("file.mkdir", {"path": "no/parents"}, errors.FileMissing),
                ("file.remove", {"path": "folder"}, errors.FileExists),
                ("file.remove", {"path": "nope"}, errors.FileMissing),
                ("file.move", {"source": "there", "destination": "folder"}, errors.FileExists),
                ("file.archive_read", {"path": "nope"}, errors.FileMissing),
            ]
            for op, params, kind in cases:
                with pytest.raises(kind) as caught:
                    await box.call(op, **params)
                assert type(caught.value) is kind, (op, params, caught.value)
                assert caught.value.message
            for more, kind in (
                ({"path": "there", "exclusive": True}, errors.FileExists),
                ({"path": "folder"}, errors.FileTypeMismatch),
                ({"path": "fifo"}, errors.FileTypeMismatch),
                ({"path": "fifo", "in_place": True}, errors.FileTypeMismatch),
                ({"path": "/dev/full", "in_place": True}, errors.FileTypeMismatch),
                ({"path": "no/parent"}, errors.FileMissing),
                ({"path": "new", "max_bytes": 3}, errors.TooLarge),
                ({"path": "new", "expected_bytes": 99}, errors.InvalidRequest),
            ):
                with pytest.raises(kind) as caught:
                    await write(box, data=b"0123456789", **more)
                assert type(caught.value) is kind, (more, caught.value)
            assert sorted(path.name for path in work.iterdir()) == ["fifo", "folder", "loop", "there"], (
                "nothing half-made"
            )

    run(scenario())


def test_what_lists_hold_is_bounded_by_list_and_by_sandbox(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are as long as a sandbox likes."""

    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            for number in range(40):
                await write(box, f"f/{number}{'x' * 200}", b"", parents=True)
            live = node.node.sandboxes.live(box.ref["sandbox_id"], box.ref["generation"])
            whole = await box.call("file.list", path="f")
            assert len(whole["entries"]) == 40 and whole["truncated"] is False and live.listed_bytes == 0
            monkeypatch.setattr(lists, "MAX_LIST_BYTES", 4000)
            cut = await box.call("file.list", path="f")
            assert len(cut["entries"]) < 20 and cut["truncated"] is True and live.listed_bytes == 0
            monkeypatch.undo()
            monkeypatch.setattr(lists, "MAX_HELD_BYTES", 4000)
            with pytest.raises(errors.LimitExceeded):
                await box.call("file.list", path="f")
            assert live.listed_bytes == 0
            monkeypatch.undo()
            assert len((await box.call("file.list", path="f"))["entries"]) == 40

    run(scenario())


def test_list_stat_move_remove(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            await write(box, "a/one", b"1", parents=True)
            await write(box, "a/b/two", b"22", parents=True)
            (Path(box.workdir) / "a" / "link").symlink_to("one")
            (Path(box.workdir) / "a" / os.fsdecode(b"bad\xff")).write_bytes(b"")
            listed = await box.call("file.list", path="a")
            assert {e["name"]: e["type"] for e in listed["entries"]} == {
                "one": "file", "b": "dir", "link": "symlink", "bad\ufffd": "file",
            }  # fmt: skip
            deep = await box.call("file.list", path="a", recursive=True)
            assert f"{box.workdir}/a/b/two" in {entry["path"] for entry in deep["entries"]}
            cut = await box.call("file.list", path="a", recursive=True, limit=2)
            assert len(cut["entries"]) == 2 and cut["truncated"] is True
            assert (await box.call("file.stat", path="a/link"))["info"]["type"] == "file"
            link = (await box.call("file.stat", path="a/link", follow=False))["info"]
            assert (link["type"], link["target"]) == ("symlink", "one")
            await box.call("file.move", source="a/one", destination="a/moved")
            with pytest.raises(errors.FileExists):
                await box.call("file.move", source="a/moved", destination="a/b/two")
            await box.call("file.move", source="a/moved", destination="a/b/two", overwrite=True)
            assert await box.body("file.read", path="a/b/two") == b"1"
            await box.call("file.remove", path="a", recursive=True)
            await box.call("file.remove", path="a", missing_ok=True)
            assert (await box.call("file.list", path="."))["entries"] == []

    run(scenario())


def test_a_list_longer_than_a_frame(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            for number in range(3000):
                (Path(box.workdir) / f"file-{number:05d}").touch()
            raw = await box.body("file.list", path=".", limit=10_000)
            assert len(json.loads(raw)["entries"]) == 3000

    run(scenario())


def test_lists_of_a_sandbox_leave_turns_to_others(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of thousands kept the loop for as long as its records take, and so did each of many lists at once."""
    done = {"read": 0, "rendered": 0}

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            done[name] += 1
            return work(*given, **more)

        return call

    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            for number in range(2000):
                (Path(box.workdir) / f"{number:04d}").touch()
            monkeypatch.setattr(lists, "decode_stat", counted("read", lists.decode_stat))
            monkeypatch.setattr(info, "render", counted("rendered", info.render))
            at_once = asyncio.gather(*(box.body("file.list", path=".", limit=2000) for _ in range(4)))
            most = dict.fromkeys(done, 0)
            while not at_once.done():
                before = dict(done)
                await asyncio.sleep(0)
                most = {name: max(most[name], done[name] - before[name]) for name in done}
            assert {len(json.loads(raw)["entries"]) for raw in await at_once} == {2000}
            assert done == {"read": 8000, "rendered": 8000}
            assert most["read"] <= lists.TURN_BYTES // 30 and most["rendered"] <= files.RENDERED_AT_ONCE, most

    run(scenario())


def test_archives_go_both_ways(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for name, body in (("x/one.txt", b"1" * 10), ("x/y/two.bin", os.urandom(2_000_000))):
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(body), 0o755
                    archive.addfile(member, io.BytesIO(body))
            stream = await node.link.open("file.archive_write", box.ref | {"path": "unpacked", "parents": True})
            await stream.send(packed.getvalue())
            await stream.end()
            result = (await stream.head())["result"]
            assert result["entries"] >= 2 and result["bytes"] == 2_000_010
            assert (Path(box.workdir) / "unpacked/x/one.txt").read_bytes() == b"1" * 10
            with tarfile.open(fileobj=io.BytesIO(await box.body("file.archive_read", path="unpacked"))) as back:
                assert "x/y/two.bin" in {name.removeprefix("./") for name in back.getnames()}
            with pytest.raises(errors.TooLarge):
                await box.body("file.archive_read", path="unpacked", max_bytes=1000)
            evil = io.BytesIO()
            with tarfile.open(fileobj=evil, mode="w") as archive:
                member = tarfile.TarInfo("../../escaped")
                member.size = 1
                archive.addfile(member, io.BytesIO(b"x"))
            for body in (evil.getvalue(), b"no archive at all" * 100):
                stream = await node.link.open("file.archive_write", box.ref | {"path": "evil", "parents": True})
                await stream.send(body)
                await stream.end()
                with pytest.raises(errors.ArchiveRefused):
                    await stream.head()
            assert not (Path(box.workdir) / "evil").exists()

    run(scenario())


def test_half_an_upload_leaves_nothing(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            await write(box, "kept", b"old")
            stream = await node.link.open("file.write", box.ref | {"path": "kept"})
            await stream.send(b"x" * 500_000)
            await asyncio.sleep(0.1)
            assert len(list(Path(box.workdir).iterdir())) == 2, "the temporary file is there"
            await stream.reset()
            async with asyncio.timeout(5):
                while len(list(Path(box.workdir).iterdir())) > 1:
                    await asyncio.sleep(0.02)
            assert await box.body("file.read", path="kept") == b"old"
            live = node.node.sandboxes.live(box.id, 1)
            assert live.operations == 0

    run(scenario())


def test_an_operation_does_not_survive_its_link(run) -> None:
    async def scenario() -> None:
        async with bench(faults={"drop_link_after_bytes": 300_000}) as node:
            box = await box_with_workdir(node)
            (Path(box.workdir) / "big").write_bytes(b"x" * 2_000_000)
            with pytest.raises(errors.AgentLost):
                await box.body("file.read", path="big")
            (Path(box.workdir) / "small").write_bytes(b"x" * 1000)
            assert len(await box.body("file.read", path="small")) == 1000

    run(scenario())


def test_no_progress_is_a_typed_error(run, monkeypatch) -> None:
    from bellglass.node.files import stream as stream_module

    monkeypatch.setattr(stream_module, "PROGRESS_S", 0.3)
    monkeypatch.setattr(stream_module, "RESULT_S", 0.3)

    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            await write(box, "f", b"x")
            pid = node.node.sandboxes.live(box.id, 1).handle.pid
            os.kill(pid, 19)
            try:
                with pytest.raises(errors.AgentLost, match="no progress"):
                    await box.call("file.stat", path="f")
            finally:
                os.kill(pid, 18)
            assert (await box.call("file.stat", path="f"))["info"]["size"] == 1

    run(scenario())


def test_a_slow_reader_holds_the_sender_back(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            with (Path(box.workdir) / "huge").open("wb") as file:
                file.truncate(400 * 2**20)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            stream = await node.link.open("file.read", box.ref | {"path": "huge"}, body=False)
            await stream.head()
            await asyncio.sleep(0.5)
            count = 0
            async for chunk in stream:
                count += len(chunk)
            assert count == 400 * 2**20
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 32 * 1024, f"{grown} KiB"

    run(scenario())


def test_proc_files_are_read_to_their_end(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await node.create()
            assert b"MemTotal" in await box.body("file.read", path="/proc/meminfo")

    run(scenario())


def test_modes_and_folders_are_left_alone(run) -> None:
    async def scenario() -> None:
        async with bench() as node:
            box = await box_with_workdir(node)
            folder = Path(box.workdir) / "sticky"
            folder.mkdir()
            folder.chmod(0o1777)
            await box.call("file.mkdir", path="sticky/a", parents=True)
            await box.call("file.mkdir", path="sticky", parents=True)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
            assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o755

    run(scenario())
