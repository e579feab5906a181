"""Bodies of E2B's code interpreter. Fields that it does not know are passed over, as there."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from bellglass.errors import InvalidRequest
from bellglass.server.http.bodies import read_body

MAX_BODY = 8 * 1024 * 1024
Body = TypeVar("Body", bound=BaseModel)


class Execute(BaseModel):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class NewContext(BaseModel):
    language: str | None = None
    cwd: str | None = None


async def read(request: Request, kind: type[Body]) -> Body:
    """An empty body is an empty object. Raises InvalidRequest, TooLarge."""
    raw = await read_body(request, MAX_BODY)
    try:
        return kind.model_validate_json(raw or b"{}", strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidRequest(f"{place}: {first['msg'].lower()}", details={"field": place}) from None
