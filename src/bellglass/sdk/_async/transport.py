"""The one door to the server: a request out, an answer or a stream of bytes back, every failure one of our errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import httpcore2

from bellglass.errors import ConnectionFailed
from bellglass.sdk._async._compat import AsyncPools, sleep
from bellglass.sdk._config import Config
from bellglass.sdk._http import (
    CONNECT_TIMEOUT_S,
    FOREIGN,
    JSON,
    MAX_ERROR_BODY,
    READ_TIMEOUT_S,
    RETRY_DELAYS_S,
    Answer,
    Requests,
    answer_error,
    connection_error,
    dump,
    lower_headers,
)


class AsyncResponse:
    """An answer whose body is still to be read, in pieces. To be closed; read to its end, its connection lives on."""

    def __init__(self, response: httpcore2.Response, api_url: str) -> None:
        self._response = response
        self._api_url = api_url
        self.status: int = response.status
        self.headers = lower_headers(response.headers)

    @property
    def network_stream(self) -> Any:
        """What lies below, once the answer was 101: bytes both ways."""
        return self._response.extensions["network_stream"]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.stream:  # type: ignore[union-attr]
                yield chunk
        except FOREIGN as error:
            raise connection_error(error, self._api_url) from error

    async def read(self, limit_bytes: int | None = None) -> bytes:
        """All of the body, or what comes until there are more than `limit_bytes`."""
        body = bytearray()
        async with aclosing(self.__aiter__()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                body += chunk
                if limit_bytes is not None and len(body) > limit_bytes:
                    break
        return bytes(body)

    async def aclose(self) -> None:
        await self._response.aclose()


class AsyncTransport:
    """Requests to one server. Safe in threads, after fork, and in one event loop after the other."""

    def __init__(self, config: Config) -> None:
        self.api_url = config.api_url
        self._requests = Requests(config)
        self._pools = AsyncPools(config.scheme)

    async def open(
        self,
        method: str,
        target: str,
        *,
        json: Any = None,
        content: Any = None,
        length: int | None = None,
        content_type: str = "application/octet-stream",
        accept: str = JSON,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float | None = READ_TIMEOUT_S,
        accepted: int | None = None,
    ) -> AsyncResponse:
        """Send a request and return once the answer's head is there. The body is `json`, or `content`: bytes, or an
        iterator of bytes that has `length` in all. Raises ConnectionFailed, and the error of an answer from 400 but
        for the status `accepted`."""
        body: Any = b""
        body_type: str | None = None
        if json is not None:
            body, body_type = dump(json), JSON
            length = len(body)
        elif content is not None:
            body, body_type = content, content_type
            if isinstance(content, bytes):
                length = len(content)
        elif method in ("POST", "PUT", "PATCH"):
            body_type, length = content_type, 0
        request = httpcore2.Request(
            method,
            self._requests.url(target),
            headers=self._requests.headers(accept, body_type, length, headers),
            content=body,
            extensions={
                "timeout": {"connect": CONNECT_TIMEOUT_S, "read": read_timeout_s, "write": read_timeout_s, "pool": None}
            },
        )
        try:
            response = AsyncResponse(await self._pools.get().handle_async_request(request), self.api_url)
        except FOREIGN as error:
            raise connection_error(error, self.api_url) from error
        if response.status < 400 or response.status == accepted:
            return response
        try:
            raise answer_error(response.status, response.headers, await response.read(MAX_ERROR_BODY))
        finally:
            await response.aclose()

    async def request(self, method: str, target: str, *, idempotent: bool = False, **options: Any) -> Answer:
        """A request whose whole answer is wanted. One that may be repeated is, when the connection fails."""
        delays = list(RETRY_DELAYS_S) if idempotent else []
        while True:
            try:
                response = await self.open(method, target, **options)
                try:
                    return Answer(response.status, response.headers, await response.read())
                finally:
                    await response.aclose()
            except ConnectionFailed:
                if not delays:
                    raise
                await sleep(delays.pop(0))

    async def aclose(self) -> None:
        """Close the connections. The transport can be used again: it then opens new ones."""
        await self._pools.aclose()
