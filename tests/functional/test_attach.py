"""Attached to terminals over WebSockets: both directions at once, by several, and over connections that break."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from typing import Any

import pytest

from bellglass.errors import Conflict, InvalidRequest, NotFound, SandboxGone
from bellglass.ids import new_ulid
from tests.functional.terminals import Attached

PLAIN = ["/bin/bash", "--norc", "--noprofile", "-i"]


def shell(box: Any) -> Attached:
    execution = box.start(PLAIN, terminal=(80, 24), env={"PS1": "$ ", "TERM": "dumb"})
    screen = Attached(execution)
    screen.until(b"$ ")
    return screen


def test_typing_sizes_and_the_end(shared_box: Any) -> None:
    screen = shell(shared_box)
    assert b"hi there\r\n" in screen.ask("echo hi th''ere", b"there\r\n")
    screen.attachment.resize(132, 43)
    assert b"43 132" in screen.ask("stty size", b"132\r\n")
    screen.type("exit 9\n")
    screen.rest()
    assert screen.attachment.ended.exit_code == 9
    with pytest.raises(Conflict):
        screen.execution.resize(1, 1)
    again = screen.execution.attach()
    everything = b"".join(again)
    assert b"hi there\r\n" in everything and again.ended.exit_code == 9, "what ended can be looked at"
    with pytest.raises(Conflict, match="no terminal"):
        shared_box.start(["true"]).attach()
    with pytest.raises(NotFound):
        shared_box.execution(new_ulid()).attach()


def test_several_at_once(shared_box: Any) -> None:
    """All see the same; each may type; who leaves disturbs nobody."""
    first = shell(shared_box)
    first.ask("echo early''bird", b"earlybird\r\n")
    second, late = Attached(first.execution), Attached(first.execution, live=True)
    second.until(b"earlybird\r\n")
    late.type("echo fr''om-late\n")
    for screen in (first, second, late):
        screen.until(b"from-late\r\n")
    assert b"earlybird" not in late.all
    late.leave()
    second.type("echo al''so\n")
    for screen in (first, second):
        screen.until(b"also\r\n")
    first.type("exit\n")
    first.rest(), second.rest()
    assert first.all == second.all


def test_a_break_loses_and_doubles_nothing(shared_box: Any) -> None:
    """The client's connections are cut again and again while bytes go both ways: exact in both directions."""
    program = (
        "import sys, tty, hashlib, threading\n"
        "tty.setraw(0)\n"
        "out = sys.stdout.buffer\n"
        "out.write(b'ready\\n'); out.flush()\n"
        "def flood():\n"
        "    for n in range(400000): out.write(b'%07d\\n' % n)\n"
        "    out.flush()\n"
        "t = threading.Thread(target=flood); t.start()\n"
        "digest, left = hashlib.sha256(), 1500000\n"
        "while left:\n"
        "    data = sys.stdin.buffer.raw.read(min(left, 4096)); digest.update(data); left -= len(data)\n"
        "t.join(); out.write(digest.hexdigest().encode() + b'END'); out.flush()\n"
    )
    execution = shared_box.start(["python3", "-c", program], terminal=(80, 24))
    screen = Attached(execution, cut_every=150_000)
    screen.until(b"ready\n")  # until then some of the bytes would be keys that are signals
    data = os.urandom(1_500_000)
    writer = threading.Thread(target=lambda: screen.attachment.write(data), daemon=True)
    writer.start()
    seen = screen.rest(120)
    writer.join(60)
    assert screen.attachment.ended is not None and screen.attachment.skipped_bytes == 0
    assert screen.attachment.reconnects >= 5
    wanted = (
        b"ready\n"
        + b"".join(b"%07d\n" % n for n in range(400_000))
        + hashlib.sha256(data).hexdigest().encode()
        + b"END"
    )
    assert len(seen) == len(wanted)
    assert seen == wanted


def test_a_reader_that_takes_nothing_stops_the_program(shared_box: Any) -> None:
    """Until it leaves: then the program goes on into the log's ring."""
    execution = shared_box.start("head -c 30000000 /dev/zero; sleep 60", terminal=(80, 24))
    attachment = execution.attach()
    assert attachment.read()
    last, deadline = -1, time.monotonic() + 30
    while (now := execution.status().output_bytes) != last:  # it has come to a stand
        assert time.monotonic() < deadline
        last = now
        time.sleep(0.3)
    assert now < 29_000_000
    attachment.close()
    while execution.status().output_bytes < 30_000_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    execution.kill()
    execution.wait()


def test_a_deleted_sandbox(new_box: Any) -> None:
    box = new_box()
    screen = shell(box)
    box.delete()
    screen.rest()
    assert isinstance(screen.failure, SandboxGone) and screen.failure.details["reason"] == "user", screen.failure


def test_what_is_refused(shared_box: Any, stack: Any) -> None:
    """Before the handshake by status, in the one shape; after it by a message and a code."""
    from bellglass.sdk._sync.websocket import WebSocket

    execution = shared_box.start(["sleep", "60"], terminal=(80, 24))
    path = f"/v1/sandboxes/{shared_box.id}/executions/{execution.id}/attach"
    transport = shared_box._transport
    for query in ("offset=-1", "offset=x", "live=maybe", "client=", "client=a%20b", f"client={'x' * 65}", "other=1"):
        with pytest.raises(InvalidRequest):
            WebSocket.connect(transport, f"{path}?{query}")
    for text in ("", "x", "[]", "{}", '{"type":"resize"}', '{"type":"resize","cols":0,"rows":1}', "[" * 100000):
        opened = WebSocket.connect(transport, path)
        assert json.loads(opened.receive())["type"] == "started"
        opened.send('{"type":"resize","cols":7,"rows":7}')
        opened.send(text)
        with pytest.raises(InvalidRequest):
            while opened.receive() is not None:
                pass
        assert opened.close_code == 4422
    assert execution.status().terminal.cols == 7
    # The same name once more: the one before is sent away, and told why.
    first = WebSocket.connect(transport, f"{path}?client=me")
    assert json.loads(first.receive())["known"] is False
    second = WebSocket.connect(transport, f"{path}?client=me")
    assert json.loads(second.receive())["known"] is True
    with pytest.raises(Conflict, match="attached again"):
        while first.receive() is not None:
            pass
    second.close()
    execution.kill()
    execution.wait()
