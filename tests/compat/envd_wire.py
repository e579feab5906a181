"""envd's wire by hand: requests with nothing that a client would add."""

from __future__ import annotations

import base64
import http.client
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

MIB = 1024 * 1024
STREAM, UNARY = "application/connect+json", "application/json"
FORM = 'multipart/form-data; boundary="xxBOUNDARYxx"'


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[tuple[int, Any]]:
        return [(flags, json.loads(raw)) for flags, raw in split(self.body)]


def envelope(value: object, flags: int = 0) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">BI", flags, len(raw)) + raw


def split(body: bytes) -> Iterator[tuple[int, bytes]]:
    while body:
        flags, length = struct.unpack_from(">BI", body)
        yield flags, body[5 : 5 + length]
        body = body[5 + length :]


class Wire:
    """Requests to one sandbox's envd, with nothing that a client would add."""

    def __init__(self, api_url: str, sandbox_id: str, token: str | None) -> None:
        self.address = urlsplit(api_url).netloc
        self.sandbox_id = sandbox_id
        self.token = token

    def headers(self, **more: str | None) -> dict[str, str]:
        headers: dict[str, str | None] = {"E2b-Sandbox-Id": self.sandbox_id, "E2b-Sandbox-Port": "49983"}
        headers["X-Access-Token"] = self.token
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        return {name: value for name, value in headers.items() if value is not None}

    def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, body, self.headers(**headers))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def unary(self, method: str, message: object, **headers: str | None) -> Answer:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.ask("POST", f"/{method}", body, **{"Content_Type": UNARY, **headers})

    def stream(self, method: str, *messages: object, **headers: str | None) -> Answer:
        body = b"".join(m if isinstance(m, bytes) else envelope(m) for m in messages)
        return self.ask("POST", f"/{method}", body, **{"Content_Type": STREAM, **headers})

    def start(self, script: str, *, more: dict[str, Any] | None = None, **headers: str | None) -> Answer:
        return self.stream("process.Process/Start", command(script, **(more or {})), **headers)


def command(script: str, **more: Any) -> dict[str, Any]:
    return {"process": {"cmd": "/bin/bash", "args": ["-c", script]}, "stdin": False, **more}


def output_of(answer: Answer, channel: str = "stdout") -> bytes:
    parts = [m["event"].get("data", {}).get(channel, "") for flags, m in answer.messages if flags == 0]
    return b"".join(base64.b64decode(part) for part in parts)


class Live:
    """A stream that is read while it goes on."""

    def __init__(self, wire: Wire, method: str, message: object, **headers: str | None) -> None:
        self.connection = http.client.HTTPConnection(wire.address, timeout=60)
        body = message if isinstance(message, (bytes, Iterator)) else envelope(message)
        self.connection.request(
            "POST", f"/{method}", body, wire.headers(**{"Content_Type": STREAM, **headers}),
            encode_chunked=not isinstance(body, bytes),
        )  # fmt: skip
        self.answer = self.connection.getresponse()

    def next(self) -> tuple[int, Any]:
        head = self.answer.read(5)
        flags, length = struct.unpack(">BI", head)
        return flags, json.loads(self.answer.read(length))

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def upload(wire: Wire, path: str, body: Any, **headers: str | None) -> Answer:
    return wire.ask(
        "POST", f"/files?path={quote(path)}", body, **{"Content_Type": "application/octet-stream", **headers}
    )
