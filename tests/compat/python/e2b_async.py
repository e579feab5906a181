"""The asynchronous client: the same wire, another way to hold its ends."""

from __future__ import annotations

import asyncio

import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)


async def test_commands(async_sandbox: AsyncSandbox) -> None:
    out: list[str] = []
    result = await async_sandbox.commands.run("echo one; echo two >&2; pwd", on_stdout=out.append)
    assert (result.stdout, result.stderr, result.exit_code) == ("one\n/home/user\n", "two\n", 0)
    assert "".join(out) == result.stdout
    with pytest.raises(CommandExitException) as caught:
        await async_sandbox.commands.run("exit 7")
    assert caught.value.exit_code == 7
    with pytest.raises(TimeoutException):
        await async_sandbox.commands.run("sleep 600", timeout=1)
    with pytest.raises(InvalidArgumentException):
        await async_sandbox.commands.run("true", cwd="/no/such/folder")


async def test_many_at_once(async_sandbox: AsyncSandbox) -> None:
    results = await asyncio.gather(*(async_sandbox.commands.run(f"echo {i}; sleep .1") for i in range(30)))
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(30)]


async def test_input_and_connect(async_sandbox: AsyncSandbox) -> None:
    heard = asyncio.Event()
    handle = await async_sandbox.commands.run("cat", background=True, stdin=True, on_stdout=lambda _: heard.set())
    await async_sandbox.commands.send_stdin(handle.pid, "said\n")
    await asyncio.wait_for(heard.wait(), 60)
    assert handle.stdout == "said\n"
    second = await async_sandbox.commands.connect(handle.pid)
    assert second.pid == handle.pid
    await async_sandbox.commands.send_stdin(handle.pid, "more\n")
    await async_sandbox.commands.close_stdin(handle.pid)
    assert (await second.wait()).stdout == "more\n"
    assert (await handle.wait()).stdout == "said\nmore\n"
    with pytest.raises(NotFoundException):
        await async_sandbox.commands.connect(999_999)


async def test_who_disconnects_leaves_it_running(async_sandbox: AsyncSandbox) -> None:
    handle = await async_sandbox.commands.run("sleep 777", background=True)
    await handle.disconnect()
    assert handle.pid in [process.pid for process in await async_sandbox.commands.list()]
    again = await async_sandbox.commands.connect(handle.pid)
    assert await again.kill() is True
    with pytest.raises(CommandExitException):
        await again.wait()
    assert await async_sandbox.commands.kill(handle.pid) is False


async def test_files(async_sandbox: AsyncSandbox) -> None:
    info = await async_sandbox.files.write("deep/er/file", "content")
    assert info.path == "/home/user/deep/er/file"
    assert await async_sandbox.files.read("deep/er/file") == "content"
    assert bytes(await async_sandbox.files.read("deep/er/file", format="bytes")) == b"content"
    stream = await async_sandbox.files.read("deep/er/file", format="stream")
    assert b"".join([chunk async for chunk in stream]) == b"content"
    names = [f"many/{i}" for i in range(25)]
    written = await async_sandbox.files.write_files([{"path": name, "data": name} for name in names])
    assert [info.path for info in written] == [f"/home/user/{name}" for name in names]
    assert sorted(entry.name for entry in await async_sandbox.files.list("many")) == sorted(map(str, range(25)))
    assert await async_sandbox.files.make_dir("many") is False
    assert (await async_sandbox.files.rename("many/0", "zero")).name == "zero"
    await async_sandbox.files.remove("many")
    assert not await async_sandbox.files.exists("many")
    with pytest.raises(NotFoundException):
        await async_sandbox.files.read("many/1")


async def test_death_looks_like_death() -> None:
    sandbox = await AsyncSandbox.create(timeout=60)
    handle = await sandbox.commands.run("sleep 600", background=True)
    assert await sandbox.is_running()
    assert await sandbox.kill() is True
    with pytest.raises(SandboxException) as caught:
        await handle.wait()
    if type(caught.value).__name__ != "TimeoutException":  # as older clients call it
        assert "killed or reached its end of life" in str(caught.value)
    assert not await sandbox.is_running()
    assert await sandbox.kill() is False
