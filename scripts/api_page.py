"""docs/reference/api.md from the server's own OpenAPI document: every route with its parameters, bodies and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bellglass.server.app import make_fastapi
from bellglass.server.http.websockets import SocketRoute
from bellglass.server.system.openapi import describe

METHODS = ("get", "head", "post", "put", "patch", "delete")
INTRODUCTION = """\
# HTTP API

`Authorization: Bearer <key>` on every call but `GET /v1/health` and `GET /v1/openapi.json`. Bodies are JSON unless
said otherwise; an unknown field is refused. Errors have one shape, in [errors.md](errors.md). Each answer carries
`X-Request-Id`. Lists answer `{"items": [...], "cursor": "..."}`; pass the cursor on for the next page, `null` is the
end. Sizes are bytes or `"512MiB"`, times seconds or `"15m"`.

`Idempotency-Key` on `POST /v1/sandboxes`: the same key and body give the same answer for 24 hours, also while the
first call is under way; another body gives 409. An execution's own `id` does that for executions.

The output of an execution comes by `Accept`: `application/json` (one object at the end, head and tail of each stream),
`application/x-ndjson` (`{"stream": "stdout", "offset": 0, "text": "..."}` a line, `b64` in place of `text` where bytes
are not UTF-8) or `application/x-bellglass-frames`. A stream ends with one `exit` or `error`; one with neither was
cut: ask for `GET .../output?offset=` again. In 15 s of silence a keepalive is sent.
"""

SOCKETS = """\
# WebSockets

Opened with the same `Authorization` header. What is wrong is answered before the handshake, with the status and the
shape of every other error; after it by a message `{"type": "error", "error": {...}}` and a close with 4000 + the
status. Messages in braces are text, `bytes` are binary; one from a client has at most 1 MiB. A server that goes down
closes with 1012, a revoked key cuts.
"""


def api_page(generated: str) -> str:
    document = describe(make_fastapi())
    schemas = document["components"]["schemas"]
    lines = [generated, INTRODUCTION]
    for path, item in document["paths"].items():
        for method in METHODS:
            if operation := item.get(method):
                lines += _route(path, method, operation)
    lines += [SOCKETS]
    for route in make_fastapi().routes:
        if isinstance(route, SocketRoute):
            lines += _socket(route)
    lines.append("# Records\n")
    for name, schema in schemas.items():
        lines += _record(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _socket(route: SocketRoute) -> list[str]:
    about = " ".join(route.about.split())
    lines = [f"## WebSocket `{route.path}`", "", f"{about} Action `{route.action}`.", ""]
    if route.queries:
        lines += ["| query parameter | |", "|---|---|"]
        lines += [f"| `{name}` | {what} |" for name, what in route.queries.items()]
        lines.append("")
    lines += ["| message | | |", "|---|---|---|"]
    names = {"out": "to the client", "in": "from the client"}
    lines += [f"| {names[one.direction]} | `{one.shape}` | {one.what} |" for one in route.messages]
    return [*lines, ""]


def _route(path: str, method: str, operation: Mapping[str, Any]) -> list[str]:
    lines = [f"## `{method.upper()} {path}`", "", f"{operation['summary']} Action `{operation['operationId']}`.", ""]
    parameters = [p for p in operation.get("parameters", []) if p["in"] != "path"]
    if parameters:
        lines += ["| parameter | in | kind | |", "|---|---|---|---|"]
        for parameter in parameters:
            schema = parameter["schema"]
            default = f"default `{schema['default']}`" if schema.get("default") is not None else ""
            text = "; ".join(filter(None, (parameter.get("description"), default)))
            lines.append(f"| `{parameter['name']}` | {parameter['in']} | {_kind(schema)} | {text} |")
        lines.append("")
    if body := operation.get("requestBody"):
        lines += [f"Body: {_content(body['content'])}.", ""]
    for status, answer in operation["responses"].items():
        if status.startswith(("2", "3")):
            lines += [f"{status}: {_content(answer.get('content', {})) or answer['description']}", ""]
    errors = [f"{status} {answer['description']}" for status, answer in operation["responses"].items() if status >= "4"]
    lines += [f"Errors: {', '.join(errors)}.", ""]
    return lines


def _content(content: Mapping[str, Any]) -> str:
    return ", ".join(f"{_kind(value.get('schema', {}))} ({media})" for media, value in content.items())


def _record(name: str, schema: Mapping[str, Any]) -> list[str]:
    lines = [f"## {name}", ""]
    if text := schema.get("description"):
        lines += [" ".join(str(text).split()), ""]
    if properties := schema.get("properties"):
        required = schema.get("required", [])
        lines += ["| field | kind | default |", "|---|---|---|"]
        for field, value in properties.items():
            default = "required" if field in required else f"`{value['default']}`" if "default" in value else ""
            lines.append(f"| `{field}` | {_kind(value)} | {default} |")
        lines.append("")
    return lines


def _kind(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_kind(option) for option in options))
    if "const" in schema:
        return f"`{schema['const']}`"
    if values := schema.get("enum"):
        return " or ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {_kind(schema['additionalProperties'])}"
    if schema.get("format") == "binary":
        return "bytes"
    return str(schema.get("type", "any"))
