"""How the node speaks to the proxy and the resolver, and the proxy to the resolver: one JSON object a packet.

Unix SOCK_SEQPACKET; a packet is at most 64 KiB and may carry descriptors. A request is `{"id": n, "op": ..., ...}`, its
answer `{"id": n, "ok": true, ...}` or `{"id": n, "error": {"code", "message"}}`; `{"event": {...}}` comes unasked. The
operations are in `Sandboxes`' docstring. This module is the listening end and what both share; the node's own end is
`control_client.py`.
"""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bellglass.egress.log import log
from bellglass.egress.loop import Loop, Signal
from bellglass.egress.policy import Policy, PolicyError

MAX_PACKET_BYTES = 64 * 1024
MAX_DESCRIPTORS = 4
MAX_PEERS = 4
MAX_QUEUED_EVENTS = 4096
"""Waiting for a node that is slow or away; then the oldest are dropped, and the next one counts them."""

Document = dict[str, Any]


class ControlError(Exception):
    """A refusal of an operation. Codes: bad_packet bad_policy bad_descriptors stale unknown_sandbox unknown_op."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Packet(NamedTuple):
    document: Document
    descriptors: list[int]
    """Owned by whoever holds the packet."""


def encode(document: Document) -> bytes:
    """Raises ControlError when it doesn't fit into a packet."""
    data = json.dumps(document, separators=(",", ":")).encode()
    if len(data) > MAX_PACKET_BYTES:
        raise ControlError("bad_packet", f"a packet of {len(data)} bytes, more than {MAX_PACKET_BYTES}")
    return data


