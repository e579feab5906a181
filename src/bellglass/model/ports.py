"""Published ports and the tokens that open them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from bellglass.record import Record

Visibility = Literal["private", "public"]
DEFAULT_TOKEN_LIFETIME = "1h"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PutPort(Record):
    """The body of a port's PUT; it replaces what was set before."""

    visibility: Visibility = "private"
    expires_in: int | float | str | None = None
    """From now on; afterwards the port is as if it had not been published. None: as long as the sandbox."""
    host_header: str | None = None
    """What the program gets as Host, for those that answer to one name alone. None: the visitor's."""
    frame_ancestors: list[str] | None = None
    """Sources that may show it in a frame, as in the Content-Security-Policy. None: what the program itself says."""
    http2: bool = False
    """The program speaks HTTP/2 without TLS, as gRPC servers do: visitors over TLS are offered it too."""
    tls: bool = False
    """The program speaks TLS alone; its certificate is not checked. Visitors get what they get of other ports."""
    own_address: bool = False
    """A loopback address of its own (127.x) instead of a name, for where names below `localhost` don't resolve."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPort(Record):
    """A port of a sandbox with an URL of its own, which is an origin of its own."""

    sandbox_id: str
    port: int
    visibility: Visibility
    url: str
    host_header: str | None
    frame_ancestors: list[str] | None
    http2: bool
    tls: bool
    address: str | None
    created_at: str
    updated_at: str
    expires_at: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CreatePortToken(Record):
    """`single_use`: it is taken once; the cookie that it is changed for lasts as long as the token would have."""

    expires_in: int | float | str = DEFAULT_TOKEN_LIFETIME
    single_use: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortToken(Record):
    """`url` is for a browser: it is answered with a cookie and the way to the URL without the token. Programs send
    `token` in the header X-Bellglass-Token."""

    token: str
    url: str
    expires_at: str
    single_use: bool
