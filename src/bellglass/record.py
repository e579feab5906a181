"""What the records of the API have in common: JSON both ways, without pydantic.

Each is a frozen dataclass that also serves as a pydantic body (unknown fields and NaN are refused); `to_json` and
`from_json` are for those who don't have pydantic: the node and the SDK. Readers of answers are lenient (`from_json`
drops what it doesn't know), readers of requests are strict.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self


class Record:
    """Base of the records: JSON both ways. Nested records, lists and dicts of them are followed."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        hints = _hints(cls)  # type: ignore[arg-type]
        return cls(**{name: _typed(hints[name], value) for name, value in data.items() if name in hints})


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Of the fields. Kept: to evaluate them takes longer than all else, and a list of rules has hundreds of records."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _typed(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            if isinstance(option, type) and issubclass(option, Record) and isinstance(value, Mapping):
                return option.from_json(value)
            if isinstance(value, list) and typing.get_origin(option) is list:
                return _typed(option, value)
        return value
    if origin is list and arguments:
        return [_typed(arguments[0], item) for item in value]
    if origin is dict and arguments:
        return {key: _typed(arguments[1], item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value)
    return value