def send(sock: socket.socket, data: bytes, descriptors: list[int] | None = None) -> None:
    """One packet, whole or not at all. Raises BlockingIOError, OSError. The descriptors stay the caller's."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> Packet | None:
    """The next packet, None at the peer's end. Raises BlockingIOError, OSError, and ControlError for what is none."""
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
    data, ancillary, flags, _ = sock.recvmsg(MAX_PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += array.array("i", content[: len(content) // 4 * 4])
    if not data:
        close_all(descriptors)
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ControlError("bad_packet", "more bytes or descriptors than a packet may have")
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ControlError("bad_packet", "not a JSON object")
    except (ValueError, RecursionError) as error:
        close_all(descriptors)
        raise ControlError("bad_packet", f"not JSON: {error}") from error
    except ControlError:
        close_all(descriptors)
        raise
    return Packet(document, descriptors)


def close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def peer_uid(sock: socket.socket) -> int:
    return struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def listen(path: Path) -> socket.socket:
    """The listening socket at that path; one that a dead process left is replaced. Who gets in is the folder's mode
    and `ControlServer`'s uids."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


class ControlServer:
    """Serves `handle(document, descriptors)`, which answers with the fields of the answer or raises ControlError.

    It is called once a request, in order, and never waits. It takes a descriptor by removing it from the list; what it
    leaves is closed. `publish` sends an event to the peer that connected last, but not to root where `uids` has others:
    the supervisor only asks whether this process answers.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        uids: frozenset[int],
        handle: Callable[[Document, list[int]], Document],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._uids = uids
        self._handle = handle
        self._peers: list[_Peer] = []
        self._events: deque[Document] = deque()
        self._dropped = 0
        loop.spawn(self._accept())

    def publish(self, event: Document) -> None:
        if len(self._events) >= MAX_QUEUED_EVENTS:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        self._wake_listener()

    def _wake_listener(self) -> None:
        if (listener := self._event_listener()) is not None:
            listener.wake.set()

    def _event_listener(self) -> _Peer | None:
        return next((peer for peer in reversed(self._peers) if peer.gets_events), None)

    async def _accept(self) -> None:
        try:
            while True:
                try:
                    sock, _ = self._listener.accept()
                except BlockingIOError:
                    await self._loop.readable(self._listener)
                except OSError as error:
                    log("a peer of the control socket can't be accepted", error=str(error))
                    await self._loop.sleep(0.1)
                else:
                    self._welcome(sock)
        finally:
            self._loop.close(self._listener)

    def _welcome(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if (uid := peer_uid(sock)) not in self._uids or len(self._peers) >= MAX_PEERS:
            log("a peer of the control socket was refused", uid=uid)
            sock.close()
            return
        peer = _Peer(sock, Signal(self._loop), gets_events=uid != 0 or self._uids == {0})
        self._peers.append(peer)
        self._loop.spawn(self._read(peer))
        self._loop.spawn(self._write(peer))

    async def _read(self, peer: _Peer) -> None:
        try:
            while not peer.closed:
                try:
                    packet = receive(peer.sock)
                except BlockingIOError:
                    await self._loop.readable(peer.sock)
                    continue
                if packet is None:
                    return
                peer.answers.append(encode(self._answer(packet)))
                peer.wake.set()
                while len(peer.answers) > 64 and not peer.closed:  # it sends and doesn't read
                    await self._loop.sleep(0.01)
        except (OSError, ControlError) as error:
            log("a peer of the control socket was lost", error=str(error))
        finally:
            peer.closed = True
            peer.wake.set()

    def _answer(self, packet: Packet) -> Document:
        request_id = packet.document.get("id")
        try:
            return {"id": request_id, "ok": True, **self._handle(packet.document, packet.descriptors)}
        except ControlError as error:
            return {"id": request_id, "error": {"code": error.code, "message": error.message}}
        finally:
            close_all(packet.descriptors)

    async def _write(self, peer: _Peer) -> None:
        try:
            while not peer.closed:
                if peer.answers:
                    data = peer.answers[0]
                elif self._events and self._event_listener() is peer:
                    data = encode({"event": self._next_event()})
                    peer.answers.append(data)
                else:
                    peer.wake.clear()
                    await peer.wake.wait()
                    continue
                try:
                    send(peer.sock, data)
                except BlockingIOError:
                    await self._loop.writable(peer.sock)
                    continue
                peer.answers.popleft()
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                log("a peer of the control socket was lost", error=str(error))
        finally:
            self._peers.remove(peer)
            self._loop.close(peer.sock)
            self._wake_listener()

    def _next_event(self) -> Document:
        event = self._events.popleft()
        if self._dropped:
            event = {**event, "suppressed": event.get("suppressed", 0) + self._dropped}
            self._dropped = 0
        return event


class _Peer:
    __slots__ = ("answers", "closed", "gets_events", "sock", "wake")

    def __init__(self, sock: socket.socket, wake: Signal, *, gets_events: bool) -> None:
        self.sock = sock
        self.wake = wake
        self.gets_events = gets_events
        self.answers: deque[bytes] = deque()
        self.closed = False


class Held(NamedTuple):
    """What a process holds of a sandbox."""

    generation: int
    policy: Policy


class Sandboxes:
    """The operations that proxy and resolver have in common, with the checks that both need.

        attach    sandbox, generation, policy, descriptors -> {}    a known sandbox's listeners are replaced
        policy    sandbox, generation, policy              -> {}    answered once nothing of the old one goes on
        detach    sandbox                                  -> {}    unknown: nothing to do
        list      after                                    -> {"sandboxes": {id: generation}, "next"}
        counters  after                                    -> {"sandboxes": {id: {...}}, "next"}
        health                                             -> {}

    A generation that is older than the one held is refused as `stale`; the same one again is applied again. A field
    that is not known is refused: what it says of what may pass would count for nothing. Then what was held stays, and
    the node detaches the sandbox.
    A subclass says what happens: `attached`, `changed`, `detached`, `counted`.
    """

    listeners = 1
    """How many descriptors an attach carries."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}

    def attached(self, sandbox: str, listeners: list[socket.socket]) -> None:
        raise NotImplementedError

    def changed(self, sandbox: str, policy: Policy) -> None:
        raise NotImplementedError

    def detached(self, sandbox: str) -> None:
        raise NotImplementedError

    def counted(self, sandbox: str) -> Document:
        raise NotImplementedError

    def handle(self, document: Document, descriptors: list[int]) -> Document:
        """For ControlServer. Raises ControlError."""
        op = document.get("op")
        if op == "list":
            return self._page(document, lambda sandbox: self.held[sandbox].generation)
        if op == "counters":
            return self._page(document, self.counted)
        if op == "health":
            return {}
        sandbox = document.get("sandbox")
        if not isinstance(sandbox, str) or not 0 < len(sandbox) <= 64:
            raise ControlError("bad_packet", f"sandbox {sandbox!r} is not an id")
        if op == "detach":
            if self.held.pop(sandbox, None) is not None:
                self.detached(sandbox)
            return {}
        if op not in ("attach", "policy"):
            raise ControlError("unknown_op", f"op {op!r} is not known")
        if op == "policy" and sandbox not in self.held:
            raise ControlError("unknown_sandbox", f"{sandbox} is not attached")
        held = self._settled(sandbox, document)
        sockets = self._sockets(descriptors) if op == "attach" else None
        self.held[sandbox] = held
        self.changed(sandbox, held.policy)
        if sockets is not None:
            self.attached(sandbox, sockets)
        return {}

    def _settled(self, sandbox: str, document: Document) -> Held:
        if unknown := set(document) - {"id", "op", "sandbox", "generation", "policy"}:
            raise ControlError("bad_packet", f"unknown field {sorted(unknown)[0]!r}")
        generation = document.get("generation")
        if not isinstance(generation, int) or isinstance(generation, bool) or generation < 0:
            raise ControlError("bad_packet", f"generation {generation!r} is not a whole number from 0")
        try:
            policy = Policy.parse(document.get("policy"))
        except PolicyError as error:
            raise ControlError("bad_policy", str(error)) from error
        now = self.held.get(sandbox)
        if now is not None and generation < now.generation:
            raise ControlError("stale", f"generation {generation} is older than {now.generation}, which is held")
        return Held(generation, policy)

    def _sockets(self, descriptors: list[int]) -> list[socket.socket]:
        if len(descriptors) != self.listeners:
            raise ControlError("bad_descriptors", f"{len(descriptors)} descriptors in place of {self.listeners}")
        sockets: list[socket.socket] = []
        try:
            while descriptors:
                sock = socket.socket(fileno=descriptors[0])
                del descriptors[0]
                sockets.append(sock)
                sock.setblocking(False)
                if sock.family != socket.AF_INET:
                    raise ControlError("bad_descriptors", f"a socket of family {sock.family} in place of AF_INET")
        except BaseException as error:
            for sock in sockets:
                sock.close()
            if isinstance(error, OSError):
                raise ControlError("bad_descriptors", f"not a socket: {error}") from error
            raise
        return sockets

    def _page(self, document: Document, entry_of: Callable[[str], object]) -> Document:
        """What fits into a packet, in the order of ids: with `next` in it there is more, to be asked for by `after`."""
        if "sandbox" in document:
            only = document["sandbox"]
            return {"sandboxes": {only: self.counted(only)} if isinstance(only, str) and only in self.held else {}}
        after = document.get("after", "")
        if not isinstance(after, str):
            raise ControlError("bad_packet", f"after {after!r} is not an id")
        found: Document = {}
        size = 0
        for sandbox in sorted(name for name in self.held if name > after):
            entry = entry_of(sandbox)
            size += len(json.dumps(entry)) + len(sandbox) + 8
            if size > MAX_PACKET_BYTES - 1024:
                return {"sandboxes": found, "next": max(found)}
            found[sandbox] = entry
        return {"sandboxes": found}
