"""One connection of a sandbox, from accept to the last byte: decide, look at the first bytes, dial, relay.

The order is the boundary: the name comes from the resolver, is checked against the policy, then what the client says in
its first bytes where the port tells what they must be, then the address against the floor and what the policy closes;
the one that was checked is dialled. Nothing of the client's is taken off its socket before all that. `cut` ends it
inside the call.

A client may change bytes that it has sent: those of sendfile(2) are the file's own pages until somebody copies them. So
what was read once may read otherwise the next time, and what passes because of what it says passes as it was read.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from ipaddress import IPv4Address, IPv4Network
from time import monotonic
from typing import TYPE_CHECKING, Any

from bellglass.egress.loop import Signal, Task
from bellglass.egress.policy import Verdict
from bellglass.egress.proxy import classify, hellos, http, relay
from bellglass.egress.proxy.head import OtherHost
from bellglass.egress.proxy.hellos import HELLO_TIMEOUT_S
from bellglass.egress.proxy.lookup import Address, LookupFailed, connect
from bellglass.egress.proxy.outcomes import Failed, Refused
from bellglass.egress.proxy.relay import Counter, Ended
from bellglass.http1 import BadHead

if TYPE_CHECKING:
    from bellglass.egress.proxy.app import Ward

DIAL_TIMEOUT_S = 10.0
MAX_DIALS = 4
HTTPS_PORT, HTTP_PORT = 443, 80
SYNTHETIC = IPv4Network("198.18.0.0/15")
IDENTITY = IPv4Address("198.18.0.1")
ROOMY = 8
"""Connections of a sandbox whose buffers the kernel may let grow, to 6 MiB and on some hosts to 32: what a sandbox does
not read lies in them, and all of the host's connections share what the kernel has for that."""
BUFFERS = ((64, 256 * 1024), (1 << 20, 64 * 1024))
"""For those beyond: up to so many connections, bytes that a socket may hold."""
UNSENT_BYTES = 256 * 1024
"""What a socket takes ahead of what its peer does."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 120), (socket.TCP_KEEPINTVL, 30), (socket.TCP_KEEPCNT, 4))


Direction = Callable[[], Coroutine[Any, Any, None]]


class Connection:
    """Owns the client's socket. `run` is its task; the ward has it in `connections` until `close`."""

    def __init__(self, ward: Ward, client: socket.socket, address: IPv4Address, port: int) -> None:
        self.ward = ward
        self.address: Address = address
        self.port = port
        self.name: str | None = None
        self.verdict: Verdict | None = None
        """None as long as the resolver is being asked."""
        self.dialled: Address | None = None
        """Where its packets go, from before the first one on."""
        self.sent, self.received = Counter(), Counter()
        self._loop = ward.loop
        self._client = client
        self._upstream: socket.socket | None = None
        self.task: Task | None = None
        self._back: Task | None = None
        self._closed = False

    # --- ending ------------------------------------------------------------------------------------------

    def close(self, *, reset: bool) -> None:
        """Both sockets now; `reset`: by RST to either side. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        for sock in (self._client, self._upstream):
            if sock is not None and sock.fileno() >= 0:
                if reset:
                    relay.reset_on_close(sock)
                self._loop.close(sock)
        self.ward.ended(self)

    def cut(self) -> None:
        """From outside of its tasks: nothing of it goes on after the call."""
        self.close(reset=True)
        for task in (self._back, self.task):
            if task is not None:
                task.cancel()

    def judge(self) -> Verdict:
        """What the policy of now says."""
        policy = self.ward.policy
        by = policy.by_address(self.address, self.port) if self.name is None else policy.by_name(self.name, self.port)
        if by.allowed and self.dialled is not None:
            return policy.closes(self.dialled) or by
        return by

    def stands(self) -> bool:
        """Whether it may go on under the policy of now: one that was let through unread may not where it's read."""
        if self.verdict is None:
            return True  # it will be judged
        verdict = self.judge()
        return verdict.allowed and (self.verdict.checked or not verdict.checked)

    # --- the way -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        reset = True
        try:
            for option, value in _KEEPALIVE:
                self._client.setsockopt(socket.IPPROTO_TCP, option, value)
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._decide()
            await self._serve()
            reset = False
        except Refused as refusal:
            self.close(reset=True)
            self.ward.refused(self, refusal)
        except Failed as failure:
            self.close(reset=True)
            self.ward.failed(self, failure)
        except (OSError, Ended):
            reset = True  # one side broke off: the other one hears it the same way
        finally:
            if self._back is not None:
                self._back.cancel()
            self.close(reset=reset)

    async def _decide(self) -> None:
        if self.address in SYNTHETIC and self.address != IDENTITY:
            name = await self.ward.name_of(self.address)
            if name is None:
                raise Refused("unknown_address", rule="no name of the resolver's")
            self.name = name
        self.verdict = self.judge()
        if self.verdict.reason is not None:
            raise Refused(self.verdict.reason)

    async def _serve(self) -> None:
        assert self.verdict is not None
        kind = None
        if self.verdict.checked:
            if self.port == HTTPS_PORT:
                assert self.name is not None
                await hellos.look(self._loop, self._client, self.name, monotonic() + HELLO_TIMEOUT_S)
                kind = classify.TLS
            elif self.port == HTTP_PORT:
                await self._look_at_request()
                kind = classify.HTTP
        else:
            kind = classify.RAW
        await self._dial()
        self.ward.allowed += 1
        start = b""
        if kind is None:
            kind, start = await self._first_bytes()
        if kind == classify.HTTP:
            await self._relay_http()
        elif kind == classify.TLS:
            await self._relay_tls()
        else:
            await self._relay_raw(start)

    async def _dial(self) -> None:
        """Raises Refused when each address is below the floor or closed by the policy, Failed."""
        try:
            found = await self.ward.addresses(self.name) if self.name is not None else (self.address,)
        except LookupFailed as error:
            raise Failed("lookup_failed") from error
        held, dials = None, 0
        for address in found:
            # Right before each: the one before may have taken its whole time, and the policy be another one.
            if (refusal := self._refusal_of(address)) is not None:
                held = held or (address, refusal)
                continue
            dials += 1
            if await self._dialled(address):
                return
            if dials == MAX_DIALS:
                break
        if held is not None and not dials:
            self.address = held[0]
            raise held[1]
        raise Failed("connect_failed")

    def _refusal_of(self, address: Address) -> Refused | None:
        if (range_of_it := self.ward.floor.holds(address)) is not None:
            return Refused("floor", rule=range_of_it)
        closed = self.ward.policy.closes(address)
        return None if closed is None else Refused(str(closed.reason), rule=closed.rule)

    async def _dialled(self, address: Address) -> bool:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError:
            return False  # no IPv6, or no descriptor left
        self._upstream = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        for one in (sock, self._client):
            _bound_buffers(one, len(self.ward.connections))
        # From here on a change of the policy ends it at once, by this address too: nothing is awaited in between.
        self.dialled = address
        try:
            await connect(self._loop, sock, address, self.port, monotonic() + DIAL_TIMEOUT_S)
        except OSError:  # a TimeoutError as well
            self._upstream = self.dialled = None
            self._loop.close(sock)
            return False
        self.address = address
        return True

    # --- looking -----------------------------------------------------------------------------------------

    async def _look_at_request(self) -> None:
        assert self.name is not None
        try:
            await http.first_request(self._loop, self._client, self.name, self.port)
        except (BadHead, TimeoutError) as error:
            raise self._bad_request(error) from error

    def _bad_request(self, error: Exception) -> Refused:
        return Refused("host_mismatch", host=error.host) if isinstance(error, OtherHost) else Refused("bad_request")

    async def _first_bytes(self) -> tuple[str, bytes]:
        """What the client begins with, or raw when the server speaks first; and the bytes that make it raw, still not
        taken. Raises Refused."""
        assert self._upstream is not None
        deadline = None
        seen = 0
        while True:
            try:
                found = relay.peek(self._client, classify.MAX_LINE_BYTES + 1)
                if not found:
                    return classify.RAW, b""
                start = bytes(found)
                if len(start) == seen and not relay.at_end(self._client):
                    raise BlockingIOError
                kind = classify.classify(start)
                if kind is not None:
                    return kind, start
                if len(start) == seen:
                    return classify.RAW, start  # no request, and nothing can follow that would make it one
                seen = len(found)
                deadline = deadline or monotonic() + HELLO_TIMEOUT_S
            except BlockingIOError:
                try:
                    if not seen:
                        relay.peek(self._upstream, 1)
                        return classify.RAW, b""
                except BlockingIOError:
                    pass
                try:
                    await self._loop.either(self._client, self._upstream, deadline)
                except TimeoutError as error:
                    raise Refused("bad_request", rule="a line that does not end") from error
            except classify.TooLong as error:
                raise Refused("bad_request", rule="a line that does not end") from error

    # --- relaying ----------------------------------------------------------------------------------------

    async def _relay_raw(self, start: bytes) -> None:
        await self._both_ways(lambda: self._send_raw(start), self._receive)

    async def _send_raw(self, start: bytes) -> None:
        assert self._upstream is not None
        await relay.pass_on(self._loop, self._client, self._upstream, start, self.sent)
        await relay.pump(self._loop, self._client, self._upstream, self.sent)

    async def _receive(self) -> None:
        assert self._upstream is not None
        await relay.pump(self._loop, self._upstream, self._client, self.received)

    async def _relay_tls(self) -> None:
        assert self._upstream is not None and self.name is not None
        loop, client, upstream, name = self._loop, self._client, self._upstream, self.name
        await self._both_ways(lambda: hellos.send(loop, client, upstream, name, self.sent), self._receive)

    async def _relay_http(self) -> None:
        assert self._upstream is not None and self.name is not None
        exchange = http.Exchange(
            self._loop, self._client, self._upstream, self.name, self.port, self.sent, self.received
        )
        try:
            await self._both_ways(exchange.requests, exchange.responses)
        except (BadHead, TimeoutError) as error:
            raise self._bad_request(error) from error

    async def _both_ways(self, onward: Direction, back: Direction) -> None:
        """Either direction ends by itself and is passed on as such. What one raises ends both."""
        assert self._upstream is not None
        done = Signal(self._loop)
        self._back = self._loop.spawn(self._backward(back, done), self.ward.sandbox)
        try:
            await onward()
        except Ended:
            pass  # in the middle of something; the server hears of it by the end of the stream
        _shut(self._upstream)
        await done.wait()

    async def _backward(self, back: Direction, done: Signal) -> None:
        try:
            await back()
        except Ended:
            pass
        except (OSError, BadHead, TimeoutError):
            self.close(reset=True)
            if self.task is not None:
                self.task.cancel()
            return
        _shut(self._client)
        done.set()


def _bound_buffers(sock: socket.socket, connections: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    if connections > ROOMY:
        size = next(size for most, size in BUFFERS if connections <= most)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return  # reset meanwhile: the other direction hears of that
