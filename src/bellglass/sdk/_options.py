"""The options of a create: their names, the refusal of others, and the request body that they become.

Values are the server's to judge; here they only get a JSON form, and a clear error where they have none.
"""

from __future__ import annotations

import base64
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from bellglass.errors import InvalidRequest, TooLarge
from bellglass.model import MAX_INPUTS_BYTES, NetworkPolicy
from bellglass.sdk._network import Network, network_body

Size = int | float | str
Duration = int | float | str


class SandboxOptions(TypedDict, total=False):
    """Keyword options of `Sandbox(...)`; what is left out gets the server's default, which `info()` tells."""

    name: str | None
    owner: str | None
    labels: Mapping[str, str]
    env: Mapping[str, str]
    inputs: Mapping[str, str | bytes | Path]
    user: str | None
    workdir: str | None
    cpus: float
    memory: Size
    disk: Size
    pids: int
    lifetime: Duration
    idle_timeout: Duration | None
    isolation: str | None
    at_least: str | None
    network: str | Network | NetworkPolicy
    identity: bool
    auto_publish: Literal["private", "public"] | None
    auto_publish_host: str | None
    auto_publish_tls: Sequence[int]
    api_url: str | None
    api_key: str | None


# What other products call these things.
_MEANT = {
    "timeout": "lifetime",
    "ttl": "lifetime",
    "cpu": "cpus",
    "vcpus": "cpus",
    "mem": "memory",
    "ram": "memory",
    "memory_mb": "memory",
    "image": "template",
    "envs": "env",
    "environment": "env",
    "env_vars": "env",
    "metadata": "labels",
    "tags": "labels",
    "files": "inputs",
    "cwd": "workdir",
    "working_dir": "workdir",
    "tier": "isolation",
    "runtime": "isolation",
}


def refuse_unknown(call: str, given: Mapping[str, Any], known: Mapping[str, Any] | set[str]) -> None:
    """Raise TypeError for the first option that does not exist, with the one that was probably meant."""
    for option in given:
        if option in known:
            continue
        meant = _MEANT.get(option)
        if meant is None or (meant not in known and meant != "template"):
            close = difflib.get_close_matches(option, list(known), n=1, cutoff=0.6)
            meant = close[0] if close else None
        raise TypeError(f"{call} has no option {option!r}" + (f"; did you mean {meant!r}?" if meant else ""))


def create_body(template: str, options: Mapping[str, Any], *, get_or_create: bool = False) -> dict[str, Any]:
    """The JSON body of a create. Raises InvalidRequest for a value with no JSON form, TooLarge for too much input."""
    body: dict[str, Any] = {"template": template}
    for option, value in options.items():
        if value is None or option in ("api_url", "api_key"):
            continue
        if option == "inputs":
            value = _inputs(value)
        elif option == "network":
            value = network_body(value)
        elif option in ("labels", "env"):
            if not isinstance(value, Mapping):
                raise invalid(option, value, "is not a mapping")
            value = dict(value)
        elif isinstance(value, Path):
            value = str(value)
        body[option] = value
    if get_or_create:
        body["get_or_create"] = True
    for option, value in body.items():
        check_json(option, value)
    return body


def invalid(field: str, value: object, why: str, hint: str | None = None) -> InvalidRequest:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InvalidRequest(f"{field}: {shown} {why}", hint=hint, details={"field": field})


def check_json(field: str, value: Any) -> None:
    """Raise InvalidRequest, naming the field, for a value that JSON can't carry."""
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(field, value, "is not a number that can be sent")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(field, value, f"can't be sent as JSON: {error}") from error


def _inputs(files: Any) -> dict[str, dict[str, str]]:
    if not isinstance(files, Mapping):
        raise invalid("inputs", files, "is not a mapping of names to contents")
    encoded, total = {}, 0
    for name, content in files.items():
        if isinstance(content, Path):
            size = content.stat().st_size
            if total + size > MAX_INPUTS_BYTES:
                raise _too_large(total + size)
            content = content.read_bytes()
        if isinstance(content, str):
            total += len(content.encode("utf-8", "surrogatepass"))
            encoded[name] = {"text": content}
        elif isinstance(content, (bytes, bytearray, memoryview)):
            total += len(content)
            encoded[name] = {"b64": base64.b64encode(content).decode("ascii")}
        else:
            raise invalid(f"inputs[{name!r}]", content, "is not text, bytes or a Path")
    if total > MAX_INPUTS_BYTES:
        raise _too_large(total)
    return encoded


def _too_large(total: int) -> TooLarge:
    return TooLarge(
        f"inputs: {total} bytes are over the limit of {MAX_INPUTS_BYTES}",
        hint="write larger files with box.files after the create",
        details={"field": "inputs", "limit_bytes": MAX_INPUTS_BYTES},
    )
