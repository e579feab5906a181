"""All that the routes work with, put together once at start."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from bellglass.server.audit.trail import AuditTrail
from bellglass.server.auth.principal import Principal
from bellglass.server.auth.service import Auth
from bellglass.server.cluster.base import ClusterEngine
from bellglass.server.compat.e2b.tokens import Tokens
from bellglass.server.contexts.service import Contexts
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.events.service import Events
from bellglass.server.events.sinks.ship import Shipper
from bellglass.server.executions.service import Executions
from bellglass.server.files.service import Files
from bellglass.server.files.signing import Signing
from bellglass.server.http.context import context_of
from bellglass.server.http.websockets import Socket
from bellglass.server.identity.callers import Callers
from bellglass.server.keys.service import Keys
from bellglass.server.limits.service import Limits
from bellglass.server.metrics.service import Metrics
from bellglass.server.network.service import Networks
from bellglass.server.pools.service import Pools
from bellglass.server.ports.service import Ports
from bellglass.server.quarantine.service import Quarantine
from bellglass.server.sandboxes.create import Creator
from bellglass.server.sandboxes.delete import Deleter
from bellglass.server.sandboxes.service import Sandboxes
from bellglass.server.sandboxlogs.service import Logs
from bellglass.server.templates.aliases import Aliases
from bellglass.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    reader: Reader
    writer: Writer
    cluster: ClusterEngine
    auth: Auth
    audit: AuditTrail
    keys: Keys
    limits: Limits
    sandboxes: Sandboxes
    creator: Creator
    deleter: Deleter
    executions: Executions
    contexts: Contexts
    files: Files
    signing: Signing
    quarantine: Quarantine
    pools: Pools
    networks: Networks
    metrics: Metrics
    logs: Logs
    ports: Ports
    events: Events
    callers: Callers
    shippers: tuple[Shipper, ...]
    aliases: Aliases
    e2b: Tokens


def services_of(request: Request | Socket) -> Services:
    services: Services = request.app.state.services
    return services


def principal_of(request: Request | Socket) -> Principal:
    principal = context_of(request).principal
    assert principal is not None, "the route is public"
    return principal


def project_of(request: Request | Socket) -> str:
    """The id of the project whose key was sent."""
    return principal_of(request).project
