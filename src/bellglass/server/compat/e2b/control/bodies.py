"""Bodies of E2B's clients: JSON objects with values of the kinds that its specification names.

A field that is not known here is refused when it says anything: it would be a wish that nobody hears.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request

from bellglass.errors import InvalidRequest
from bellglass.server.http.bodies import read_body
from bellglass.server.http.validation import shown


class Body:
    """Fields are taken one by one; `done` refuses what is left. Errors name the field."""

    def __init__(self, fields: dict[str, Any], where: str = "") -> None:
        self._left = dict(fields)
        self._where = where

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value, or the default where it is absent or null. A bool is no number."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            words = " or ".join(_WORDS[kind] for kind in kinds)
            raise InvalidRequest(f"{self._where}{name}: {shown(value)} is not {words}")
        return value

    def strings(self, name: str) -> dict[str, str]:
        """An object whose values are strings."""
        value = self.take(name, dict, {})
        for key, text in value.items():
            if not isinstance(text, str):
                raise InvalidRequest(f"{self._where}{name}.{key[:80]}: the value is not a string")
        return dict(value)

    def words(self, name: str) -> list[str] | None:
        """A list of strings, None where it is absent."""
        value = self.take(name, list)
        if value is not None and not all(isinstance(word, str) for word in value):
            raise InvalidRequest(f"{self._where}{name}: {shown(value)} is not a list of strings")
        return value

    def inner(self, name: str) -> Body | None:
        value = self.take(name, dict)
        return None if value is None else Body(value, f"{self._where}{name}.")

    def left(self) -> Iterable[str]:
        """Names of fields that nobody took and that say anything."""
        return [name for name, value in self._left.items() if value not in (None, False, "", [], {})]

    def done(self) -> None:
        for name in self.left():
            raise InvalidRequest(
                f"{self._where}{name[:80]}: unknown field", hint="Bellglass would not do what it asks for"
            )


_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "an object",
          list: "a list"}  # fmt: skip


async def read(request: Request, limit_bytes: int) -> Body:
    """Raises InvalidRequest, TooLarge. No body at all is an empty object."""
    raw = await read_body(request, limit_bytes)
    if not raw:
        return Body({})
    try:
        value = from_json(raw, cache_strings="none")
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body is not a JSON object")
    return Body(value)
