"""Putting the server together: services, background loops, routes. `build` is what `__main__` and the tests use."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from bellglass import __version__
from bellglass.ballast import Ballast
from bellglass.datadir import DataDir
from bellglass.egress.floor import Floor, parse_exceptions
from bellglass.errors import NoCapacity
from bellglass.server.audit.trail import AuditTrail
from bellglass.server.auth.service import Auth
from bellglass.server.cluster.journal import Journal
from bellglass.server.cluster.local import LocalEngine
from bellglass.server.compat.e2b import app as e2b
from bellglass.server.compat.e2b.described import routes as e2b_routes
from bellglass.server.compat.e2b.tokens import Tokens
from bellglass.server.compat.e2b.visits import Visits
from bellglass.server.contexts.routes import routes as context_routes
from bellglass.server.contexts.service import Contexts
from bellglass.server.db import migrate
from bellglass.server.db.engine import open_engine
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.events import store as event_store
from bellglass.server.events.feed import Feed
from bellglass.server.events.retention import Retention
from bellglass.server.events.routes import routes as event_routes
from bellglass.server.events.service import Events
from bellglass.server.events.sinks.base import Source
from bellglass.server.events.sinks.configured import ship
from bellglass.server.executions.routes import routes as execution_routes
from bellglass.server.executions.service import Executions
from bellglass.server.files.folders import routes as folder_routes
from bellglass.server.files.routes import routes as file_routes
from bellglass.server.files.service import Files
from bellglass.server.files.signed import routes as signed_routes
from bellglass.server.files.signing import Signing
from bellglass.server.files.watch import routes as watch_routes
from bellglass.server.http import errors
from bellglass.server.http.context import Context, Gateway
from bellglass.server.http.sockets import bind
from bellglass.server.identity.callers import Callers
from bellglass.server.identity.inside import Inside
from bellglass.server.identity.listener import Listener
from bellglass.server.keys.routes import routes as key_routes
from bellglass.server.keys.service import Keys
from bellglass.server.limits.routes import routes as limit_routes
from bellglass.server.limits.service import Limits
from bellglass.server.metrics.routes import routes as metrics_routes
from bellglass.server.metrics.service import Metrics
from bellglass.server.network.routes import routes as network_routes
from bellglass.server.network.service import Networks
from bellglass.server.pools.routes import routes as pool_routes
from bellglass.server.pools.service import Pools
from bellglass.server.ports.routes import routes as port_routes
from bellglass.server.ports.service import Ports
from bellglass.server.previews.listener import Previews
from bellglass.server.quarantine.routes import routes as quarantine_routes
from bellglass.server.quarantine.service import Quarantine
from bellglass.server.sandboxes.create import Creator
from bellglass.server.sandboxes.delete import Deleter
from bellglass.server.sandboxes.loop import Forgetter, Reconciler
from bellglass.server.sandboxes.routes import routes as sandbox_routes
from bellglass.server.sandboxes.service import Sandboxes
from bellglass.server.sandboxlogs.routes import routes as log_routes
from bellglass.server.sandboxlogs.service import Logs
from bellglass.server.services import Services
from bellglass.server.system.routes import routes as system_routes
from bellglass.server.templates.aliases import Aliases
from bellglass.server.templates.routes import routes as template_routes
from bellglass.settings import Settings
from bellglass.spare_memory import give_back

FEATURES = (
    sandbox_routes, execution_routes, file_routes, folder_routes, watch_routes, signed_routes, template_routes,
    pool_routes, key_routes, limit_routes, system_routes, quarantine_routes, network_routes, port_routes,
    event_routes, e2b_routes,
    metrics_routes, log_routes, context_routes,
)  # fmt: skip

FILL_EVERY_S = 10.0


class Application:
    """The ASGI application with what lives behind it. `start` and `stop` run on the loop that serves. `previews` is the
    bound socket of published ports; without it none can be published."""

    def __init__(self, data: DataDir, settings: Settings, previews: socket.socket | None = None) -> None:
        self._data = data
        self._previews = previews
        self.previews: Previews | None = None
        self._settings = settings
        self._stack = AsyncExitStack()
        self.services: Services | None = None
        self.fastapi = make_fastapi()
        self.asgi: ASGIApp = Gateway(e2b.in_front_of(self.fastapi, self._running), self._finished)
        self.inside: ASGIApp = Gateway(Inside(self.fastapi), self._finished)
        """What sandboxes call."""

    async def start(self) -> Services:
        """Open (and if needed migrate) the database, start the loops, begin to dial the node. Does not wait for it."""
        async with AsyncExitStack() as stack:
            ballast = Ballast.beside(self._data.database_file)
            await asyncio.to_thread(ballast.make_room)
            await asyncio.to_thread(migrate.ensure, self._data.database_file)
            engine = open_engine(self._data.database_file)
            stack.callback(engine.dispose)
            reader = Reader(engine)
            stack.callback(reader.close)
            writer = Writer(engine)
            writer.start()
            stack.push_async_callback(writer.close)
            with suppress(NoCapacity):  # on a full disk they go on where they were
                await writer.run(event_store.number_from_now, spends=False)
            self._feed = Feed(writer)
            stack.push_async_callback(_cancel, asyncio.create_task(_keep_filled(ballast), name="ballast"))
            stack.push_async_callback(_cancel, asyncio.create_task(give_back(), name="spare memory"))
            self.services = await self._put_together(stack, reader, writer)
            self.fastapi.state.services = self.services
            self._stack = stack.pop_all()
        return self.services

    def listen_inside(self, config: uvicorn.Config) -> Listener:
        """For sandboxes; to be started and closed."""
        return Listener(self._data, config)

    @property
    def settings(self) -> Settings:
        return self._settings

    def serve_foreign_visits(self, config: uvicorn.Config) -> Visits | None:
        """For the listener of published ports: to be closed. `config` is of this API."""
        if self.previews is None:
            return None
        visits = Visits(config, self._running().e2b, e2b.PORTS)
        self.previews.house.foreign = visits
        return visits

    async def stop(self) -> None:
        """In the order that keeps promises: hang up on the node (its executions go on), then write what is known."""
        await self._stack.aclose()

    async def hang_up(self) -> None:
        """End what is under way with the node: streaming answers are cut."""
        if self.services is not None:
            self.services.events.feed.close()
            await self.services.cluster.close()

    async def _put_together(self, stack: AsyncExitStack, reader: Reader, writer: Writer) -> Services:
        auth = Auth(reader, self._data.admin_hash_file)
        audit = AuditTrail(writer, auth)
        stack.push_async_callback(audit.flush)

        secret = self._data.server_secret_file.read_text().strip()
        installation = str(json.loads(self._data.installation_file.read_text())["id"])
        cluster = LocalEngine(
            self._data.node_socket,
            secret=secret,
            installation=installation,
            # Made below: they need the engine, and it needs them once it is connected.
            followers=(
                lambda info: pools.tell(info),
                lambda info: reconciler.run(info),
                lambda info: journal.follow(info),
            ),
        )
        max_cpus = self._settings["node.max_cpus"]
        pools = Pools(reader, writer, cluster, max_cpus)
        await pools.load()
        floor = Floor(parse_exceptions(self._settings["egress.exceptions"]))
        networks = Networks(reader, writer, cluster, floor)
        aliases = Aliases(dict(self._settings["server.template_aliases"]))
        most = self._settings["server.max_sandboxes"]
        creator = Creator(reader, writer, cluster, pools, networks, aliases, max_cpus, most)
        deleter = Deleter(reader, writer, cluster, creator)
        quarantine = Quarantine(
            *(reader, writer, cluster),
            kept_s=self._settings["server.quarantine"],
            retention_s=self._settings["server.retention"],
        )
        reconciler = Reconciler(reader, writer, cluster, creator, deleter, quarantine, networks)
        journal = Journal(cluster, writer)
        forgetter = Forgetter(
            writer, self._settings["server.retention"], self._settings["server.idempotency_retention"]
        )
        stack.push_async_callback(_cancel, asyncio.create_task(audit.run(), name="audit"))
        stack.push_async_callback(_cancel, asyncio.create_task(forgetter.run(), name="forget"))
        kept_s, most = self._settings["events.retention"], self._settings["events.max_per_project"]
        retention = Retention(reader, writer, kept_s, most)
        stack.push_async_callback(_cancel, asyncio.create_task(retention.run(), name="events"))
        stack.push_async_callback(deleter.close)
        stack.push_async_callback(creator.close)
        stack.push_async_callback(cluster.close)
        cluster.start()
        source = Source(installation, __version__)
        shippers = await ship(stack, reader, writer, self._feed, self._settings, source)
        ports = Ports(reader, writer)
        if self._previews is not None:
            self.previews = Previews(ports, cluster, self._settings, self._previews, self._bind)
            await self.previews.start()
            stack.push_async_callback(self.previews.close)
        return Services(
            settings=self._settings,
            reader=reader,
            writer=writer,
            cluster=cluster,
            auth=auth,
            audit=audit,
            keys=Keys(reader, writer, auth, lambda key_id: ports.on_key_revoked(key_id)),
            limits=Limits(reader, writer, self._settings["server.max_sandboxes"]),
            sandboxes=Sandboxes(reader, writer, cluster),
            creator=creator,
            deleter=deleter,
            executions=Executions(reader, cluster, self._settings["server.keepalive"]),
            contexts=Contexts(reader, cluster, self._settings["server.keepalive"]),
            files=Files(reader, cluster),
            signing=Signing(secret, auth),
            quarantine=quarantine,
            pools=pools,
            networks=networks,
            metrics=Metrics(reader, cluster),
            logs=Logs(reader, cluster),
            ports=ports,
            events=Events(reader, self._feed),
            callers=Callers(reader, secret, installation),
            shippers=shippers,
            aliases=aliases,
            e2b=Tokens(secret),
        )

    def _running(self) -> Services:
        assert self.services is not None, "it was not started"
        return self.services

    def _bind(self, address: str, port: int) -> socket.socket:
        return bind(address, port, stall_s=self._settings["server.stall_timeout"])

    def _finished(self, context: Context, status: int) -> None:
        if self.services is not None:
            self.services.audit.finished(context, status)


async def _keep_filled(ballast: Ballast) -> None:
    while True:
        await asyncio.to_thread(ballast.fill)
        await asyncio.sleep(FILL_EVERY_S)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def make_fastapi() -> FastAPI:
    """The routes without anything behind them; enough to describe them."""
    app = FastAPI(
        title="Bellglass",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_no_lifespan,
    )
    errors.install(app)
    for feature in FEATURES:
        # Straight into the one list: an included router would be matched as a router of its own at each request.
        app.router.routes.extend(feature.routes)
    return app


@asynccontextmanager
async def _no_lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Started and stopped by Application: the order around uvicorn's own matters."""
    yield
