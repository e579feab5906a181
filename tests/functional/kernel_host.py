"""The host of a kernel in a sandbox, as a server runs it: an execution with its input open, lines of JSON both ways."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

HOST = "/opt/bellglass/interpreter/host"
Event = dict[str, Any]


class KernelHost:
    """A context's kernel. `ready` is its first event."""

    def __init__(self, box: Any, language: str = "python", cwd: str = "/home/user") -> None:
        self.execution = box.start([HOST, "--language", language, "--cwd", cwd], stdin_open=True)
        self._events = self._read()
        self._runs = 0
        self.ready = next(self._events)

    def _read(self) -> Iterator[Event]:
        rest = b""
        for chunk in self.execution.output():
            assert chunk.stream == "stdout", f"the host itself fails: {chunk}"
            *lines, rest = (rest + chunk.data).split(b"\n")
            for line in lines:
                assert len(line) < 256 * 1024 and line.isascii()
                yield json.loads(line)
        assert not rest

    def send(self, **command: Any) -> None:
        self.execution.write_stdin(json.dumps(command) + "\n")

    def start(self, code: str, env: dict[str, str] | None = None) -> str:
        self._runs += 1
        name = f"run-{self._runs}"
        self.send(op="run", run=name, code=code, env=env or {})
        return name

    def told(self) -> Iterator[Event]:
        """Whatever comes, to the end of the host."""
        return self._events

    def events(self) -> Iterator[Event]:
        """Up to the end of the run that goes."""
        for event in self._events:
            yield event
            if event["event"] == "end":
                return

    def run(self, code: str, *, env: dict[str, str] | None = None, interrupt_s: float | None = None) -> Ran:
        """With `interrupt_s` it is interrupted that long after it has begun."""
        name = self.start(code, env)
        found = []
        for event in self.events():
            if event["event"] == "started" and interrupt_s is not None:
                threading.Timer(interrupt_s, self.send, kwargs={"op": "interrupt"}).start()
            found.append(event)
        return Ran(name, found)

    def close(self) -> None:
        self.execution.kill()
        self.execution.wait()


class Ran:
    """What one run said, its parts put together."""

    def __init__(self, name: str, events: list[Event]) -> None:
        self.events = [event for event in events if event["event"] != "ready"]
        assert {event["run"] for event in self.events} == {name}, events
        self.stdout, self.stderr = self._text("stdout"), self._text("stderr")
        self.results = list(self._joined())
        self.errors = [event for event in events if event["event"] == "error"]
        self.died = next((event for event in events if event["event"] == "died"), None)

    def _text(self, stream: str) -> str:
        return "".join(event["text"] for event in self.events if event["event"] == stream)

    def _joined(self) -> Iterator[Event]:
        whole: dict[str, str] = {}
        is_json = set()
        for event in self.events:
            if event["event"] != "result":
                continue
            if "part" not in event:
                yield event
                continue
            whole[event["mime"]] = whole.get(event["mime"], "") + event["piece"]
            is_json |= {event["mime"]} if event["json"] else set()
            if event["last"]:
                yield {**event, "data": {k: json.loads(v) if k in is_json else v for k, v in whole.items()}}
                whole, is_json = {}, set()

    @property
    def value(self) -> str | None:
        """The plain text of the last expression."""
        return next((result["data"].get("text/plain") for result in self.results if result["main"]), None)

    @property
    def error(self) -> str | None:
        return self.errors[0]["name"] if self.errors else None
