"""Programs inside the namespaces of the egress rig, each a process of its own: threads of the one that measures would
wait for each other."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bellglass.testing.namespaces import Namespace

STREAMS = """
import select, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=512)
data, poll, socks = b"x" * (1 << 18), select.epoll(), {}
poll.register(listener, select.EPOLLIN)
print("ready", flush=True)
while True:
    for fd, _ in poll.poll():
        if fd == listener.fileno():
            sock, _ = listener.accept()
            sock.setblocking(False)
            socks[sock.fileno()] = sock
            poll.register(sock, select.EPOLLOUT)
            continue
        try:
            socks[fd].send(data)
        except BlockingIOError:
            pass
        except OSError:
            poll.unregister(fd)
            socks.pop(fd).close()
"""
"""ADDRESS PORT: sends for ever to whoever connects."""

DOWNLOADS = """
import json, select, socket, sys, time
address, port, count, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
limit = float(sys.argv[5]) * 1e6 if len(sys.argv) > 5 else float("inf")
buffer, poll = bytearray(1 << 18), select.epoll()
socks = [socket.create_connection((address, port)) for _ in range(count)]
for sock in socks:
    sock.setblocking(False)
    poll.register(sock, select.EPOLLIN)
by_fd = {sock.fileno(): sock for sock in socks}
print("ready", flush=True)
began, total = time.monotonic(), 0
while time.monotonic() < began + seconds:
    if total > limit * (time.monotonic() - began):
        time.sleep(0.002)
        continue
    for fd, _ in poll.poll(1):
        try:
            total += by_fd[fd].recv_into(buffer)
        except BlockingIOError:
            pass
print(json.dumps(total / (time.monotonic() - began) / 1e6))
"""
"""ADDRESS PORT CONNECTIONS SECONDS [MOST]: MB/s of all of them together, held to the most."""

ECHO = """
import select, socket, sys
poll, socks = select.epoll(), {}
for address in sys.argv[1:]:
    listener = socket.create_server((address, 22), backlog=512)
    poll.register(listener, select.EPOLLIN)
    socks[listener.fileno()] = listener
listeners = set(socks)
print("ready", flush=True)
while True:
    for fd, _ in poll.poll():
        if fd in listeners:
            sock, _ = socks[fd].accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            socks[sock.fileno()] = sock
            poll.register(sock, select.EPOLLIN)
            continue
        try:
            data = socks[fd].recv(65536)
            if data:
                socks[fd].send(data)
                continue
        except OSError:
            pass
        poll.unregister(fd)
        socks.pop(fd).close()
"""
"""ADDRESSES: sends back what comes at port 22."""

TRAFFIC = """
import json, socket, sys, threading
allowed, forbidden = sys.argv[1:]
counts, stop = {"allowed": 0, "broken": 0, "forbidden": 0}, threading.Event()

def keep_talking():
    sock = socket.create_connection((allowed, 22))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while not stop.is_set():
        try:
            sock.send(b"x")
            if sock.recv(1):
                counts["allowed"] += 1
                continue
        except OSError:
            pass
        counts["broken"] += 1
        return

def keep_trying():
    while not stop.is_set():
        try:
            with socket.create_connection((forbidden, 22), 5) as sock:
                while not stop.is_set() and sock.send(b"secret") and sock.recv(6):
                    counts["forbidden"] += 1
        except OSError:
            pass

threads = [threading.Thread(target=target) for target in (keep_talking, keep_talking, keep_trying)]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.read()
stop.set()
for thread in threads:
    thread.join()
print(json.dumps(counts))
"""
"""ALLOWED FORBIDDEN: two that talk without pause, one that tries what is forbidden; counts once stdin is at its end."""

SNIFFER = """
import ctypes, json, select, socket, struct, sys, time
# Frames to that address alone: its word at offset 30 of an Ethernet frame with IPv4.
code = [(0x28, 0, 0, 12), (0x15, 0, 3, 0x0800), (0x20, 0, 0, 30),
        (0x15, 0, 1, int.from_bytes(socket.inet_aton(sys.argv[1]), "big")), (0x06, 0, 0, 65535), (0x06, 0, 0, 0)]
program = b"".join(struct.pack("HBBI", *one) for one in code)
held = ctypes.create_string_buffer(program)
sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
sock.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(code), ctypes.addressof(held)))  # SO_ATTACH_FILTER
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
sock.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
print("ready", flush=True)
seen = []
while True:
    if sys.stdin in select.select([sock, sys.stdin], [], [])[0]:
        break
    frame, ancillary, _, sender = sock.recvmsg(65536, 100)
    if sender[2] == socket.PACKET_OUTGOING:
        continue
    at = 14 + (frame[14] & 15) * 4
    total = int.from_bytes(frame[16:18], "big")
    payload = total - (at - 14) - (frame[at + 12] >> 4) * 4 if frame[23] == 6 else total
    if frame[23] != 6 or frame[at + 13] & 2 or payload > 0:
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2][:16])
        seen.append(seconds + nanoseconds / 1e9)
print(json.dumps(seen))
"""
"""ADDRESS: when a packet came for it that carries something or begins a connection; what only ends one is left out."""


@contextlib.contextmanager
def program(namespace: Namespace, code: str, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """Running and ready; killed at the end."""
    argv = [sys.executable, "-c", code, *(str(argument) for argument in arguments)]
    # In a session of its own: those of one session share its weight, and this one plays another machine.
    process = namespace.call(
        lambda: subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    )
    with process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a program inside a namespace has not started")
            yield process
        finally:
            process.kill()


def outcome(process: subprocess.Popen[str]) -> Any:
    """What it prints after its input has ended."""
    output, _ = process.communicate("")
    return json.loads(output)
