"""Watched folders: the synchronous client asks, the asynchronous one is told."""

from __future__ import annotations

import asyncio

import pytest
from e2b import (
    AsyncSandbox,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
)

CREATE, WRITE, REMOVE = FilesystemEventType.CREATE, FilesystemEventType.WRITE, FilesystemEventType.REMOVE
RENAME, CHMOD = FilesystemEventType.RENAME, FilesystemEventType.CHMOD


def told(handle: object) -> list[tuple[FilesystemEventType, str]]:
    return [(event.type, event.name) for event in handle.get_new_events()]


def test_a_write_is_told_at_once_and_exactly(sandbox: Sandbox, folder: str) -> None:
    handle = sandbox.files.watch_dir(folder)
    assert told(handle) == []
    for round_ in range(10):
        sandbox.files.write(f"{folder}/{round_}", "content")
        assert told(handle) == [(CREATE, str(round_)), (CHMOD, str(round_)), (WRITE, str(round_))]
    sandbox.files.write(f"{folder}/0", "again")
    assert (WRITE, "0") in told(handle)
    sandbox.files.rename(f"{folder}/0", f"{folder}/renamed")
    assert told(handle) == [(RENAME, "0"), (CREATE, "renamed")]
    sandbox.files.remove(f"{folder}/renamed")
    assert told(handle) == [(REMOVE, "renamed")]
    handle.stop()
    with pytest.raises((NotFoundException, SandboxException)):
        handle.get_new_events()


def test_what_lies_deeper(sandbox: Sandbox, folder: str) -> None:
    sandbox.files.make_dir(f"{folder}/there")
    shallow, deep = sandbox.files.watch_dir(folder), sandbox.files.watch_dir(folder, recursive=True)
    sandbox.files.write(f"{folder}/there/file", "x")
    assert told(shallow) == []
    assert told(deep) == [(CREATE, "there/file"), (CHMOD, "there/file"), (WRITE, "there/file")]
    sandbox.commands.run(f"mkdir -p {folder}/new/er && echo x > {folder}/new/er/file")
    seen = told(deep)
    for event in ((CREATE, "new"), (CREATE, "new/er"), (CREATE, "new/er/file"), (WRITE, "new/er/file")):
        assert event in seen
    assert (CREATE, "new") in told(shallow)
    for handle in (shallow, deep):
        handle.stop()


def test_folders_that_can_not_be_watched(sandbox: Sandbox, folder: str) -> None:
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir(f"{folder}/missing")
    sandbox.files.write(f"{folder}/file", "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.watch_dir(f"{folder}/file")


def test_events_with_what_is_there_now(sandbox: Sandbox, folder: str) -> None:
    handle = sandbox.files.watch_dir(folder, include_entry=True)
    sandbox.files.write(f"{folder}/file", "12345")
    sandbox.files.remove(f"{folder}/file")
    sandbox.files.write(f"{folder}/kept", "123")
    entries = {event.name: event.entry for event in handle.get_new_events() if event.type == WRITE}
    assert entries["file"] is None
    assert (entries["kept"].size, entries["kept"].path) == (3, f"{folder}/kept")
    handle.stop()


async def test_the_asynchronous_client_is_told(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.files.make_dir("watched/there")
    seen: list[tuple[FilesystemEventType, str]] = []
    heard, ended = asyncio.Event(), asyncio.Event()

    def on_event(event: object) -> None:
        seen.append((event.type, event.name))
        if seen[-1] == (WRITE, "there/deep/file"):
            heard.set()

    handle = await async_sandbox.files.watch_dir(
        "watched", on_event=on_event, on_exit=lambda _: ended.set(), recursive=True
    )
    await async_sandbox.files.write("watched/there/deep/file", "x")
    await asyncio.wait_for(heard.wait(), 60)
    await handle.stop()
    assert (CREATE, "there/deep") in seen
    with pytest.raises(NotFoundException):
        await async_sandbox.files.watch_dir("missing", on_event=on_event)
    await async_sandbox.files.write("a file", "x")
    with pytest.raises(SandboxException):
        await async_sandbox.files.watch_dir("a file", on_event=on_event)
