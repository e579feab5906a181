"""An execution's output and outcome on the client's side: bounded collection, text, and reading it as JSON.

Output is bytes. Text is its UTF-8 with one U+FFFD for each thing that is not: a character cut by the program's end
gives exactly one, a character cut by the network or by where `max_output` left bytes out gives none.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bellglass.errors import ExecutionFailed, InvalidRequest, OutputInvalid
from bellglass.wire.output import HeadTail, OutputEvent, OutputType

DEFAULT_MAX_OUTPUT = "16MiB"
_STDERR_LINES = 5
_STDERR_CHARACTERS = 2000
_STREAMS = {OutputType.STDOUT: "stdout", OutputType.STDERR: "stderr", OutputType.SKIPPED: "skipped"}


@dataclass(frozen=True)
class ExecResult:
    """How an execution ended, and its output.

    `stdout` and `stderr` are text, `stdout_raw` and `stderr_raw` the exact bytes. `exit_code` is 128 + the signal's
    number for a killed one, and `signal` that signal's name. `truncated`: output is missing, in the middle (there was
    more than `max_output`: the first and last halves are kept) or at the start (it fell out of the log's ring)."""

    execution_id: str
    exit_code: int
    signal: str | None
    timed_out: bool
    oom_killed: bool
    oom_ambiguous: bool
    truncated: bool
    duration_s: float
    stdout_raw: bytes
    stderr_raw: bytes
    stdout_total_bytes: int
    stderr_total_bytes: int
    stdout_cut: int | None = None
    """Where in `stdout_raw` the bytes that `max_output` left out were."""
    stderr_cut: int | None = None

    @property
    def ok(self) -> bool:
        """It exited with 0 and was not killed."""
        return self.exit_code == 0 and self.signal is None and not self.timed_out and not self.oom_killed

    @cached_property
    def stdout(self) -> str:
        return decode(self.stdout_raw, self.stdout_cut)

    @cached_property
    def stderr(self) -> str:
        return decode(self.stderr_raw, self.stderr_cut)

    def __repr__(self) -> str:
        flags = "".join(f" {name}" for name in ("timed_out", "oom_killed", "truncated") if getattr(self, name))
        return (
            f"<ExecResult {self.execution_id} exit_code={self.exit_code}"
            f"{f' signal={self.signal}' if self.signal else ''}{flags} stdout={_short(self.stdout)!r}"
            f" stderr={_short(self.stderr)!r}>"
        )

    def json(self, *, schema: Mapping[str, Any] | bool | None = None, max_bytes: int | None = None) -> Any:
        """Standard output as one JSON value that fits the JSON Schema `schema`.

        Raises OutputInvalid, with `details.reason` one of `truncated`, `too_large` (over `max_bytes`), `not_utf8`,
        `not_json` (NaN and infinities are not), `schema`; InvalidRequest when `schema` itself is wrong."""
        if max_bytes is not None and self.stdout_total_bytes > max_bytes:
            raise self._invalid("too_large", f"{self.stdout_total_bytes} bytes are over max_bytes={max_bytes}")
        if self.stdout_total_bytes > len(self.stdout_raw) or self.truncated:
            raise self._invalid("truncated", "part of it is missing", hint="a larger max_output keeps more")
        try:
            text = self.stdout_raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._invalid("not_utf8", str(error)) from error
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise self._invalid("not_json", str(error)) from error
        if schema is not None:
            self._check(value, schema)
        return value

    def _check(self, value: Any, schema: Mapping[str, Any] | bool) -> None:
        # Late: they take 0.1 s to import. The registry is empty so that no $ref is ever fetched.
        import jsonschema
        import referencing
        from jsonschema.exceptions import SchemaError, best_match

        validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            validator_class.check_schema(schema)  # type: ignore[arg-type]
            errors = list(validator_class(schema, registry=referencing.Registry()).iter_errors(value))
        except SchemaError as error:
            raise InvalidRequest(f"schema: {error.message}", details={"field": "schema"}) from error
        except referencing.exceptions.Unresolvable as error:
            raise InvalidRequest(f"schema: {error} leads nowhere", details={"field": "schema"}) from error
        except RecursionError as error:
            raise self._invalid("schema", "it is nested too deeply to be checked") from error
        if errors:
            worst = best_match(errors)
            raise self._invalid("schema", f"at {worst.json_path}: {_short(worst.message, 300)}")

    def _invalid(self, reason: str, why: str, hint: str | None = None) -> OutputInvalid:
        details = {"reason": reason, "execution_id": self.execution_id, "exit_code": self.exit_code}
        return OutputInvalid(f"stdout can't be read as JSON ({reason}): {why}", hint=hint, details=details)


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of output as it came. `stream` is `stdout`, `stderr`, or `skipped` for `skipped_bytes` that were lost to
    the log's ring. `offset` counts the bytes of both streams together. `text` is what `data` adds to the stream's
    text: characters come whole, so it can lag behind by one that is not complete yet."""

    stream: str
    offset: int
    data: bytes = b""
    text: str = ""
    skipped_bytes: int = 0


class TextStreams:
    """Turns events into chunks with text, keeping the cut character of each stream for its next chunk."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {OutputType.STDOUT: make("replace"), OutputType.STDERR: make("replace")}
        self._end = 0

    def chunk(self, event: OutputEvent) -> OutputChunk:
        if event.type is OutputType.SKIPPED:
            value = event.value or {}
            for decoder in self._decoders.values():
                decoder.reset()
            return OutputChunk("skipped", int(value.get("offset", 0)), skipped_bytes=int(value.get("bytes", 0)))
        self._end = event.offset + len(event.data)
        return OutputChunk(
            _STREAMS[event.type], event.offset, event.data, self._decoders[event.type].decode(event.data)
        )

    def last(self) -> list[OutputChunk]:
        """A chunk for each stream that ended inside a character."""
        rest = [(type, decoder.decode(b"", final=True)) for type, decoder in self._decoders.items()]
        return [OutputChunk(_STREAMS[type], self._end, b"", text) for type, text in rest if text]


class Position:
    """Where a reader of output stands, over connections that each may begin a little before."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def take(self, event: OutputEvent) -> OutputEvent | None:
        """What is new of it: not bytes that came before, nor what only says that the stream is alive."""
        if event.type in (OutputType.STDOUT, OutputType.STDERR):
            if event.offset < self.offset:
                event = event._replace(offset=self.offset, data=event.data[self.offset - event.offset :])
            if not event.data:
                return None
            self.offset = event.offset + len(event.data)
            return event
        if event.type is OutputType.SKIPPED:
            value = event.value or {}
            self.offset = max(self.offset, int(value.get("offset", 0)) + int(value.get("bytes", 0)))
            return event
        return event if event.type is OutputType.STARTED else None


class Collector:
    """Keeps of each stream the first and last half of `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(limit_bytes // 2, 1)
        self._kept = {OutputType.STDOUT: HeadTail(limit_bytes), OutputType.STDERR: HeadTail(limit_bytes)}
        self._skipped = False

    def feed(self, event: OutputEvent) -> None:
        if event.type is OutputType.SKIPPED:
            self._skipped = True
        else:
            self._kept[event.type].feed(event.data)

    def result(self, execution_id: str, record: Mapping[str, Any]) -> ExecResult:
        out, err = self._kept[OutputType.STDOUT], self._kept[OutputType.STDERR]
        code = record.get("exit_code")
        return ExecResult(
            execution_id=execution_id,
            exit_code=int(code) if code is not None else -1,
            signal=record.get("signal"),
            timed_out=bool(record.get("timed_out")),
            oom_killed=bool(record.get("oom_killed")),
            oom_ambiguous=bool(record.get("oom_ambiguous")),
            truncated=self._skipped or out.truncated or err.truncated,
            duration_s=float(record.get("duration_s") or 0.0),
            stdout_raw=out.value(),
            stderr_raw=err.value(),
            stdout_total_bytes=out.total_bytes,
            stderr_total_bytes=err.total_bytes,
            stdout_cut=self._half if out.truncated else None,
            stderr_cut=self._half if err.truncated else None,
        )


def decode(data: bytes, cut: int | None = None) -> str:
    """UTF-8 as text. Characters that lie across `cut`, where bytes were left out, are left out as well."""
    if cut is None:
        return data.decode("utf-8", "replace")
    head = codecs.getincrementaldecoder("utf-8")("replace").decode(data[:cut])
    tail = data[cut:]
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return head + tail[start:].decode("utf-8", "replace")


def failed(command: Any, result: ExecResult) -> ExecutionFailed:
    """The error of `check=True`: what happened, and the last lines that the program wrote to stderr."""
    if result.timed_out:
        what = "ran into its timeout"
    elif result.oom_killed:
        what = "was killed: out of memory"
    elif result.signal:
        what = f"was killed by {result.signal}"
    else:
        what = f"exited with {result.exit_code}"
    shown = command if isinstance(command, str) else " ".join(command)
    lines = "\n".join(result.stderr.rstrip().splitlines()[-_STDERR_LINES:])[-_STDERR_CHARACTERS:]
    return ExecutionFailed(
        f"{_short(shown, 200)!r} {what} (exit code {result.exit_code})" + (f":\n{lines}" if lines else ""),
        result=result,
        details={"execution_id": result.execution_id, "exit_code": result.exit_code},
    )


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
