"""What a kernel host writes, cut into lines and checked. The bytes are an attacker's until they have been through here.

A line over the limit, or one that is not a JSON object of a known shape, breaks the host: `HostBroken`. Events of a
kind that is unknown are a newer host's and passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bellglass.wire import untrusted

MAX_LINE_BYTES = 256 * 1024
MAX_RUN_ID = 64
MAX_NUMBER = 2**53 - 1
"""What every reader of JSON takes for the same number."""
MAX_DEATH = 64
"""Characters of signal and code: they become part of an error."""
DEATHS = ("exited", "signal", "oom", "unresponsive")


class HostBroken(Exception):
    """It does not speak its protocol (any more). The message tells how, in words of ours."""


class HostEvent(NamedTuple):
    """`run` is None where it is about no run. `end` is the combined offset behind its line, where a reader can go on.
    `value` has the checked fields of its kind."""

    kind: str
    run: str | None
    value: dict[str, Any]
    end: int


class Lines:
    """Pieces of standard output in, events out. `skipped` tells that bytes are missing in front of the next piece."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._torn = False

    def skipped(self) -> None:
        self._rest.clear()
        self._torn = True

    def feed(self, offset: int, data: bytes) -> Iterator[HostEvent]:
        """`offset`: the combined offset of the first byte. Raises HostBroken."""
        start = 0
        while (cut := data.find(b"\n", start)) >= 0:
            line = bytes(self._rest) + data[start:cut]
            self._rest.clear()
            start = cut + 1
            if self._torn:
                self._torn = False
            elif line and (event := _read(line, offset + start)) is not None:
                yield event
        if not self._torn:
            self._rest += data[start:]
            if len(self._rest) > MAX_LINE_BYTES:
                raise HostBroken(f"a line over {MAX_LINE_BYTES} bytes")


def _read(line: bytes, end: int) -> HostEvent | None:
    if len(line) > MAX_LINE_BYTES:
        raise HostBroken(f"a line over {MAX_LINE_BYTES} bytes")
    try:
        said = untrusted.parse(line, deepest=None)
    except ValueError:
        raise HostBroken("a line that is no JSON") from None
    if not isinstance(said, dict):
        raise HostBroken("a line that is no JSON object")
    kind = said.get("event")
    if kind is not None and not isinstance(kind, str):
        raise HostBroken(f"an event whose kind is {type(kind).__name__}")
    if kind not in _FIELDS:
        return None
    run = said.get("run")
    if run is not None and not (isinstance(run, str) and len(run) <= MAX_RUN_ID):
        raise HostBroken("a run that is no id")
    value = {}
    for name, (types, default) in _FIELDS[kind].items():
        given = said.get(name, default)
        # True is an int to Python, and no count.
        if not isinstance(given, types) or (isinstance(given, bool) and bool not in types):
            raise HostBroken(f"{kind} whose {name} is {type(given).__name__}")
        if isinstance(given, int) and abs(given) > MAX_NUMBER:
            raise HostBroken(f"{kind} whose {name} is beyond every count")
        value[name] = given
    if kind == "result":
        _check_result(value, len(line))
    if kind == "died" and value["reason"] not in DEATHS:
        raise HostBroken("a death without a known reason")
    if kind == "died" and len(f"{value['signal']}{value['code']}") > MAX_DEATH:
        raise HostBroken("a death with a signal or a code that is none")
    return HostEvent(kind, run, value, end)


def _check_result(value: dict[str, Any], size: int) -> None:
    """A value that is nested too deeply for others to read is left out, and named like one that is too large."""
    if (value["piece"] is None) != (value["mime"] is None):
        raise HostBroken("a piece of a result without its kind")
    if untrusted.is_deep(value["dropped"]):
        raise HostBroken("a result whose dropped is nested deeply")
    deep = [mime for mime, content in (value["data"] or {}).items() if untrusted.is_deep(content)]
    if deep:
        value["data"] = {mime: content for mime, content in value["data"].items() if mime not in deep}
        value["dropped"] = (value["dropped"] or {}) | dict.fromkeys(deep, size)


_TEXT, _FLAG, _NUMBER, _OBJECT = (str,), (bool,), (int,), (dict,)
_OR_NONE = type(None)
_FIELDS: dict[str, dict[str, tuple[tuple[type, ...], Any]]] = {
    "ready": {"language": (_TEXT, ""), "state_lost": (_FLAG, False)},
    "started": {"count": ((int, _OR_NONE), None), "state_lost": (_FLAG, False)},
    "stdout": {"text": (_TEXT, None)},
    "stderr": {"text": (_TEXT, None)},
    "result": {
        "main": (_FLAG, False),
        "data": ((dict, _OR_NONE), None),
        "part": ((int, _OR_NONE), None),
        "last": (_FLAG, True),
        "mime": ((str, _OR_NONE), None),
        "piece": ((str, _OR_NONE), None),
        "json": (_FLAG, False),
        "dropped": ((dict, _OR_NONE), None),
    },
    "error": {"name": (_TEXT, None), "value": (_TEXT, None), "traceback": (_TEXT, None)},
    "died": {"reason": (_TEXT, None), "signal": ((str, int, _OR_NONE), None), "code": ((int, _OR_NONE), None)},
    "end": {},
}
"""Of each kind: the fields that count, their types, and what stands for one that is missing (None fails, where None is
no type of it)."""
