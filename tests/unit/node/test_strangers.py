"""Who dials a sandbox's socket without being its agent: turned away, at next to no cost of the node's loop."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bellglass.node.drivers import runc
from bellglass.node.drivers.runc import RuncHandle


def dial(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))
        assert stranger.recv(1) == b"", "it hung up"


def test_a_flood_of_strangers_costs_little_and_keeps_the_agent_out_for_a_moment_only(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as many as a program inside cares to make: one had 17,000 taken a second, 0.4 of a processor."""
    ours = os.getuid()
    monkeypatch.setattr(runc, "first_uid", lambda index: ours if index else ours + 1)
    path = tmp_path / "agent.sock"

    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
            listener.bind(str(path))
            listener.listen(8)
            handle = SimpleNamespace(sandbox_id="sb", _listener=listener, _state=SimpleNamespace(range=0))
            deadline = asyncio.get_running_loop().time() + 30
            taken = asyncio.create_task(RuncHandle.connect(handle, deadline))  # type: ignore[arg-type]
            began = time.monotonic()
            for _ in range(5):
                await asyncio.to_thread(dial, path)
            assert time.monotonic() - began >= 4 * runc._STRANGER_PAUSE_S and not taken.done()
            handle._state.range = 1
            with socket.socket(socket.AF_UNIX) as agent:
                agent.connect(str(path))
                with await taken as link:
                    agent.sendall(b"hello")
                    assert await asyncio.get_running_loop().sock_recv(link, 5) == b"hello"

    run(scenario())
