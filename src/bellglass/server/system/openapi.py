"""/v1/openapi.json: what FastAPI knows of the signatures, with bodies, answers, errors and examples added.

Bodies are read by `http.bodies` and not by the framework, so their schemas come from the same records here.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

import bellglass.model
from bellglass import __version__
from bellglass.errors import BellglassError, Forbidden, InternalError, InvalidRequest, Unauthorized
from bellglass.server.http.actions import ActionRoute, Description

JSON = "application/json"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint", "retryable", "details", "request_id"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "hint": {"type": ["string", "null"]},
                "retryable": {"type": "boolean"},
                "details": {"type": "object"},
                "request_id": {"type": ["string", "null"]},
            },
        }
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The document, made at the first call and then kept."""
    if app.openapi_schema is None:
        app.openapi_schema = _build(app)
    return app.openapi_schema


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title="Bellglass", version=__version__, routes=app.routes)
    components: dict[str, Any] = {"Error": ERROR}
    for route in app.routes:
        if isinstance(route, ActionRoute):
            for method in route.methods or ():
                _complete(document["paths"][route.path_format][method.lower()], route.described, components)
    document["components"] = {
        "schemas": components,
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    return document


def _complete(operation: dict[str, Any], described: Description, components: dict[str, Any]) -> None:
    if described.access != "public":
        operation["security"] = [{"key": []}]
    for name, text in described.headers.items():
        header = {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        operation.setdefault("parameters", []).append(header)
    if described.body is not None:
        operation["requestBody"] = _body(described, components)
    operation["responses"] = _answers(described, components) | _errors(described)


def _body(described: Description, components: dict[str, Any]) -> dict[str, Any]:
    if isinstance(described.body, str):
        content = {described.body: {"schema": {"type": "string", "format": "binary"}}}
        return {"required": described.body_required, "content": content}
    assert described.body is not None
    media: dict[str, Any] = {"schema": _schema(described.body, components)}
    if described.example is not None:
        media["example"] = described.example
    return {"required": True, "content": {JSON: media}}


def _answers(described: Description, components: dict[str, Any]) -> dict[str, Any]:
    statuses = {described.status}
    if described.action == "sandbox.create" or described.action == "exec.create" or described.action == "file.write":
        statuses |= {200, 201}
    elif described.action == "file.read":
        statuses |= {200, 206}
    answers = {}
    for status in sorted(statuses):
        answers[str(status)] = _answer(described, status, components)
    return answers


def _answer(described: Description, status: int, components: dict[str, Any]) -> dict[str, Any]:
    kind = described.answer
    if kind is None:
        return {"description": "Done."}
    if described.action in ("exec.create", "exec.output"):
        if status == 201:
            kind = bellglass.model.Execution
        else:
            binary = {"schema": {"type": "string", "format": "binary"}}
            return {
                "description": "The output, in the format of Accept.",
                "content": {
                    JSON: {"schema": _schema(kind, components)},
                    "application/x-ndjson": binary,
                    "application/x-bellglass-frames": binary,
                },
            }
    if isinstance(kind, str) and ":" not in kind:
        return {"description": "The bytes.", "content": {kind: {"schema": {"type": "string", "format": "binary"}}}}
    media: dict[str, Any] = {"schema": _answer_schema(kind, components)}
    if described.answer_example is not None:
        media["example"] = described.answer_example
    content = {JSON: media}
    if described.action in ("event.list", "event.list_all"):
        content["application/x-ndjson"] = {"schema": {"type": "string", "format": "binary"}}
    return {"description": "Done.", "content": content}


def _answer_schema(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    """`page:Sandbox` is a page of them with a cursor, `list:FileInfo` a list that may be cut."""
    if kind is dict:
        return {"type": "object"}
    if not isinstance(kind, str):
        return _schema(kind, components)
    shape, _, name = kind.partition(":")
    items = {"type": "array", "items": _schema(getattr(bellglass.model, name), components)}
    if shape == "page":
        properties = {"items": items, "cursor": {"type": ["string", "null"]}}
    else:
        properties = {"items": items, "truncated": {"type": "boolean"}}
    return {"type": "object", "required": list(properties), "properties": properties}


def _errors(described: Description) -> dict[str, Any]:
    """One entry per status; the codes that it can have are in its description."""
    kinds: list[type[BellglassError]] = [InvalidRequest, InternalError, *described.errors]
    if described.access != "public":
        kinds.append(Unauthorized)
    if described.access in ("project", "admin"):
        kinds.append(Forbidden)
    by_status: dict[int, list[str]] = {}
    for kind in kinds:
        codes = by_status.setdefault(kind.status, [])
        if kind.code not in codes:
            codes.append(kind.code)
    return {
        str(status): {
            "description": " or ".join(f"`{code}`" for code in codes),
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, codes in sorted(by_status.items())
    }


def _schema(record: Any, components: dict[str, Any]) -> dict[str, Any]:
    """A reference to the record's schema, which goes into the components together with those that it uses."""
    if record.__name__ not in components:
        schema = TypeAdapter(record).json_schema(ref_template="#/components/schemas/{model}")
        components.update(schema.pop("$defs", {}))
        components[record.__name__] = schema
    return {"$ref": f"#/components/schemas/{record.__name__}"}
