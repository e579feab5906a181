"""The values of a published port, settled. Raises InvalidRequest naming the field and the value."""

from __future__ import annotations

import re

from bellglass.errors import InvalidRequest
from bellglass.model import PutPort
from bellglass.server.http.validation import shown
from bellglass.units import parse_duration

MAX_TOKEN_LIFETIME_S = 30 * 86400.0
MAX_ANCESTORS = 16
MAX_TLS_PORTS = 64
PORT = "${PORT}"
_HOST_HEADER = re.compile(r"(?=.{1,255}\Z)([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_ANCESTOR = re.compile(r"(?=.{1,255}\Z)('self'|'none'|https?:|(https?://)?(\*\.)?[A-Za-z0-9.-]+(:([0-9]{1,5}|\*))?)")


def seconds(value: int | float | str, field: str, most_s: float | None = None) -> float:
    found = parse_duration(value, field)
    if found <= 0 or (most_s is not None and found > most_s):
        bound = "above 0" if most_s is None else f"from 1 s to {most_s / 86400:g} days"
        raise InvalidRequest(f"{field}: {shown(value)} is not a time {bound}", details={"field": field})
    return found


def host_at(host: str | None, port: int) -> str | None:
    """The `host_header` of a port that is published at its first visit."""
    return None if host is None else host.replace(PORT, str(port))


def check_auto(auto_publish: str | None, host: str | None, tls: list[int]) -> None:
    if wrong := [port for port in tls if not 1 <= port <= 65535]:
        raise InvalidRequest(
            f"auto_publish_tls: {shown(wrong[0])} is not a port",
            hint="1 to 65535",
            details={"field": "auto_publish_tls"},
        )
    if len(tls) > MAX_TLS_PORTS or (tls and auto_publish is None):
        raise InvalidRequest(
            f"auto_publish_tls: at most {MAX_TLS_PORTS} ports, and only with auto_publish",
            details={"field": "auto_publish_tls"},
        )
    if host is None:
        return
    field = "auto_publish_host"
    if auto_publish is None:
        raise InvalidRequest(f"{field}: goes with auto_publish", hint="give both", details={"field": field})
    if not _HOST_HEADER.fullmatch(host_at(host, 65535) or ""):
        raise InvalidRequest(
            f"{field}: {shown(host)} is not a host with or without a port",
            hint=f'such as "localhost:{PORT}"',
            details={"field": field},
        )


def check(body: PutPort) -> None:
    if body.host_header is not None and not _HOST_HEADER.fullmatch(body.host_header):
        raise InvalidRequest(
            f"host_header: {shown(body.host_header)} is not a host with or without a port",
            hint='such as "localhost:8000"',
            details={"field": "host_header"},
        )
    ancestors = body.frame_ancestors or []
    for source in ancestors:
        if not _ANCESTOR.fullmatch(source) or (source == "'none'" and len(ancestors) > 1):
            raise InvalidRequest(
                f"frame_ancestors: {shown(source)} is not a source",
                hint='such as "https://app.example.com", "\'self\'" or, alone, "\'none\'"',
                details={"field": "frame_ancestors"},
            )
    if len(ancestors) > MAX_ANCESTORS or body.frame_ancestors == []:
        raise InvalidRequest(
            f"frame_ancestors: {len(ancestors)} sources",
            hint=f"1 to {MAX_ANCESTORS}, or null for what the program says",
            details={"field": "frame_ancestors"},
        )
