"""What sync and async transport share without doing IO: requests put together, foreign errors made ours, answers read.

`httpcore2` is the lower half of httpx2: pool, HTTP/1.1, TLS. Its exceptions are translated here and nowhere else.
"""

from __future__ import annotations

import json
import platform
import re
import select
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpcore2

import bellglass
from bellglass.errors import BellglassError, ClientError, ConnectionFailed, InvalidRequest, NotFound, from_dict
from bellglass.ids import EXECUTION_ID, SANDBOX_ID
from bellglass.sdk._config import Config

JSON = "application/json"
CONNECT_TIMEOUT_S = 10.0
# An ordinary answer takes milliseconds; a create waits for a start, a write for the disk of a busy host.
READ_TIMEOUT_S = 180.0
# Streams carry a keepalive every 15 s: four missed ones mean that nobody is there.
STREAM_TIMEOUT_S = 60.0
# Below the server's own, so that an idle connection is dropped from this side first.
KEEPALIVE_S = 30.0
MAX_CONNECTIONS = 512
MAX_ERROR_BODY = 1024 * 1024
SMALL_READ, LARGE_READ = 64 * 1024, 256 * 1024
SMALL_WRITE = 32 * 1024
RETRY_DELAYS_S = (0.1, 0.4)
USER_AGENT = f"bellglass/{bellglass.__version__} python/{platform.python_version()}"

Query = Mapping[str, Any] | Iterable[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: `headers` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ClientError(
                f"the server's answer is not JSON: {self.body[:80]!r}",
                hint="is the address that of a Bellglass server?",
            ) from error


class Requests:
    """Builds requests for one server: what does not change between them is made once."""

    def __init__(self, config: Config) -> None:
        self._scheme = config.scheme.encode()
        self._host = config.host.encode("idna") if not config.host.isascii() else config.host.encode()
        self._port = config.port
        self._prefix = config.prefix
        authority = f"[{config.host}]" if ":" in config.host else config.host
        host = f"{authority}:{config.port}" if config.port else authority
        self._common = [
            (b"host", host.encode()),
            (b"authorization", f"Bearer {config.api_key}".encode()),
            (b"user-agent", USER_AGENT.encode()),
        ]

    def url(self, target: str) -> httpcore2.URL:
        full = (self._prefix + target).encode("ascii")
        return httpcore2.URL(scheme=self._scheme, host=self._host, port=self._port, target=full)

    def headers(
        self, accept: str, content_type: str | None, length: int | None, extra: Mapping[str, str] | None
    ) -> list[tuple[bytes, bytes]]:
        """With a content type there is a body, of `length` bytes or (None) of a length that only its end tells."""
        headers = [*self._common, (b"accept", accept.encode())]
        if content_type is not None:
            headers.append((b"content-type", content_type.encode()))
            if length is None:
                headers.append((b"transfer-encoding", b"chunked"))
            else:
                headers.append((b"content-length", b"%d" % length))
        if extra:
            headers += [(name.encode(), value.encode("latin-1")) for name, value in extra.items()]
        return headers


def target(path: str, query: Query | None = None) -> str:
    """A path (already quoted) with a query; None values are left out, booleans are `true` and `false`."""
    if not query:
        return path
    pairs = query.items() if isinstance(query, Mapping) else query
    said = [(name, _query_value(value)) for name, value in pairs if value is not None]
    # surrogateescape: a file name that is not UTF-8 goes as the bytes that it is.
    text = urlencode(said, quote_via=quote, safe="/", encoding="utf-8", errors="surrogateescape")
    return f"{path}?{text}" if text else path


def _query_value(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def dump(body: Any) -> bytes:
    """JSON for a body. Raises InvalidRequest for what JSON can't carry (NaN, bytes, lone surrogates are escaped)."""
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request can't be sent as JSON: {error}") from error


def sandbox_path(sandbox_id: str) -> str:
    """Raises NotFound for what can't be an id, as the server would."""
    if not isinstance(sandbox_id, str) or not SANDBOX_ID.match(sandbox_id):
        raise NotFound(f"there is no sandbox {sandbox_id!r}", hint="`bellglass ls` shows the ids; a name is not one")
    return f"/v1/sandboxes/{sandbox_id}"


def execution_path(sandbox_id: str, execution_id: str) -> str:
    if not isinstance(execution_id, str) or not EXECUTION_ID.match(execution_id):
        hint = f"`bellglass logs {sandbox_id} --list` lists them"
        raise NotFound(f"there is no execution {execution_id!r} in {sandbox_id}", hint=hint)
    return f"{sandbox_path(sandbox_id)}/executions/{execution_id}"


_CONNECT_ERRORS = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout)
FOREIGN = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)
_ERRNO = re.compile(r"\[Errno -?\d+\] ")


def connection_error(error: Exception, api_url: str) -> BellglassError:
    """Ours for httpcore's. `details.stage`: `connect` (nothing was sent) or `exchange` (it may have been done)."""
    why = _ERRNO.sub("", str(error)) or type(error).__name__
    if isinstance(error, _CONNECT_ERRORS):
        return ConnectionFailed(
            f"no answer from {api_url}: {why}",
            hint="does it run there? `bellglass status` tells and `bellglass up` starts it, both with its --data-dir",
            details={"url": api_url, "stage": "connect"},
        )
    if isinstance(error, httpcore2.LocalProtocolError):
        return InvalidRequest(f"the request could not be sent: {why}")
    return ConnectionFailed(
        f"the connection to {api_url} broke: {why}",
        hint="whether the request was carried out is not known",
        details={"url": api_url, "stage": "exchange"},
    )


def was_sent(error: ConnectionFailed) -> bool:
    return error.details.get("stage") != "connect"


def answer_error(status: int, headers: Mapping[str, str], body: bytes) -> BellglassError:
    """The error of an answer with a status from 400."""
    try:
        shape = json.loads(body) if body else None
    except ValueError:
        shape = None
    error = from_dict(shape, status=status)
    if error.request_id is None:
        error.request_id = headers.get("x-request-id")
    return error


def is_readable(sock: socket.socket) -> bool:
    """Whether an idle connection has something to say: that can only be its end."""
    if sock.fileno() < 0:
        return True
    if sys.platform == "win32":
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()  # select() can't do descriptors from 1024
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def lower_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
