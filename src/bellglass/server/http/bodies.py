"""Request bodies, read strictly: nothing here trusts a length, and the framework's own body reading is not used.

JSON goes from the bytes into the record in one strict pass (pydantic's JSON mode: `"2"` is no number, `true` is none
either, NaN is refused, lone surrogates and broken UTF-8 are errors and not faults).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaValidator, from_json

from bellglass import faultpoints
from bellglass.errors import InvalidRequest, NodeUnavailable, TooLarge, Unauthorized
from bellglass.link import LinkStream
from bellglass.server.auth.principal import KeyState
from bellglass.server.http.validation import refusal, unknown_field
from bellglass.units import format_size
from bellglass.wire.frames import MAX_DATA

Record = TypeVar("Record")


@functools.cache
def validator(kind: Any) -> SchemaValidator:
    """Of JSON. TypeAdapter's own would keep the last 16,384 short strings of all bodies: values of clients'
    environments, long after their sandboxes."""
    return SchemaValidator(TypeAdapter(kind).core_schema, CoreConfig(cache_strings="none"))


@functools.cache
def field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def content_length(request: Request) -> int | None:
    """What Content-Length says, None without one (a chunked body)."""
    text = request.headers.get("content-length")
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises TooLarge before more than the limit was taken in."""
    declared = content_length(request)
    if declared is not None and declared > limit_bytes:
        raise _too_large(declared, limit_bytes)
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(size, limit_bytes)
        parts.append(chunk)
    return b"".join(parts)


async def read_record(
    request: Request, kind: type[Record], limit_bytes: int, *, mistaken: dict[str, str] | None = None
) -> Record:
    """The body as a record. Raises InvalidRequest (422) for everything that isn't one, TooLarge over the limit.

    `mistaken` names fields that people try and what they mean: {"timeout": "lifetime"}.
    """
    record: Record = _parse(await _read_json(request, limit_bytes), kind, mistaken or {})
    return record


async def read_record_and_names(
    request: Request, kind: type[Record], limit_bytes: int, *, mistaken: dict[str, str] | None = None
) -> tuple[Record, frozenset[str]]:
    """`read_record`, and the names of the fields that were given: `null` is not the same as left out."""
    raw = await _read_json(request, limit_bytes)
    return _parse(raw, kind, mistaken or {}), frozenset(from_json(raw, cache_strings="none"))


async def _read_json(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if declared not in ("application/json", ""):
        raise InvalidRequest(
            f"content-type {declared[:80]!r} is not JSON",
            hint="send the body as application/json",
            details={"field": "content-type"},
        )
    raw = await read_body(request, limit_bytes)
    if not raw:
        raise InvalidRequest("the body is empty", hint="send a JSON object", details={"field": "body"})
    return raw


def _parse(raw: bytes, kind: Any, mistaken: dict[str, str]) -> Any:
    try:
        return validator(kind).validate_json(raw, strict=True)
    except ValidationError as error:
        raise _refusal(error, kind, mistaken) from None


async def stream_body(request: Request, limit_bytes: int) -> AsyncIterator[bytes]:
    """Pieces of the body as they come. Raises TooLarge at the limit, starlette's ClientDisconnect if it is cut."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(size, limit_bytes)
        if chunk:
            yield chunk


async def send_body(
    request: Request, stream: LinkStream, key: KeyState, limit_bytes: int, *, whole_frames: bool = False
) -> dict[str, Any]:
    """The body into a stream of the link; answers the result.

    A client that hangs up resets the stream, so the node undoes its half. `whole_frames`: nobody waits for the first
    bytes of a body that is still being sent, so they go in few large frames.
    """
    key.cuts.add(stream.cancel)
    try:
        async with stream:
            chunks = stream_body(request, limit_bytes)
            async for chunk in _whole_frames(chunks) if whole_frames else chunks:
                await stream.send(chunk)
            await stream.end()
            faultpoints.reach("server.body.sent")
            head = await stream.head()
    except NodeUnavailable:
        if key.revoked:
            raise Unauthorized("the key was revoked") from None
        raise
    finally:
        key.cuts.discard(stream.cancel)
    result: dict[str, Any] = head.get("result") or {}
    return result


async def _whole_frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The HTTP server gives 64 KiB at most; a frame costs each hop behind it about the same whatever it holds."""
    held, held_bytes = [], 0
    async for chunk in chunks:
        held.append(chunk)
        held_bytes += len(chunk)
        if held_bytes > MAX_DATA - MAX_DATA // 4:
            yield b"".join(held)
            held, held_bytes = [], 0
    if held:
        yield b"".join(held)


def check_length(request: Request, limit_bytes: int) -> int | None:
    """Refuse a body that says itself that it is too large, before a byte of it is taken. Answers its length."""
    declared = content_length(request)
    if declared is not None and declared > limit_bytes:
        raise _too_large(declared, limit_bytes)
    return declared


def _too_large(size: int, limit_bytes: int) -> TooLarge:
    return TooLarge(
        f"a body of {size} bytes or more is over the limit of {format_size(limit_bytes)}",
        hint="larger data goes in as a file: PUT .../files",
        details={"limit_bytes": limit_bytes},
    )


def _refusal(error: ValidationError, kind: Any, mistaken: dict[str, str]) -> InvalidRequest:
    errors = error.errors(include_url=False, include_context=False)
    for found in errors:
        name = str(found["loc"][0]) if found["loc"] else ""
        if found["type"] == "unexpected_keyword_argument" and len(found["loc"]) == 1 and name in mistaken:
            return InvalidRequest(
                f"{name!r}: unknown field", hint=f"did you mean {mistaken[name]!r}?", details={"field": name}
            )
    known = field_names(kind)
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = str(first["msg"]).removeprefix("Invalid JSON: ")
        return InvalidRequest(f"the body is not JSON: {reason}", details={"field": "body"})
    if first["type"] == "unexpected_keyword_argument" and len(first["loc"]) > 1:
        return unknown_field(".".join(str(part) for part in first["loc"]), ())
    return refusal(errors, known=known, hint=_SHAPES.get(str(first["loc"][0]) if first["loc"] else ""))


_SHAPES = {"network": 'it is "deny", "open", or an object such as {"allow": ["api.example.com:443"]}'}
"""Of fields that may be of several kinds, which a reason alone does not show."""
