"""What pydantic found wrong, as one InvalidRequest that names the field, the value and the next step.

Values of `env`, `inputs` and `stdin` are the caller's secrets as likely as not: they are never repeated.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from bellglass.errors import InvalidRequest

PRIVATE_FIELDS = frozenset({"env", "inputs", "stdin", "secret"})
_SHOWN = 80


def shown(value: Any) -> str:
    """A value as it appears in a message: its repr, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def refuse(field: str, value: object, why: str, hint: str | None = None) -> InvalidRequest:
    """To be raised: `field: value why`."""
    return InvalidRequest(f"{field}: {shown(value)} {why}", hint=hint, details={"field": field})


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """`did you mean 'lifetime'?` for a name that nobody knows, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None


def unknown_field(name: str, known: Sequence[str], *, kind: str = "field") -> InvalidRequest:
    hint = did_you_mean(name, known) or (f"known: {', '.join(sorted(known))}" if known else None)
    return InvalidRequest(f"{shown(name)}: unknown {kind}", hint=hint, details={"field": str(name)[:200]})


def refusal(
    errors: Sequence[Any], *, skip: int = 0, known: Sequence[str] = (), hint: str | None = None
) -> InvalidRequest:
    """The first of pydantic's errors as InvalidRequest. `skip` drops so many parts of the place (such as "query")."""
    first = errors[0]
    place = [str(part) for part in first["loc"][skip:]]
    # A union lists each of its types as a part of the place: `memory.int`; only the field is of interest.
    if first["type"] not in _MISSING and _of_union(errors, skip):
        place = place[:1]
        if deeper := _inside_a_branch(errors, skip):
            # One of the types fits but for something inside of it: that is what was meant.
            first, place = deeper, _named(deeper["loc"][skip:])
            errors = [first]
    if first["type"] == "unexpected_keyword_argument" or first["type"] == "extra_forbidden":
        return unknown_field(place[-1], known) if len(place) == 1 else unknown_field(".".join(place), ())
    field = ".".join(place) or "body"
    if first["type"] in _MISSING:
        return InvalidRequest(f"{field}: is missing", hint=hint, details={"field": field})
    value = "" if PRIVATE_FIELDS & set(place) else f" {shown(first.get('input'))}"
    return InvalidRequest(f"{field}:{value} is not valid: {_reason(errors, skip)}", hint=hint, details={"field": field})


_MISSING = frozenset({"missing", "missing_argument"})
_BRANCH = re.compile(r"(str|int|float|bool|[a-z]+\[.*\]|[A-Z][A-Za-z]*)")
"""How pydantic calls a union's types in the place of an error. No field of a record is called so."""


def _inside_a_branch(errors: Sequence[Any], skip: int) -> Any | None:
    """The error that lies deepest, where it lies deeper than a type of the union itself."""
    deepest = max(errors, key=lambda error: len(_named(error["loc"][skip:])))
    return deepest if len(_named(deepest["loc"][skip:])) > 1 else None


def _named(place: Sequence[Any]) -> list[str]:
    return [str(part) for number, part in enumerate(place) if number == 0 or not _BRANCH.fullmatch(str(part))]


def _of_union(errors: Sequence[Any], skip: int) -> bool:
    heads = {error["loc"][skip : skip + 1] for error in errors}
    return len(errors) > 1 and len(heads) == 1


def _reason(errors: Sequence[Any], skip: int) -> str:
    if not _of_union(errors, skip):
        return _lower(errors[0]["msg"])
    reasons = dict.fromkeys(_lower(error["msg"]) for error in errors)
    return "; or ".join(reasons)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
