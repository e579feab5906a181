"""A sandbox of the private internet as tests of the egress boundary use it: its policy, probes from inside, and the
refusals that were told of."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from bellglass import Network, Rule
from bellglass.testing.internet import Internet
from bellglass.testing.stack import Stack

PROBES = Path(__file__).with_name("egress_probes.py")
PLACE = "/tmp/egress_probes.py"
CUT = frozenset({"ECONNRESET", "EPIPE"})
"""A connection that was refused, as its client hears of it."""
TOLD_S = 20.0
MERGED_S = 1.5
"""Refusals that are alike are one event within about a second, with the time of the first."""
AT_ONCE_S = 5.0
"""As much as a busy machine needs; a client that waits for a timeout waits longer."""


class Outcome(NamedTuple):
    """Of a probe (egress_probes.py)."""

    word: str
    data: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.word == "data"

    @property
    def cut(self) -> bool:
        return self.word in CUT and self.seconds < AT_ONCE_S


class Inside:
    def __init__(self, box: Any, internet: Internet, stack: Stack) -> None:
        self.box = box
        self.internet = internet
        self.authority = internet.authority.read_text()
        box.files.write_text(PLACE, PROBES.read_text())
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        self._api = httpx2.Client(base_url=stack.api_url, headers=headers, timeout=60, trust_env=False)
        self._expected: list[Expected] = []
        self._seen: list[dict[str, Any]] = []
        self._cursor: str | None = None

    def close(self) -> None:
        self._api.close()

    def allow(self, *rules: str | Rule) -> None:
        self.box.network.set(Network(allow=list(rules)) if rules else "deny")

    def open(self, *, deny: Sequence[str] = ()) -> None:
        self.box.network.set(Network(mode="open", deny=deny) if deny else "open")

    def all(self, *probes: dict[str, Any]) -> list[Outcome]:
        """At the same time; the outcomes in order."""
        done = self.box.exec(["python3", PLACE], stdin=json.dumps(probes), timeout=120)
        assert done.ok, done.stderr
        return [Outcome(found["outcome"], found["data"], found["seconds"]) for found in json.loads(done.stdout)]

    def probe(self, op: str, **arguments: Any) -> Outcome:
        return self.all({"op": op, **arguments})[0]

    def tcp(self, host: str, port: int, *pieces: bytes, **more: Any) -> Outcome:
        return self.all(tcp(host, port, *pieces, **more))[0]

    def each(self, probes: Mapping[str, dict[str, Any]]) -> dict[str, Outcome]:
        """At the same time, by name."""
        return dict(zip(probes, self.all(*probes.values()), strict=True))

    def http(self, host: str, port: int = 80, *, name: str | None = None, **more: Any) -> Outcome:
        """One GET; `name` is the Host that it sends."""
        return self.tcp(host, port, get(name or host), until="}", **more)

    def https(self, host: str, port: int = 443, *, name: str | None = "", request: bytes = b"", **more: Any) -> Outcome:
        """One GET by TLS; `name` is what it asks for in its hello, by default the host."""
        name = host if name == "" else name
        request = request or get(name or host)
        return self.probe(
            "tls", host=host, port=port, name=name, authority=self.authority, request=request.decode("latin-1"), **more
        )

    @contextlib.contextmanager
    def all_refused(self, expected: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
        """The same for what the body does at the same time: by name, what the event of each says."""
        with contextlib.ExitStack() as undo:
            for fields in expected.values():
                undo.enter_context(self.refused(**fields))
            yield

    @contextlib.contextmanager
    def refused(self, reason: str, **fields: Any) -> Iterator[None]:
        """The body is refused for that reason, and an event with those fields tells so. Since events come a second
        later, that is looked at when the file's tests have run (`all_told`)."""
        begun = time.time()
        yield
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        self._expected.append(Expected(test, begun - MERGED_S, time.time() + 0.1, {"reason": reason, **fields}))

    def all_told(self) -> None:
        """Every refusal that tests saw was told of as they expect it."""
        deadline = time.monotonic() + TOLD_S
        pause = threading.Event()
        while missing := [one for one in self._expected if not any(one.fits(event) for event in self._events())]:
            assert time.monotonic() < deadline, "no event tells of:\n  " + "\n  ".join(map(str, missing))
            pause.wait(0.2)

    def _events(self) -> list[dict[str, Any]]:
        """All refusals so far; each page is asked for once."""
        while True:
            page = self._api.get(
                f"/v1/sandboxes/{self.box.id}/events",
                params={"type": "egress.refused", "limit": 1000, **({"cursor": self._cursor} if self._cursor else {})},
            ).json()
            self._cursor = page["cursor"]
            self._seen += page["items"]
            if not page["items"]:
                return self._seen


class Expected(NamedTuple):
    test: str
    since: float
    until: float
    fields: dict[str, Any]

    def fits(self, event: dict[str, Any]) -> bool:
        at = datetime.fromisoformat(event["time"]).timestamp()
        told = event["data"]
        return self.since <= at <= self.until and all(told[name] == value for name, value in self.fields.items())


def tcp(host: str, port: int, *pieces: bytes, **more: Any) -> dict[str, Any]:
    """A probe of a connection that sends the pieces."""
    return {"op": "tcp", "host": host, "port": port, "pieces": [piece.decode("latin-1") for piece in pieces], **more}


def get(host: str, target: str = "/") -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
