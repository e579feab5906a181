"""A guest agent in an attacker's hands: a program that root of a sandbox runs in place of the real one.

It dials the agent's socket faster than the real agent does after a restart of the node, answers the first command that
it is sent with `HIJACKED`, so that a test sees that it has the link, and then floods the node in one of `KINDS`.
"""

from __future__ import annotations

import time
from typing import Any

HIJACKED = "this is not what you asked for"
KINDS = ("pongs", "pings", "bytes", "fields", "garbage", "hangups")
_HANDOVER_S = 30.0

_PROGRAM = r"""
import os, socket, struct, sys, time
KIND, TEXT = sys.argv[1], sys.argv[2].encode()
def frame(kind, stream, payload=b"", channel=0):
    return struct.pack("<IBBHI", len(payload), kind, channel, 0, stream) + payload
def field(tag, value): return struct.pack("<HI", tag, len(value)) + value
def number(tag, value): return field(tag, struct.pack("<Q", value))
def data(stream, offset, payload): return frame(18, stream, struct.pack("<Q", offset) + payload, 1)
HELLO = frame(1, 0, number(1, 1) + field(3, b"b" * 16) + number(4, 1))
def dial():
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect("/run/bellglass/agent.sock")
            link.sendall(HELLO)
            return link
        except OSError:
            link.close()
            time.sleep(0.002)
def frames(link):
    held = b""
    while True:
        more = link.recv(65536)
        if not more: raise OSError("hung up")
        held += more
        while len(held) >= 12:
            length, kind, channel, flags, stream = struct.unpack_from("<IBBHI", held)
            if len(held) < 12 + length: break
            held = held[12 + length:]
            yield kind, stream
def started(link):
    for kind, stream in frames(link):
        if kind == 16: return stream
def forge(link, stream):
    end = struct.pack("<Q", len(TEXT))
    link.sendall(frame(17, stream, number(1, 7)) + data(stream, 0, TEXT) + frame(20, stream, end, 1)
                 + frame(20, stream, struct.pack("<Q", 0), 2) + frame(22, stream, number(1, 0)))
def drain(link):
    try:
        while link.recv(65536, socket.MSG_DONTWAIT): pass
    except BlockingIOError:
        return
def flood(link):
    if KIND == "pongs":
        piece = frame(4, 0) * 5000
        while True: link.sendall(piece)
    if KIND == "pings":
        piece = frame(3, 0, b"12345678") * 2000
        while True:
            link.sendall(piece)
            drain(link)
    if KIND == "bytes":
        stream, offset = started(link), 0
        link.sendall(frame(17, stream, number(1, 7)))
        while True:
            link.sendall(data(stream, offset, b"x"))
            offset += 1
            if offset % 1000 == 0: drain(link)
    if KIND == "fields":
        piece = frame(99, 0, field(9, b"") * 2700) * 20
        while True: link.sendall(piece)
    if KIND == "garbage":
        link.sendall(os.urandom(65536))
    if KIND == "hangups":
        link.shutdown(socket.SHUT_RDWR)
taken = False
print("ready", flush=True)
while True:
    link = dial()
    try:
        if not taken:
            forge(link, started(link))
            taken = True
        flood(link)
    except OSError:
        pass
    finally:
        link.close()
"""


def take_over(box: Any, kind: str) -> None:
    """Run the hostile agent inside `box` (a Sandbox); it has the link once the node was restarted."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    box.files.write_text("/tmp/agent.py", _PROGRAM)
    # It must be dialing before the node is back, or the sandbox's own agent is the first.
    next(iter(box.start(["sudo", "python3", "/tmp/agent.py", kind, HIJACKED]).output()))


def wait_taken(box: Any) -> None:
    """Until the hostile agent answers for the sandbox, and floods. Raises TimeoutError."""
    from bellglass.errors import BellglassError

    deadline = time.monotonic() + _HANDOVER_S
    while time.monotonic() < deadline:
        try:
            if box.exec(["echo", "honest"], timeout=5).stdout == HIJACKED:
                return
        except BellglassError:
            pass  # the node is just coming back
        time.sleep(0.1)
    raise TimeoutError(f"the hostile agent of {box.id} did not get the link")
