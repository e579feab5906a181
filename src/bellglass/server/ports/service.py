"""Publishing ports, handing out tokens, and saying who may visit.

A change that takes something from visitors (unpublished, private again, tokens revoked) is told to the listener before
it is answered, so that what is open by then is cut.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from sqlalchemy import Connection

from bellglass import faultpoints
from bellglass.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, NotSupported
from bellglass.model import CreatePortToken, PortToken, PublishedPort, PutPort, format_time, now, parse_time
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.ports import store, tokens, validate
from bellglass.server.ports.store import Publication
from bellglass.server.ports.tokens import Kind, Pass
from bellglass.server.previews.origins import TOKEN_PARAMETER, Named, Origins
from bellglass.server.sandboxes import guard

MAX_PORTS = 64
ADDRESS_TRIES = 16


class Ports:
    """`origins` is None while nothing is served: then nothing can be published. `on_taken(sandbox_id, port)` is called
    when visitors of a port may have lost their right to it, `on_key_revoked(key_id)` when an API key was revoked;
    `serve_addresses()` makes listeners of own addresses follow and answers why some can't be served."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self.origins: Origins | None = None
        self.on_taken: Callable[[str, int], None] = lambda sandbox_id, port: None
        self.on_key_revoked: Callable[[str], None] = lambda key_id: None
        self.serve_addresses: Callable[[], Awaitable[dict[str, str]]] = _no_addresses
        self._reader = reader
        self._writer = writer

    # --- the API's --------------------------------------------------------------------------------------

    async def publish(self, project_id: str, sandbox_id: str, port: int, body: PutPort) -> PublishedPort:
        """Published anew it keeps its tokens. Raises NotFound, SandboxGone, Conflict, InvalidRequest, LimitExceeded,
        NotSupported (nothing is served)."""
        origins = self._served()
        validate.check(body)
        if body.own_address and origins.scheme != "http":
            raise InvalidRequest(
                "own_address: no certificate is for a loopback address",
                hint="own addresses are for a listener without TLS",
                details={"field": "own_address"},
            )
        guard.running(self._reader, project_id, sandbox_id)
        expires_at = None
        if body.expires_in is not None:
            expires_at = _moment(time.time() + validate.seconds(body.expires_in, "expires_in"))

        def write(connection: Connection) -> tuple[Publication | None, Publication]:
            before = store.find(connection, sandbox_id, port)
            if before is None:
                _check_room(connection, sandbox_id)
            values = {
                "visibility": body.visibility,
                "host_header": body.host_header,
                "frame_ancestors": body.frame_ancestors,
                "http2": body.http2,
                "tls": body.tls,
                "address": _address(connection, before) if body.own_address else None,
                "updated_at": now(),
                "expires_at": expires_at,
            }
            if before is None or _expired(before):
                values |= {"key": tokens.new_key(), "created_at": values["updated_at"]}
            store.put(connection, project_id, sandbox_id, port, values)
            after = store.find(connection, sandbox_id, port)
            if after is None:
                raise guard.not_found()  # deleted meanwhile
            return before, after

        before, after = await self._writer.run(write)
        if before is not None:
            self.on_taken(sandbox_id, port)
        if after.address or (before is not None and before.address):
            failed = await self.serve_addresses()
            if after.address in failed:
                await self.unpublish(project_id, sandbox_id, port)
                raise NotSupported(
                    f"own_address: {failed[after.address]}",
                    hint="another program may listen there; the port is not published, try again",
                    details={"field": "own_address"},
                )
        return self._record(after)

    def get(self, project_id: str, sandbox_id: str, port: int) -> PublishedPort:
        """Raises NotFound."""
        return self._record(self._find(project_id, sandbox_id, port))

    async def list(self, project_id: str, sandbox_id: str) -> list[PublishedPort]:
        """By number. Raises NotFound."""
        guard.readable(self._reader, project_id, sandbox_id)
        found = await self._reader.in_thread(store.of_sandbox, sandbox_id)
        return [self._record(publication) for publication in found if not _expired(publication)]

    async def unpublish(self, project_id: str, sandbox_id: str, port: int) -> None:
        """Repeats are fine. Raises NotFound for a sandbox that is unknown."""
        guard.readable(self._reader, project_id, sandbox_id)
        if await self._writer.run(lambda connection: store.remove(connection, project_id, sandbox_id, port)):
            self.on_taken(sandbox_id, port)
            await self.serve_addresses()

    def create_token(
        self, project_id: str, sandbox_id: str, port: int, body: CreatePortToken, key_id: str
    ) -> PortToken:
        """It ends with the API key. Raises NotFound, Conflict for a public port, InvalidRequest."""
        publication = self._find(project_id, sandbox_id, port)
        if publication.visibility == "public":
            raise Conflict(
                f"port {port} is public: no token is needed", hint="publish it as private", details={"port": port}
            )
        expires_at_unix = time.time() + validate.seconds(body.expires_in, "expires_in", validate.MAX_TOKEN_LIFETIME_S)
        if publication.expires_at is not None:
            expires_at_unix = min(expires_at_unix, parse_time(publication.expires_at).timestamp())
        kind = Kind.SINGLE_USE if body.single_use else Kind.TOKEN
        origin = self.origin_of(publication)
        token = tokens.make(publication.key, origin, kind, expires_at_unix, key_id)
        url = f"{origin}/?{TOKEN_PARAMETER}={token}"
        return PortToken(token=token, url=url, expires_at=_moment(expires_at_unix), single_use=body.single_use)

    async def revoke_tokens(self, project_id: str, sandbox_id: str, port: int) -> None:
        """All tokens and cookies of the port, at once. Raises NotFound."""
        publication = self._find(project_id, sandbox_id, port)
        await self._writer.run(lambda connection: store.set_key(connection, publication, tokens.new_key()))
        self.on_taken(sandbox_id, port)

    # --- the listener's ---------------------------------------------------------------------------------

    def visited(self, named: Named) -> Publication | None:
        """What a Host names, None for what is not (any more) published or has another name."""
        if named.address is not None:
            found = self._reader.inline(store.at_address, named.address)
        else:
            assert named.sandbox_id is not None and named.port is not None
            found = self._reader.inline(store.find, named.sandbox_id, named.port)
            if found is None:
                return self._at_first_visit(named.sandbox_id, named.port)
        if found is None or _expired(found) or found.address != named.address:
            return None
        return found

    def _at_first_visit(self, sandbox_id: str, port: int) -> Publication | None:
        """As it would be published, where the sandbox's ports are when they are visited."""
        row = self._reader.inline(store.auto, sandbox_id)
        if row is None:
            return None
        at = now()
        values = {name: value for name, value in row._mapping.items() if not name.startswith("auto_publish")}
        return Publication(
            sandbox_id, port, visibility=row.auto_publish, host_header=validate.host_at(row.auto_publish_host, port),
            frame_ancestors=None, http2=False, tls=port in row.auto_publish_tls, address=None, key=tokens.new_key(),
            created_at=at, updated_at=at, expires_at=None, is_new=True, **values,
        )  # fmt: skip

    async def visited_first(self, publication: Publication) -> Publication:
        """Something listens there: it is published from now on. Raises NotFound, LimitExceeded."""

        def write(connection: Connection) -> Publication | None:
            if (held := store.find(connection, publication.sandbox_id, publication.port)) is not None:
                return None if _expired(held) else held
            _check_room(connection, publication.sandbox_id)
            names = ("visibility", "host_header", "http2", "tls", "key", "created_at", "updated_at")
            values = {name: getattr(publication, name) for name in names}
            store.put(connection, publication.project_id, publication.sandbox_id, publication.port, values)
            faultpoints.reach("server.visit.storing")
            return store.find(connection, publication.sandbox_id, publication.port)

        faultpoints.reach("server.visit.listening")
        found = await self._writer.run(write)
        faultpoints.reach("server.visit.stored")
        if found is None:
            raise NotFound("nothing is published under this name", hint="it was unpublished a moment ago")
        return found

    def still(self, sandbox_id: str, port: int) -> Publication | None:
        """What is published there now."""
        found = self._reader.inline(store.find, sandbox_id, port)
        return None if found is None or _expired(found) else found

    def check(self, publication: Publication, token: str) -> Pass | None:
        """None for a token that is not good. A single-use one is yet to be spent."""
        used = tokens.check(publication.key, self.origin_of(publication), token, time.time())
        if used is None or used.maker is None or not self._reader.inline(store.key_holds, used.maker):
            return None
        return used

    async def spend(self, publication: Publication, used: Pass) -> bool:
        """False for a single-use token that was used before."""
        if used.kind is not Kind.SINGLE_USE:
            return True
        return await self._writer.run(lambda connection: store.spend(connection, publication, used, time.time()))

    def cookie_for(self, publication: Publication, used: Pass) -> str:
        """The value of the cookie that a token is changed for: it ends when the token would have."""
        assert used.maker is not None
        origin = self.origin_of(publication)
        return tokens.make(publication.key, origin, Kind.COOKIE, used.expires_at_unix, used.maker)

    def addresses(self) -> set[str]:
        """Own addresses that are to be served now."""
        found = self._reader.inline(store.with_addresses)
        return {p.address for p in found if p.address and p.state == "running" and not _expired(p)}

    def origin_of(self, publication: Publication) -> str:
        return self._served().origin(publication.sandbox_id, publication.port, publication.address)

    # --- inside -----------------------------------------------------------------------------------------

    def _find(self, project_id: str, sandbox_id: str, port: int) -> Publication:
        guard.readable(self._reader, project_id, sandbox_id)
        found = self.still(sandbox_id, port)
        if found is None:
            raise NotFound(
                f"port {port} is not published",
                hint=f"`bellglass publish {sandbox_id} {port}`",
                details={"kind": "port", "port": port},
            )
        return found

    def _served(self) -> Origins:
        if self.origins is None:
            raise NotSupported("this installation publishes no ports", hint="the operator's setting is previews.listen")
        return self.origins

    def _record(self, found: Publication) -> PublishedPort:
        return PublishedPort(
            sandbox_id=found.sandbox_id,
            port=found.port,
            visibility="public" if found.visibility == "public" else "private",
            url=self.origin_of(found),
            host_header=found.host_header,
            frame_ancestors=found.frame_ancestors,
            http2=found.http2,
            tls=found.tls,
            address=found.address,
            created_at=found.created_at,
            updated_at=found.updated_at,
            expires_at=found.expires_at,
        )


async def _no_addresses() -> dict[str, str]:
    return {}


def expires_at_unix(publication: Publication) -> float | None:
    return None if publication.expires_at is None else parse_time(publication.expires_at).timestamp()


def _expired(publication: Publication) -> bool:
    if publication.key == store.TAKEN_AWAY:  # whatever the clock says: without a key tokens could be made by anybody
        return True
    expires = expires_at_unix(publication)
    return expires is not None and expires <= time.time()


def _check_room(connection: Connection, sandbox_id: str) -> None:
    if store.count(connection, sandbox_id) >= MAX_PORTS:
        raise LimitExceeded(f"{MAX_PORTS} ports of the sandbox are published, which is the most", hint="unpublish one")


def _moment(unix: float) -> str:
    return format_time(datetime.fromtimestamp(unix, UTC))


def _address(connection: Connection, before: Publication | None) -> str:
    """The one that it has, or one that no other publication has."""
    if before is not None and before.address is not None:
        return before.address
    for _ in range(ADDRESS_TRIES):
        address = "127." + ".".join(str(1 + secrets.randbelow(254)) for _ in range(3))
        if store.at_address(connection, address) is None:
            return address
    raise LimitExceeded("no loopback address is free", hint="unpublish ports with addresses of their own")
