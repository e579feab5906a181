"""A CreateExecution against its bounds, and every default settled before the node sees it."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from typing import Any

from bellglass.errors import InvalidCommand, InvalidRequest, NotAcceptable
from bellglass.ids import EXECUTION_ID, new_ulid
from bellglass.model import (
    DEFAULT_EXEC_TIMEOUT_S,
    MAX_EXEC_TIMEOUT_S,
    MAX_STDIN_BYTES,
    MAX_TAG_BYTES,
    MAX_TERMINAL,
    CreateExecution,
    InputFile,
    Terminal,
)
from bellglass.server.http.validation import shown
from bellglass.server.sandboxes.guard import Target
from bellglass.server.sandboxes.validate import MAX_PATH_BYTES, check_env, check_user
from bellglass.units import format_size, parse_duration
from bellglass.wire.output import FRAMES, JSON, NDJSON

_CLIENT = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
DEFAULT_TERM = "xterm-256color"
FORMATS = {JSON: "json", NDJSON: "ndjson", FRAMES: "frames"}


def settle(body: CreateExecution, target: Target, accept: str) -> tuple[str, dict[str, Any]]:
    """The execution's id and the parameters of execution.create. Raises InvalidCommand and InvalidRequest."""
    _check_command(body.command)
    check_env(body.env)
    _check_stdin(body.stdin, stdin_open=body.stdin_open)
    check_tag(body.tag)
    environment = {**target.env, **body.env}
    if body.terminal is not None:
        _check_terminal(body)
        environment = {"TERM": DEFAULT_TERM, **environment}
    execution_id = body.id or new_ulid()
    if body.id is not None and not EXECUTION_ID.fullmatch(body.id):
        raise InvalidRequest(
            f"id: {shown(body.id)} is not a ULID", hint="leave it out to get one", details={"field": "id"}
        )
    try:
        user = check_user(body.user) or target.user
    except InvalidRequest as error:
        raise InvalidCommand(error.message, hint=error.hint, details=error.details) from None
    spec = body.to_json()
    spec.update(
        id=execution_id,
        timeout_s=_timeout(body.timeout, detach=body.detach),
        cwd=settle_cwd(body.cwd, target.workdir),
        user=user,
        env=environment,
    )
    return execution_id, {**target.ref, "execution_id": execution_id, "spec": spec, "accept": accept}


def _check_terminal(body: CreateExecution) -> None:
    assert body.terminal is not None
    check_size(body.terminal)
    if body.stdin is not None:
        raise InvalidRequest(
            "stdin: a program on a terminal gets its input as it is typed",
            hint="send it with POST .../stdin or over .../attach",
            details={"field": "stdin"},
        )


def check_size(size: Terminal) -> None:
    """Raises InvalidRequest."""
    for name, value in (("cols", size.cols), ("rows", size.rows)):
        if not 1 <= value <= MAX_TERMINAL:
            raise InvalidRequest(
                f"{name}: {shown(value)} is not from 1 to {MAX_TERMINAL}",
                hint='such as {"cols": 80, "rows": 24}',
                details={"field": name},
            )


def check_client(client: str | None) -> None:
    """Raises InvalidRequest."""
    if client is not None and not _CLIENT.fullmatch(client):
        raise InvalidRequest(
            f"client: {shown(client)} is not a name of 1 to 64 letters, digits, `-` and `_`",
            hint="make one of your own at random, and give it again when you come back",
            details={"field": "client"},
        )


def check_tag(tag: str | None) -> None:
    """Raises InvalidRequest."""
    if tag is not None and (not tag or "\0" in tag or len(tag.encode("utf-8", "surrogatepass")) > MAX_TAG_BYTES):
        raise InvalidRequest(
            f"tag: {shown(tag)} is not a text of 1 to {MAX_TAG_BYTES} bytes without NUL", details={"field": "tag"}
        )


def choose_format(accept: str | None) -> str:
    """`json`, `ndjson` or `frames` for an Accept header; the first of ours that it names, JSON for `*/*` or none."""
    if accept is None or not accept.strip():
        return "json"
    for part in accept.split(","):
        media, _, parameters = part.partition(";")
        media = media.strip().lower()
        if parameters.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            continue
        if media in FORMATS:
            return FORMATS[media]
        if media in ("*/*", "application/*"):
            return "json"
    raise NotAcceptable(f"Accept: {shown(accept)} names no format of outputs", hint=f"one of: {', '.join(FORMATS)}")


def _check_command(command: list[str] | str) -> None:
    parts = [command] if isinstance(command, str) else command
    if not parts or not parts[0].strip():
        raise InvalidCommand(
            f"command: {shown(command)} is empty",
            hint='a list such as ["python3", "main.py"], or a string for the shell',
            details={"field": "command"},
        )
    for part in parts:
        if "\0" in part:
            raise InvalidCommand(f"command: {shown(part)} holds a NUL byte", details={"field": "command"})


def _check_stdin(stdin: str | InputFile | None, *, stdin_open: bool) -> None:
    if stdin is None:
        return
    if stdin_open:
        raise InvalidRequest(
            "stdin and stdin_open exclude each other",
            hint="send all of it with POST .../stdin",
            details={"field": "stdin_open"},
        )
    if isinstance(stdin, str):
        size = len(stdin.encode())
    elif (stdin.text is None) == (stdin.b64 is None):
        raise InvalidRequest("stdin: needs exactly one of `text` and `b64`", details={"field": "stdin"})
    elif stdin.text is not None:
        size = len(stdin.text.encode())
    else:
        try:
            size = len(base64.b64decode(stdin.b64 or "", validate=True))
        except (binascii.Error, ValueError):
            raise InvalidRequest("stdin.b64: is not base64", details={"field": "stdin.b64"}) from None
    if size > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"stdin: {size} bytes are over the limit of {format_size(MAX_STDIN_BYTES)}",
            hint="set `stdin_open` and send it with POST .../stdin",
            details={"field": "stdin"},
        )


def _timeout(value: Any, *, detach: bool) -> float | None:
    if value is None:
        return None if detach else DEFAULT_EXEC_TIMEOUT_S
    seconds = parse_duration(value, "timeout")
    if seconds > MAX_EXEC_TIMEOUT_S and not detach:
        raise InvalidRequest(
            f"timeout: {shown(value)} is over the {MAX_EXEC_TIMEOUT_S:g} s that a waiting execution may take",
            hint="start it (`start` in the SDK, `detach` in the API) and follow its output",
            details={"field": "timeout"},
        )
    return seconds


def settle_cwd(cwd: str | None, workdir: str) -> str:
    """Absolute. Raises InvalidCommand."""
    if cwd is None:
        return workdir
    if not cwd or "\0" in cwd or len(cwd.encode()) > MAX_PATH_BYTES:
        raise InvalidCommand(
            f"cwd: {shown(cwd)} is not a path", hint="absolute, or from the workdir", details={"field": "cwd"}
        )
    return posixpath.join(workdir, cwd)
