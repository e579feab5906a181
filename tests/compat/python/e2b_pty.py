"""Terminals, of both clients."""

from __future__ import annotations

import asyncio

import pytest
from e2b import AsyncSandbox, CommandExitException, NotFoundException, Sandbox, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize


def test_a_terminal_runs_a_shell(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"MINE": "here"}, cwd="/tmp")
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $MINE $TERM; pwd; tty\nexit 0\n")
    said: list[bytes] = []
    result = terminal.wait(on_pty=said.append)
    text = b"".join(said).decode()
    assert result.exit_code == 0
    for part in ("24 80\r\n", "here xterm-256color\r\n", "/tmp\r\n", "/dev/pts/"):
        assert part in text, text
    with pytest.raises(CommandExitException) as caught:
        failing = sandbox.pty.create(PtySize(24, 80))
        sandbox.pty.send_stdin(failing.pid, b"exit 5\n")
        failing.wait()
    assert caught.value.exit_code == 5


def test_a_terminal_is_resized(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.resize(terminal.pid, PtySize(rows=50, cols=132))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; tput cols\nexit\n")
    said: list[bytes] = []
    terminal.wait(on_pty=said.append)
    assert b"50 132\r\n132\r\n" in b"".join(said)
    with pytest.raises(NotFoundException):
        sandbox.pty.resize(terminal.pid, PtySize(10, 10))


def test_keys_are_signals(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(24, 80))
    sandbox.pty.send_stdin(terminal.pid, b"sh -c 'echo ready; exec sleep 600'\n")
    said = b""
    for _, _, piece in terminal:
        said += piece or b""
        if b"ready\r\n" in said:
            break
    sandbox.pty.send_stdin(terminal.pid, b"\x03")
    sandbox.pty.send_stdin(terminal.pid, b"exit 0\n")
    assert terminal.wait(on_pty=lambda piece: None).exit_code == 0


def test_who_comes_again_goes_on(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(24, 80), envs={"MINE": "kept"})
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    assert again.pid == terminal.pid
    sandbox.pty.send_stdin(terminal.pid, b"echo $MINE\nexit\n")
    said: list[bytes] = []
    assert again.wait(on_pty=said.append).exit_code == 0
    assert b"kept\r\n" in b"".join(said)


def test_a_terminal_is_killed_and_ends_in_time(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(24, 80))
    assert terminal.pid in [process.pid for process in sandbox.commands.list()]
    assert sandbox.pty.kill(terminal.pid) is True
    with pytest.raises(CommandExitException):
        terminal.wait()
    assert sandbox.pty.kill(terminal.pid) is False
    short = sandbox.pty.create(PtySize(24, 80), timeout=1)
    with pytest.raises(TimeoutException):
        short.wait()


async def test_the_asynchronous_client(async_sandbox: AsyncSandbox) -> None:
    said: list[bytes] = []
    heard = asyncio.Event()

    def on_data(piece: bytes) -> None:
        said.append(piece)
        if b"80 24" in b"".join(said).replace(b"\r\n", b" "):
            heard.set()

    terminal = await async_sandbox.pty.create(PtySize(rows=24, cols=80), on_data=on_data)
    await async_sandbox.pty.send_stdin(terminal.pid, b"tput cols; tput lines\n")
    await asyncio.wait_for(heard.wait(), 60)
    await async_sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    await async_sandbox.pty.send_stdin(terminal.pid, b"stty size\nexit\n")
    assert (await terminal.wait()).exit_code == 0
    assert b"30 100\r\n" in b"".join(said)
