"""Our sandboxes in E2B's words. Absent keys are left out: its clients take `null` for an object badly."""

from __future__ import annotations

from typing import Any

from bellglass.model import Sandbox
from bellglass.server.compat.e2b.control import network
from bellglass.server.compat.e2b.tokens import Tokens
from bellglass.server.previews.origins import DEFAULT_PORTS, Origins

ENVD_VERSION = "0.6.13"
"""What our envd does as E2B's does: clients choose their calls by it."""
CLIENT_ID = "bellglass"
NO_DOMAIN = "published-ports-are-off.invalid"
"""Without a domain clients would take E2B's own, and send a sandbox's traffic there."""


def domain_of(origins: Origins | None) -> str:
    """What stands behind `<port>-<id>.` in names of published ports."""
    if origins is None:
        return NO_DOMAIN
    is_default = DEFAULT_PORTS[origins.scheme] == origins.port
    return origins.domain if is_default else f"{origins.domain}:{origins.port}"


def started(sandbox: Sandbox, tokens: Tokens, domain: str) -> dict[str, Any]:
    """Of a create or connect: with the tokens."""
    return {
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": tokens.envd(sandbox.id),
        "trafficAccessToken": tokens.traffic(sandbox.id),
        "domain": domain,
    }


def listed(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "alias": sandbox.template,
        "startedAt": sandbox.created_at,
        "endAt": sandbox.expires_at or sandbox.created_at,
        "cpuCount": max(round(sandbox.cpus), 1),
        "memoryMB": sandbox.memory_bytes // 2**20,
        "diskSizeMB": sandbox.disk_bytes // 2**20,
        "state": "running",
        "envdVersion": ENVD_VERSION,
        "metadata": sandbox.labels,
    }


def detail(sandbox: Sandbox, tokens: Tokens, domain: str) -> dict[str, Any]:
    return {
        **listed(sandbox),
        "envdAccessToken": tokens.envd(sandbox.id),
        "domain": domain,
        "lifecycle": {"autoResume": False, "onTimeout": "kill"},
        "allowInternetAccess": sandbox.network != "deny",
        "network": network.shape(sandbox.network)
        | {"allowPublicTraffic": sandbox.auto_publish != "private"}
        | ({"maskRequestHost": sandbox.auto_publish_host} if sandbox.auto_publish_host else {})
        | ({"httpsPorts": sandbox.auto_publish_tls} if sandbox.auto_publish_tls else {}),
    }
