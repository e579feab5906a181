"""The answer of /execute: lines of a native run turned into E2B's as they come.

Lines are ASCII, since its clients split text at characters like U+2028 too, and none is empty. A line is bounded by
what a kernel host sends for one result; long pictures go through in pieces, so that none is ever held here as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from starlette.types import Scope, Send

from bellglass.errors import BellglassError, KernelDied
from bellglass.server.http.streams import LinkResponse
from bellglass.wire import untrusted

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "data": "data",
    "chart": "chart",
}
THROUGH = ("png", "jpeg", "pdf", "svg", "html")
"""Strings that pass in pieces."""
MAX_DROPPED = 64
"""Of one result's values."""
MAX_HELD = 16 * 1024 * 1024
"""Characters of a result's other values together."""
EACH = 256
"""What a piece counts beside its characters: it may be empty, and another one follows without end."""
DROPPED = "dropped"
RESTARTING, UNEXPECTED, ABORTED = "ContextRestarting", "UnexpectedEndOfExecution", "ExecutionAborted"
_DEATHS = {"restarted": RESTARTING, "deleted": ABORTED}


class ExecuteAnswer(LinkResponse):
    async def _pass_on(self, scope: Scope, send: Send) -> None:
        died: KernelDied | None = None
        try:
            with self._in_our_words():
                await self._stream.head()
        except BellglassError as error:
            if self._given_up is not None:
                raise self._given_up from None
            if not isinstance(error, KernelDied):
                raise
            died = error  # before it said anything: there it is a line like any other end
        head = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        if died is not None:
            out = b"".join(Translation().of({"type": "end", **died.to_dict()}))
            await send({"type": "http.response.body", "body": out, "more_body": False})
            return
        lines, rest = Translation(), bytearray()
        try:
            async for chunk in self._stream:
                rest += chunk
                if b"\n" not in chunk:
                    continue
                *whole, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
                out = b"".join([part for line in whole for part in lines.of(json.loads(line))])
                if out:
                    await send({"type": "http.response.body", "body": out, "more_body": True})
        except BellglassError:
            return  # cut, as below
        if lines.gone:
            return  # cut: what its clients take for the end of a sandbox
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Translation:
    """`gone`: the sandbox ended under the run."""

    def __init__(self) -> None:
        self.gone = False
        self._open: str | None = None
        """The field whose string is open on the line that was begun."""
        self._begun = False
        self._held: dict[str, tuple[bool, list[str]]] = {}
        self._held_size = 0
        self._dropped: dict[str, Any] = {}

    def of(self, line: dict[str, Any]) -> Iterator[bytes]:
        kind = line["type"]
        if self._begun and kind not in ("keepalive", "end") and "piece" not in line:
            yield self._close() + b"}\n"  # its last piece never came
            self._forget()
        if kind in ("stdout", "stderr"):
            yield dump({"type": kind, "text": line["text"], "timestamp": datetime.now(UTC).isoformat()})
        elif kind == "started":
            yield dump({"type": "number_of_executions", "execution_count": line["execution_count"] or 0})
        elif kind == "result" and "piece" in line:
            yield from self._piece(line)
        elif kind == "result":
            yield dump({"type": "result", "is_main_result": line["main"], **fields(line["data"], line.get("dropped"))})
        elif kind == "error":
            yield dump({name: line[name] for name in ("type", "name", "value", "traceback")})
        elif kind == "skipped":
            yield dump({"type": "stderr", "text": f"[{line['bytes']} bytes of output were lost]\n", "timestamp": ""})
        elif kind == "keepalive":
            if not self._begun:
                yield dump({"type": "keepalive"})
        elif kind == "end":
            yield from self._end(line)

    def _piece(self, line: dict[str, Any]) -> Iterator[bytes]:
        name, piece = FIELDS.get(line["mime"]), line["piece"]
        if not self._begun:
            self._begun = True
            yield b'{"type":"result","is_main_result":' + (b"true" if line["main"] else b"false")
        if name in THROUGH and not line["json"]:
            if self._open != name:
                yield self._close() + b',"%b":"' % name.encode()
                self._open = name
            yield json.dumps(piece)[1:-1].encode("ascii")
        else:
            self._hold(line["mime"], piece, is_json=line["json"])
        if line["last"]:
            data = {mime: _value(pieces, is_json=is_json) for mime, (is_json, pieces) in self._held.items()}
            yield self._close()
            rest = dump(fields(data, {**self._dropped, **(line.get(DROPPED) or {})}))
            yield (b"," + rest[1:]) if rest != b"{}\n" else b"}\n"
            self._forget()

    def _forget(self) -> None:
        self._begun, self._held, self._held_size, self._dropped = False, {}, 0, {}

    def _hold(self, mime: str, piece: str, *, is_json: bool) -> None:
        if mime in self._dropped:
            self._dropped[mime] += len(piece)
            return
        held = self._held.get(mime)
        size = EACH + len(piece) + (len(mime) if held is None else 0)
        if self._held_size + size <= MAX_HELD:
            self._held_size += size
            self._held.setdefault(mime, (is_json, []))[1].append(piece)
            return
        pieces = self._held.pop(mime)[1] if held is not None else []
        before = sum(map(len, pieces))
        if pieces:
            self._held_size -= before + EACH * len(pieces) + len(mime)
        if len(self._dropped) < MAX_DROPPED:
            self._dropped[mime] = before + len(piece)
        else:
            # No result has so many: the rest of this one is nothing.
            self._held, self._held_size = {}, MAX_HELD

    def _close(self) -> bytes:
        was, self._open = self._open, None
        return b'"' if was is not None else b""

    def _end(self, line: dict[str, Any]) -> Iterator[bytes]:
        if self._begun:  # a host that ended in the middle of a result
            yield self._close() + b"}\n"
        error = line["error"]
        if error is not None and error["code"] == "sandbox_gone":
            self.gone = True
            return
        if error is not None:
            name = _DEATHS.get(error["details"].get("reason"), UNEXPECTED)
            yield dump({"type": "error", "name": name, "value": error["message"], "traceback": ""})
        yield dump({"type": "end_of_execution"})


def fields(data: dict[str, Any], dropped: dict[str, Any] | None) -> dict[str, Any]:
    """A result's values under E2B's names; what it has no name for is `extra`, and so is what was too large."""
    found: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for mime, value in data.items():
        name = FIELDS.get(mime)
        if name is None:
            extra[mime] = value
        elif value is not None:
            found[name] = _unquoted(value) if name == "text" else value
    if dropped:
        extra[DROPPED] = dropped
    return found | ({"extra": extra} if extra else {})


def dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _unquoted(text: Any) -> Any:
    """The repr of a string is shown without its quotes."""
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _value(pieces: list[str], *, is_json: bool) -> Any:
    whole = "".join(pieces)
    if not is_json:
        return whole
    try:
        return untrusted.parse(whole)
    except ValueError:
        return whole  # the sandbox's word for it
