"""POST to a collector that the operator named."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from bellglass.server.events.sinks.base import SinkFailed

CONNECT_S = 10.0
ANSWER_S = 30.0
WHOLE_S = 60.0
MAX_ANSWER_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 300.0


class Collector:
    """`headers` go with each request; what is in them is never logged."""

    def __init__(self, url: str, headers: tuple[tuple[str, str], ...], content_type: str) -> None:
        self._url = url
        self.where = urlsplit(url).netloc.rpartition("@")[2]
        self._headers = [*headers, ("content-type", content_type), ("accept", "application/json")]
        self._pool: Any = None

    async def post(self, body: bytes) -> bytes:
        """The answer's body. Raises SinkFailed for anything but 2xx."""
        import httpcore2  # a server without sinks does without it

        if self._pool is None:
            self._pool = httpcore2.AsyncConnectionPool(max_connections=1, keepalive_expiry=60.0)
        timeout = {"connect": CONNECT_S, "read": ANSWER_S, "write": ANSWER_S, "pool": CONNECT_S}
        try:
            async with (
                asyncio.timeout(WHOLE_S),
                self._pool.stream(
                    "POST", self._url, headers=self._headers, content=body, extensions={"timeout": timeout}
                ) as answer,
            ):
                said = await _read(answer)
                status, retry_after = answer.status, _retry_after(answer.headers)
        except TimeoutError as error:
            raise SinkFailed(f"{self.where} does not answer within {WHOLE_S:.0f} s") from error
        except (
            httpcore2.TimeoutException,
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            httpcore2.UnsupportedProtocol,
            OSError,
        ) as error:
            raise SinkFailed(f"{self.where}: {str(error) or type(error).__name__}") from error
        if not 200 <= status < 300:
            text = said[:200].decode("utf-8", "replace")
            raise SinkFailed(
                f"{self.where} answers {status}: {text}", retry_after_s=retry_after, too_large=status == 413
            )
        return said

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()


async def _read(answer: Any) -> bytes:
    """Up to a bound; a connection with more to say is not used again."""
    body = bytearray()
    async for chunk in answer.aiter_stream():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            break
    return bytes(body)


def _retry_after(headers: list[tuple[bytes, bytes]]) -> float | None:
    for name, value in headers:
        if name.lower() == b"retry-after" and value.isdigit():
            return min(float(value), MAX_RETRY_AFTER_S)
    return None
