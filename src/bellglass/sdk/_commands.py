"""An execution's request: what the caller gave, made into a CreateExecution body and a plan for standard input."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from bellglass.errors import InvalidCommand, InvalidRequest
from bellglass.ids import new_ulid
from bellglass.model import MAX_EXEC_TIMEOUT_S, MAX_STDIN_BYTES
from bellglass.sdk._options import check_json, invalid
from bellglass.units import parse_duration

STDIN_PIECE = 256 * 1024


class Command(NamedTuple):
    """`body` for the POST; `stdin` is what is sent beside it in pieces, or None."""

    id: str
    body: dict[str, Any]
    stdin: Any


def command(
    given: Sequence[str | PurePath] | str,
    *,
    env: Mapping[str, str] | None,
    cwd: str | PurePath | None,
    user: str | None,
    timeout: int | float | str | None,
    stdin: Any = None,
    stdin_open: bool = False,
    detach: bool = False,
    tag: str | None = None,
    terminal: tuple[int, int] | None = None,
    id: str | None = None,
) -> Command:
    """Raises InvalidCommand and InvalidRequest for what no server could take."""
    if isinstance(given, str):
        shown: list[str] | str = given
    elif isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)):
        shown = [os.fspath(part) if isinstance(part, PurePath) else part for part in given]
    else:
        raise InvalidCommand(
            f"command: {given!r} is neither a shell string nor a list of arguments", details={"field": "command"}
        )
    body: dict[str, Any] = {"command": shown, "id": id or new_ulid()}
    if env:
        if not isinstance(env, Mapping):
            raise invalid("env", env, "is not a mapping")
        body["env"] = dict(env)
    if cwd is not None:
        body["cwd"] = os.fspath(cwd)
    if user is not None:
        body["user"] = user
    if timeout is not None:
        seconds = parse_duration(timeout, "timeout")
        if not detach and seconds > MAX_EXEC_TIMEOUT_S:
            raise InvalidRequest(
                f"timeout: {timeout!r} is over the {MAX_EXEC_TIMEOUT_S:.0f} s that exec() waits",
                hint="use start() (`bellglass exec --detach`) for long commands; it takes any timeout",
                details={"field": "timeout"},
            )
        body["timeout"] = timeout
    if detach:
        body["detach"] = True
    stream = _plan_stdin(body, stdin)
    if stdin_open:
        body["stdin_open"] = True
    if terminal is not None:
        body["terminal"] = terminal_size(terminal)
    if tag is not None:
        body["tag"] = tag
    for name in ("command", "env", "cwd", "user", "tag"):
        if name in body:
            check_json(name, body[name])
    return Command(body["id"], body, stream)


def terminal_size(given: Any) -> dict[str, int]:
    """`(80, 24)`: columns and rows, as JSON. Raises InvalidRequest."""
    try:
        columns, rows = given
        if all(isinstance(value, int) and not isinstance(value, bool) for value in (columns, rows)):
            return {"cols": columns, "rows": rows}
    except (TypeError, ValueError):
        pass
    raise invalid("terminal", given, "is not columns and rows, such as (80, 24)")


def _plan_stdin(body: dict[str, Any], stdin: Any) -> Any:
    """Small input goes with the request; the rest is a stream beside it."""
    if stdin is None:
        return None
    if isinstance(stdin, str):
        encoded = stdin.encode("utf-8", "surrogateescape")
        if len(encoded) <= MAX_STDIN_BYTES:
            body["stdin"] = stdin if stdin.isprintable() or _is_utf8(stdin) else _b64(encoded)
            return None
        stdin = encoded
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        raw = bytes(stdin)
        if len(raw) <= MAX_STDIN_BYTES:
            body["stdin"] = _b64(raw)
            return None
        stdin = cut(raw)
    elif hasattr(stdin, "read"):
        stdin = read_pieces(stdin)
    elif not hasattr(stdin, "__iter__") and not hasattr(stdin, "__aiter__"):
        raise invalid("stdin", stdin, "is not text, bytes, a file or an iterator")
    body["stdin_open"] = True
    return stdin


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _b64(raw: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(raw).decode("ascii")}


def cut(raw: bytes) -> Any:
    """Bytes in pieces that one request carries."""
    for start in range(0, len(raw), STDIN_PIECE):
        yield raw[start : start + STDIN_PIECE]


def read_pieces(file: Any) -> Any:
    """The content of a file object, as it becomes available where the file can do that."""
    read = getattr(file, "read1", None) or file.read
    while piece := read(STDIN_PIECE):
        yield piece


def as_bytes(piece: Any) -> bytes:
    if isinstance(piece, str):
        return piece.encode("utf-8", "surrogateescape")
    if isinstance(piece, (bytes, bytearray, memoryview)):
        return bytes(piece)
    raise invalid("stdin", piece, "is neither text nor bytes")
