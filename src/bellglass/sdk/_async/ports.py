"""A published port as an object: its URL, links that let somebody in, and taking them back."""

from __future__ import annotations

import builtins
from typing import Any
from urllib.parse import quote

from bellglass.model import PortToken, PublishedPort
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._http import sandbox_path
from bellglass.sdk._options import check_json, invalid

Time = int | float | str


class AsyncPort:
    """`url` is an origin of its own. A private port lets in who has a link of `token_url()`, or sends a `token()` in
    the header X-Bellglass-Token."""

    def __init__(self, transport: AsyncTransport, info: PublishedPort) -> None:
        self._transport = transport
        self.info = info
        """Its record as of the last answer about it."""

    @property
    def port(self) -> int:
        return self.info.port

    @property
    def url(self) -> str:
        return self.info.url

    @property
    def visibility(self) -> str:
        return self.info.visibility

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.port} {self.visibility} {self.url}>"

    async def token(self, *, expires_in: Time | None = None, single_use: bool = False) -> PortToken:
        """A token of a private port, for an hour unless told. Raises Conflict for a public one, NotFound."""
        body: dict[str, Any] = {"single_use": single_use}
        if expires_in is not None:
            body["expires_in"] = expires_in
        check_json("expires_in", expires_in)
        answer = await self._transport.request("POST", self._path + "/tokens", json=body, idempotent=True)
        return PortToken.from_json(answer.json())

    async def token_url(self, path: str = "/", *, expires_in: Time | None = None, single_use: bool = False) -> str:
        """A link for a browser: it is answered with a cookie and the way to `path`, which may have a query. With
        `single_use` the link works once; the cookie lasts as long as the link would have."""
        if not path.startswith("/") or "#" in path:
            raise invalid("path", path, "is not a path on the port", hint='such as "/report?page=2"')
        token = await self.token(expires_in=expires_in, single_use=single_use)
        mark = "&" if "?" in path else "?"
        return f"{self.url}{path}{mark}_bellglass_token={quote(token.token, safe='')}"

    async def revoke_tokens(self) -> None:
        """End all tokens and cookies at once; connections through them are cut. Raises NotFound."""
        await self._transport.request("DELETE", self._path + "/tokens", idempotent=True)

    async def unpublish(self) -> None:
        """Take the URL away; connections through it are cut. Repeats are fine."""
        await self._transport.request("DELETE", self._path, idempotent=True)

    @property
    def _path(self) -> str:
        return f"{sandbox_path(self.info.sandbox_id)}/ports/{self.info.port}"


async def publish(transport: AsyncTransport, sandbox_id: str, port: int, options: dict[str, Any]) -> AsyncPort:
    body = {name: value for name, value in options.items() if value is not None}
    for name, value in body.items():
        check_json(name, value)
    path = f"{sandbox_path(sandbox_id)}/ports/{int(port)}"
    answer = await transport.request("PUT", path, json=body, idempotent=True)
    return AsyncPort(transport, PublishedPort.from_json(answer.json()))


async def ports(transport: AsyncTransport, sandbox_id: str) -> builtins.list[AsyncPort]:
    answer = await transport.request("GET", sandbox_path(sandbox_id) + "/ports", idempotent=True)
    return [AsyncPort(transport, PublishedPort.from_json(item)) for item in answer.json()["items"]]
