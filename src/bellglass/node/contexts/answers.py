"""The events of a run as the body of an answer: NDJSON as they come, or one buffered JSON.

Lines are ASCII: no reader that splits text at U+2028 and its like takes one for two.
"""

from __future__ import annotations

import json
from typing import Any

from bellglass.link import LinkStream
from bellglass.node.contexts.lines import HostEvent
from bellglass.wire import untrusted
from bellglass.wire.output import JSON, NDJSON, HeadTail

BUFFERED_BYTES = 1024 * 1024
"""Of each stream, as of an execution's buffered answer."""
BUFFERED_RESULTS_BYTES = 4 * 1024 * 1024
"""Of all results together; what goes beyond is named in `dropped`."""

EACH_BYTES = 256
"""What a result, or a piece of one, counts beside its content."""


def dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def told(event: HostEvent) -> dict[str, Any] | None:
    """An event for clients. `offset`: with it as `after` a reader goes on behind this line."""
    value = event.value
    if event.kind in ("stdout", "stderr"):
        line: dict[str, Any] = {"type": event.kind, "text": value["text"]}
    elif event.kind == "result":
        line = {"type": "result", "main": value["main"]}
        if value["piece"] is not None and value["mime"] is not None:
            line |= {name: value[name] for name in ("part", "last", "mime", "piece", "json")}
        else:
            line["data"] = value["data"] or {}
        if value["dropped"]:
            line["dropped"] = value["dropped"]
    elif event.kind == "error":
        line = {"type": "error", **value}
    elif event.kind == "started":
        line = {"type": "started", "run_id": event.run, "execution_count": value["count"]}
        line["state_lost"] = value["state_lost"]
    else:
        return None
    return line | {"offset": event.end}


class Answer:
    """What a reader of a run gets. `begun`: something was sent, so an error can't have a status of its own any more."""

    def __init__(self, stream: LinkStream) -> None:
        self.stream = stream

    @property
    def begun(self) -> bool:
        return self.stream.head_sent

    async def events(self, events: list[HostEvent]) -> None:
        raise NotImplementedError

    async def skipped(self, count: int) -> None:
        raise NotImplementedError

    async def keepalive(self) -> None:
        raise NotImplementedError

    async def end(self, outcome: dict[str, Any]) -> None:
        raise NotImplementedError

    async def _head(self, kind: str) -> None:
        if not self.stream.head_sent:
            await self.stream.send_head({"status": 200, "headers": {"content-type": kind}})


class Streamed(Answer):
    async def events(self, events: list[HostEvent]) -> None:
        lines = [dump(line) for event in events if (line := told(event)) is not None]
        await self._send(b"".join(lines))

    async def skipped(self, count: int) -> None:
        await self._send(dump({"type": "skipped", "bytes": count}))

    async def keepalive(self) -> None:
        await self._send(dump({"type": "keepalive"}))

    async def end(self, outcome: dict[str, Any]) -> None:
        await self._send(dump({"type": "end", **outcome}))

    async def _send(self, lines: bytes) -> None:
        if lines:
            await self._head(NDJSON)
            await self.stream.send(lines)


class Buffered(Answer):
    def __init__(self, stream: LinkStream) -> None:
        super().__init__(stream)
        self._streams = {"stdout": HeadTail(BUFFERED_BYTES), "stderr": HeadTail(BUFFERED_BYTES)}
        self._results: list[dict[str, Any]] = []
        self._size = 0
        self._error: dict[str, Any] | None = None
        self._truncated = False

    async def events(self, events: list[HostEvent]) -> None:
        for event in events:
            if event.kind in self._streams:
                self._streams[event.kind].feed(event.value["text"].encode("utf-8", "surrogatepass"))
            elif event.kind == "result":
                self._result(event.value)
            elif event.kind == "error":
                self._error = event.value

    async def skipped(self, count: int) -> None:
        self._truncated = True

    async def keepalive(self) -> None:
        await self._head(JSON)
        await self.stream.send(b" ")

    async def end(self, outcome: dict[str, Any]) -> None:
        texts = {name: part.value().decode("utf-8", "replace") for name, part in self._streams.items()}
        truncated = self._truncated or any(part.truncated for part in self._streams.values())
        for result in self._results:
            result.pop("pieces", None)  # its last one never came
        body = {**outcome, **texts, "truncated": truncated, "results": self._results, "error": self._error}
        await self._head(JSON)
        await self.stream.send(dump(body))

    def _result(self, value: dict[str, Any]) -> None:
        self._size += EACH_BYTES + len(value["mime"] or "") + len(json.dumps(value["dropped"] or ""))
        if self._size > BUFFERED_RESULTS_BYTES:
            self._truncated = True
            return
        if value["piece"] is None:
            data: dict[str, Any] = {}
            dropped = dict(value["dropped"] or {})
            for mime, content in (value["data"] or {}).items():
                self._keep(data, dropped, mime, content, len(json.dumps(content)))
            self._results.append({"main": value["main"], "data": data, "dropped": dropped})
            return
        if not self._results or "pieces" not in self._results[-1]:
            self._results.append({"main": value["main"], "data": {}, "dropped": {}, "pieces": {}})
        result = self._results[-1]
        held = result["pieces"].setdefault(value["mime"], {"texts": [], "bytes": 0, "json": value["json"]})
        held["bytes"] += len(value["piece"])
        if self._size + held["bytes"] <= BUFFERED_RESULTS_BYTES:
            held["texts"].append(value["piece"])
        if not value["last"]:
            return
        for mime, pieces in result.pop("pieces").items():
            whole = "".join(pieces["texts"])
            try:
                content = untrusted.parse(whole) if pieces["json"] and len(whole) == pieces["bytes"] else whole
            except ValueError:
                content = whole  # the sandbox's own word for it
            self._keep(result["data"], result["dropped"], mime, content, pieces["bytes"])
        result["dropped"] |= value["dropped"] or {}

    def _keep(self, data: dict[str, Any], dropped: dict[str, Any], mime: str, content: Any, size: int) -> None:
        self._size += EACH_BYTES + len(mime)
        if self._size + size > BUFFERED_RESULTS_BYTES:
            dropped[mime] = size
            return
        self._size += size
        data[mime] = content
