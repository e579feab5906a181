"""Messages of requests: proto3's JSON, read leniently where the format is (unknown fields, null, both spellings of a
name, numbers as text) and strictly in everything else."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from bellglass.server.compat.e2b.envd.errors import ConnectError
from bellglass.server.http.validation import shown

_UPPER = re.compile(r"[A-Z]")


class Message:
    """One JSON object. The getters raise ConnectError (invalid_argument) that names the field."""

    __slots__ = ("_fields", "_place")

    def __init__(self, fields: Mapping[str, Any], place: str = "") -> None:
        self._fields = fields
        self._place = place

    def has(self, name: str) -> bool:
        return self._get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def number(self, name: str, default: int = 0) -> int:
        """An unsigned one of 32 bits."""
        value = self._get(name)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value, re.ASCII):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
            raise self._wrong(name, value, "a number from 0 to 4294967295")
        return value

    def is_number(self, name: str) -> bool:
        value = self._get(name)
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    def octets(self, name: str) -> bytes | None:
        """Base64 of either alphabet, with or without its padding."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(name, value, "base64")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
        try:
            plain = value.translate(_URL_SAFE).rstrip("=")
            return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise self._wrong(name, value, "base64") from None

    def texts(self, name: str) -> list[str]:
        value = self._get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of texts")
        return value

    def text_map(self, name: str) -> dict[str, str]:
        value = self._get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            # Never repeated: environments hold secrets.
            raise ConnectError("invalid_argument", f"{self._place}{name}: not an object of texts")
        return value

    def message(self, name: str) -> Message | None:
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Message(value, f"{self._place}{name}.")

    def _get(self, name: str) -> Any:
        value = self._fields.get(name)
        if value is None and _UPPER.search(name):
            value = self._fields.get(_UPPER.sub(lambda upper: "_" + upper[0].lower(), name))
        return value

    def _wrong(self, name: str, value: Any, wanted: str) -> ConnectError:
        return ConnectError("invalid_argument", f"{self._place}{name}: {shown(value)} is not {wanted}")


_URL_SAFE = str.maketrans("-_", "+/")


def parse(raw: bytes) -> Message:
    """Raises ConnectError: no JSON, or no object."""
    try:
        value = from_json(raw, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise ConnectError("invalid_argument", f"the message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConnectError("invalid_argument", "the message is not a JSON object")
    return Message(value)
