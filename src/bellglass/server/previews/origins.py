"""Names of published ports: `<id>-<port>.<domain>`, or an address of 127/8 of its own. Each is one origin.

`<port>-<id>.<domain>` leads to the same port; what we write ourselves is the first form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bellglass.errors import InvalidRequest

DEFAULT_PORTS = {"http": 80, "https": 443}
TOKEN_PARAMETER = "_bellglass_token"
_LABEL = re.compile(r"(sb[a-z2-7]{20})-([1-9][0-9]{0,4})")
_TURNED = re.compile(r"([1-9][0-9]{0,4})-(sb[a-z2-7]{20})")
_ADDRESS = re.compile(r"127(?:\.(?:0|[1-9][0-9]{0,2})){3}")
_AUTHORITY = re.compile(r"([A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_DOMAIN = re.compile(r"(?=.{1,190}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


class Named(NamedTuple):
    """What a Host names: a port of a sandbox, or an own address."""

    sandbox_id: str | None
    port: int | None
    address: str | None
    is_turned: bool = False
    """The port stood in front, as E2B's clients write it."""


@dataclass(frozen=True, slots=True)
class Origins:
    """As visitors see it: with a proxy in front, `scheme` and `port` are the proxy's."""

    scheme: str
    domain: str
    port: int
    listen_port: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], listen_port: int) -> Origins:
        """`listen_port` is the one that is bound. Raises InvalidRequest."""
        domain = str(settings["previews.domain"]).lower()
        if not _DOMAIN.fullmatch(domain) or domain[-1].isdigit():
            raise InvalidRequest(
                f"previews.domain: {domain!r} is not a domain name", details={"field": "previews.domain"}
            )
        scheme = settings["previews.scheme"] or ("https" if settings["previews.tls_cert"] else "http")
        if scheme not in DEFAULT_PORTS:
            raise InvalidRequest(
                f"previews.scheme: {scheme!r} is neither 'http' nor 'https'", details={"field": "previews.scheme"}
            )
        return cls(scheme, domain, settings["previews.public_port"] or listen_port, listen_port)

    def host(self, sandbox_id: str, port: int, address: str | None) -> str:
        """Without the port of the listener."""
        return address or f"{sandbox_id}-{port}.{self.domain}"

    def origin(self, sandbox_id: str, port: int, address: str | None) -> str:
        """`scheme://host[:port]`, as browsers write it."""
        scheme, listens = ("http", self.listen_port) if address else (self.scheme, self.port)
        host = self.host(sandbox_id, port, address)
        return f"{scheme}://{host}" if DEFAULT_PORTS[scheme] == listens else f"{scheme}://{host}:{listens}"

    def parse(self, authority: str) -> Named | None:
        """What a Host header names, None for what is no published port's name. The port that it tells has no meaning:
        proxies in front have theirs."""
        match = _AUTHORITY.fullmatch(authority)
        if match is None or (match[2] is not None and int(match[2]) > 65535):
            return None
        host = match[1].lower()
        if _ADDRESS.fullmatch(host):
            return Named(None, None, host)
        label, dot, domain = host.partition(".")
        named, turned = _LABEL.fullmatch(label), _TURNED.fullmatch(label)
        sandbox_id, port = named.groups() if named else turned.groups()[::-1] if turned else ("", "0")
        if not sandbox_id or not dot or domain != self.domain or int(port) > 65535:
            return None
        return Named(sandbox_id, int(port), None, turned is not None)
