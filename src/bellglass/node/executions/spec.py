"""What an execution is to run, checked and turned into the argv that the agent gets."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bellglass import ids
from bellglass.errors import InvalidCommand, InvalidRequest, NotFound
from bellglass.model import MAX_STDIN_BYTES, MAX_TAG_BYTES, MAX_TERMINAL
from bellglass.node.params import Params, check_encodable

MAX_COMMAND_BYTES = 1024 * 1024
MAX_ENV_BYTES = 1024 * 1024
# The kernel takes at most 128 KiB as one string of argv (MAX_ARG_STRLEN), the final NUL included.
_ONE_STRING_BYTES = 128 * 1024 - 1
_PIECE_BYTES = 96 * 1024
_SHOWN_CHARACTERS = 1024
_SHOWN_ARGUMENTS = 16
# A script over the limit comes in pieces and is put together again inside; nothing of that is left but `$0`.
_JOIN = 'IFS=; __bellglass_script="$*"; unset IFS; shift $#; eval "$__bellglass_script"'


@dataclass(frozen=True, slots=True)
class ExecutionSpec:
    id: str
    command: list[str] | str
    """As the caller gave it; shortened where it is very long (records and events carry it)."""
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    user: str
    timeout_s: float | None
    stdin: bytes | None
    stdin_open: bool
    detach: bool
    digest: str
    """Of all of it: the same id with another digest is a conflict."""
    tag: str | None = None
    terminal: tuple[int, int] | None = None
    """Columns and rows that it starts with: it gets a terminal instead of pipes."""


def read(params: Params, *, shell: str) -> ExecutionSpec:
    """The spec of `execution.create`. `shell`: what runs a command given as one string.

    Raises InvalidCommand (empty, NUL, too long), InvalidRequest (env, stdin, times), NotFound (a malformed id).
    """
    execution_id = params.text("execution_id", limit=64)
    if not ids.EXECUTION_ID.fullmatch(execution_id):
        raise NotFound(f"no execution {execution_id!r}", details={"field": "id"})
    body = Params(params.mapping("spec"))
    command = _command(body.raw("command"))
    env = check_environment(body.mapping("env", {}))
    cwd, user = _plain(body, "cwd"), _plain(body, "user")
    if not cwd.startswith("/"):
        raise InvalidCommand(f"cwd: {cwd!r} is not an absolute path", details={"field": "cwd"})
    timeout_s = body.seconds("timeout_s", None)
    stdin, stdin_open = _stdin(body.raw("stdin", None)), body.flag("stdin_open")
    detach = body.flag("detach")
    tag = body.text("tag", None, limit=MAX_TAG_BYTES)
    identity = [command, env, cwd, user, timeout_s, stdin_open, detach]
    terminal = read_terminal(body.mapping("terminal", None))
    if terminal is not None:
        stdin_open = True
    if tag is not None or terminal is not None:  # else as earlier releases made it
        identity += [tag, terminal]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    digest.update(b"" if stdin is None else b"<" + stdin)
    return ExecutionSpec(
        id=execution_id,
        command=_shown(command),
        argv=_argv(command, shell),
        env=env,
        cwd=cwd,
        user=user,
        timeout_s=timeout_s,
        stdin=stdin,
        stdin_open=stdin_open,
        detach=detach,
        digest=digest.hexdigest(),
        tag=tag,
        terminal=terminal,
    )


def read_terminal(value: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """Columns and rows. Raises InvalidRequest."""
    if value is None:
        return None
    size = Params(value)
    return size.integer("cols", least=1, most=MAX_TERMINAL), size.integer("rows", least=1, most=MAX_TERMINAL)


def _command(value: Any) -> list[str] | str:
    refuse = {"field": "command"}
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise InvalidCommand("command: neither a string nor a list of strings", details=refuse)
    if not parts or not parts[0] or (isinstance(value, str) and not value.strip()):
        raise InvalidCommand("command is empty", hint='give a program, such as ["python3", "main.py"]', details=refuse)
    for part in parts:
        check_encodable(part, "command")
    if any("\0" in part for part in parts):
        raise InvalidCommand("command holds a NUL byte", details=refuse)
    # As the kernel counts: each string with its NUL and its pointer.
    size = sum(len(part.encode("utf-8", "surrogateescape")) + 9 for part in parts)
    if size > MAX_COMMAND_BYTES:
        raise InvalidCommand(
            f"command is {size} bytes long, the most is {MAX_COMMAND_BYTES}",
            hint="write it to a file in the sandbox and run that",
            details=refuse,
        )
    return value


def _argv(command: list[str] | str, shell: str) -> tuple[str, ...]:
    if not isinstance(command, str):
        return tuple(command)
    raw = command.encode("utf-8", "surrogateescape")
    if len(raw) <= _ONE_STRING_BYTES:
        return (shell, "-c", command)
    pieces = [raw[i : i + _PIECE_BYTES] for i in range(0, len(raw), _PIECE_BYTES)]
    return (shell, "-c", _JOIN, shell, *(piece.decode("utf-8", "surrogateescape") for piece in pieces))


def _shown(command: list[str] | str) -> list[str] | str:
    def cut(text: str) -> str:
        more = len(text) - _SHOWN_CHARACTERS
        return text if more <= 0 else f"{text[:_SHOWN_CHARACTERS]}... ({more} characters more)"

    if isinstance(command, str):
        return cut(command)
    shown = [cut(part) for part in command[:_SHOWN_ARGUMENTS]]
    more = len(command) - len(shown)
    return shown if more <= 0 else [*shown, f"... ({more} arguments more)"]


def check_environment(values: Mapping[str, Any]) -> dict[str, str]:
    """Raises InvalidRequest for what the kernel takes as no environment."""
    size = 0
    for key, value in values.items():
        if not key or "=" in key or "\0" in key:
            raise InvalidRequest(
                f"env: {key[:80]!r} can't be the name of a variable",
                hint="a name is not empty and holds neither '=' nor NUL",
                details={"field": "env"},
            )
        if not isinstance(value, str) or "\0" in value:
            raise InvalidRequest(f"env.{key[:80]}: not text without NUL", details={"field": "env"})
        check_encodable(key, "env")
        check_encodable(value, "env")
        entry = len(key.encode("utf-8", "surrogateescape")) + len(value.encode("utf-8", "surrogateescape")) + 1
        if entry > _ONE_STRING_BYTES:
            raise InvalidRequest(
                f"env.{key[:80]}: {entry} bytes, the kernel takes at most {_ONE_STRING_BYTES} for one variable",
                details={"field": "env"},
            )
        size += entry
    if size > MAX_ENV_BYTES:
        raise InvalidRequest(f"env: {size} bytes, the most is {MAX_ENV_BYTES}", details={"field": "env"})
    return dict(values)


def _plain(body: Params, name: str) -> str:
    try:
        return str(body.text(name))
    except InvalidRequest as error:
        raise InvalidCommand(error.message, details={"field": name}) from None


def _stdin(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        check_encodable(value, "stdin")
        raw = value.encode("utf-8", "surrogateescape")
    else:
        field = Params(value if isinstance(value, dict) else {})
        text, b64 = field.raw("text", None), field.raw("b64", None)
        if isinstance(text, str) == isinstance(b64, str):
            raise InvalidRequest("stdin: give either text or b64", details={"field": "stdin"})
        try:
            raw = (
                text.encode("utf-8", "surrogateescape")
                if isinstance(text, str)
                else base64.b64decode(b64, validate=True)
            )
        except ValueError:
            raise InvalidRequest("stdin.b64 is not base64", details={"field": "stdin"}) from None
    if len(raw) > MAX_STDIN_BYTES:
        raise InvalidRequest(
            f"stdin: {len(raw)} bytes, at most {MAX_STDIN_BYTES} go into the request",
            hint="set stdin_open and send it with POST .../stdin",
            details={"field": "stdin"},
        )
    return raw
