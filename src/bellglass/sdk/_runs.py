"""What a run of code gave, on the client's side: the lines of its answer put together."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bellglass.errors import BellglassError, KernelDied, from_dict
from bellglass.sdk._http import sandbox_path
from bellglass.wire import untrusted


@dataclass(frozen=True)
class Result:
    """One thing that the code showed: the value of its last expression (`is_main`), or what it displayed.

    `data` has every form of it by MIME type, pictures and PDF as base64; `chart` the numbers behind a plot, `frame` the
    columns of a data frame. `dropped` names forms that were too large, with their sizes in bytes."""

    is_main: bool
    data: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        return self._text("image/svg+xml")

    @property
    def latex(self) -> str | None:
        return self._text("text/latex")

    @property
    def javascript(self) -> str | None:
        return self._text("application/javascript")

    @property
    def json(self) -> Any:
        return self.data.get("application/json")

    @property
    def png(self) -> bytes | None:
        return self._bytes("image/png")

    @property
    def jpeg(self) -> bytes | None:
        return self._bytes("image/jpeg")

    @property
    def pdf(self) -> bytes | None:
        return self._bytes("application/pdf")

    @property
    def chart(self) -> Mapping[str, Any] | None:
        return self._mapping("chart")

    @property
    def frame(self) -> Mapping[str, Any] | None:
        return self._mapping("data")

    def __repr__(self) -> str:
        return f"<Result{' main' if self.is_main else ''} {', '.join(self.data)}>"

    # Which kind of value stands under a type is the sandbox's word; one of another kind is none.

    def _text(self, mime: str) -> str | None:
        found = self.data.get(mime)
        return found if isinstance(found, str) else None

    def _mapping(self, mime: str) -> Mapping[str, Any] | None:
        found = self.data.get(mime)
        return found if isinstance(found, Mapping) else None

    def _bytes(self, mime: str) -> bytes | None:
        encoded = self.data.get(mime)
        if not isinstance(encoded, str):
            return None
        try:
            return base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            return None  # the sandbox's word for it


@dataclass(frozen=True)
class CodeError:
    """What the code raised."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True)
class RunResult:
    """How a run of code ended, and what it gave.

    `ok`: it raised nothing and was not stopped. `text` is the main result's. `truncated`: output is missing, of a
    reader that came back too late."""

    run_id: str
    context_id: str
    results: list[Result]
    stdout: str
    stderr: str
    error: CodeError | None
    execution_count: int | None
    timed_out: bool
    interrupted: bool
    state_lost: bool
    """The kernel is another one than that of the run before, or it died in this one: variables are gone."""
    truncated: bool
    duration_s: float

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out and not self.interrupted

    @property
    def main(self) -> Result | None:
        return next((result for result in self.results if result.is_main), None)

    @property
    def text(self) -> str | None:
        return self.main.text if self.main is not None else None

    @property
    def png(self) -> bytes | None:
        """The first picture."""
        return next((result.png for result in self.results if result.png is not None), None)

    @property
    def chart(self) -> Mapping[str, Any] | None:
        """The first one."""
        return next((result.chart for result in self.results if result.chart is not None), None)

    def __repr__(self) -> str:
        flags = "".join(f" {name}" for name in ("timed_out", "interrupted", "state_lost") if getattr(self, name))
        what = f" {self.error.name}" if self.error else ""
        return f"<RunResult {self.run_id}{what}{flags} {len(self.results)} results>"


class RunCollector:
    """Takes the lines of an answer. `result` and `ending` once `end` came."""

    def __init__(self, context_id: str) -> None:
        self.context_id = context_id
        self.ending: dict[str, Any] | None = None
        self.offset: int | None = None
        """Where to go on after a break."""
        self._results: list[Result] = []
        self._pieces: dict[str, tuple[bool, list[str]]] = {}
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._error: CodeError | None = None
        self._state_lost = self._truncated = False

    def feed(self, line: dict[str, Any]) -> Result | None:
        """A result that this line made whole."""
        kind = line.get("type")
        self.offset = line.get("offset", self.offset)
        if kind in self._texts:
            self._texts[kind].append(line["text"])
        elif kind == "started":
            self._state_lost = bool(line.get("state_lost"))
        elif kind == "error":
            self._error = CodeError(line["name"], line["value"], line["traceback"])
        elif kind == "skipped":
            self._truncated = True
        elif kind == "end":
            self.ending = line
        elif kind == "result":
            return self._result(line)
        return None

    def finish(self) -> RunResult:
        """Raises KernelDied, and the error of a run whose outcome is not known; `result` is what it gave until then."""
        ending = self.ending or {}
        result = RunResult(
            run_id=str(ending.get("run_id", "")),
            context_id=self.context_id,
            results=self._results,
            stdout="".join(self._texts["stdout"]),
            stderr="".join(self._texts["stderr"]),
            error=self._error,
            execution_count=ending.get("execution_count"),
            timed_out=bool(ending.get("timed_out")),
            interrupted=bool(ending.get("interrupted")),
            state_lost=self._state_lost or ending.get("status") == "died",
            truncated=self._truncated,
            duration_s=float(ending.get("duration_s") or 0.0),
        )
        if ending.get("error") is not None:
            raise _with(from_dict({"error": ending["error"]}), result)
        return result

    def _result(self, line: dict[str, Any]) -> Result | None:
        if "piece" not in line:
            return self._add(line, line.get("data") or {})
        self._pieces.setdefault(line["mime"], (bool(line.get("json")), []))[1].append(line["piece"])
        if not line.get("last"):
            return None
        whole = {mime: _whole(is_json, parts) for mime, (is_json, parts) in self._pieces.items()}
        self._pieces = {}
        return self._add(line, whole)

    def _add(self, line: dict[str, Any], data: Mapping[str, Any]) -> Result:
        self._results.append(Result(bool(line.get("main")), data, line.get("dropped") or {}))
        return self._results[-1]


def _whole(is_json: bool, pieces: list[str]) -> Any:
    text = "".join(pieces)
    if not is_json:
        return text
    try:
        return untrusted.parse(text)
    except ValueError:
        return text  # the sandbox's word for it


def _with(error: BellglassError, result: RunResult) -> BellglassError:
    if isinstance(error, KernelDied):
        error.result = result
    return error


def context_path(sandbox_id: str, context_id: str) -> str:
    return f"{sandbox_path(sandbox_id)}/contexts/{context_id}"
