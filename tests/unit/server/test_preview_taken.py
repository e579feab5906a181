"""What is taken from visitors while they wait: for a program that is yet to start, for a token to be written down."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import httpx2
import pytest
from preview_http2_rig import Raw, speak
from preview_rig import WAIT_S, Program, Serve, Site, Visitor, echo
from server_harness import Harness, make

from bellglass.server.ports import service
from bellglass.server.ports.store import Publication
from bellglass.server.ports.tokens import Pass

Take = Callable[[Site, str], httpx2.Response]
TAKES: dict[str, Take] = {
    "revoked": lambda site, key: site.api.delete(site.path + "/tokens"),
    "unpublished": lambda site, key: site.api.delete(site.path),
    "key revoked": lambda site, key: site.harness.admin.delete(f"/v1/keys/{key}"),
}


class Late:
    """A private port, and a program there that is yet to start."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.key = harness.key()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        self.site = Site(harness, harness.client(self.key["secret"]), port)
        self.token = self.site.token()["token"]
        self.wires = harness.application.previews._wires
        harness.until(lambda: not self.wires)
        self._dials = harness.peer.count("port.dial")

    @contextmanager
    def started(self, how: str | None, serve: Serve) -> Iterator[Program]:
        """It listens now: a visitor waits for it, from whom this was taken."""
        self.harness.until(lambda: self.harness.peer.count("port.dial") > self._dials)
        if how is not None:
            self.site.api = self.harness.project()
            assert TAKES[how](self.site, self.key["id"]).status_code == 204
        program = Program(serve, port=self.site.port)
        try:
            yield program
        finally:
            program.close()


@pytest.mark.parametrize("how", [None, *TAKES])
def test_a_program_that_starts_too_late_hears_nothing(harness: Harness, how: str | None) -> None:
    """The same visitor is served when nothing was taken from it."""
    late = Late(harness)
    with late.site.visitor() as visitor:
        visitor.send(visitor.request("/pay", f"X-Bellglass-Token: {late.token}", "Content-Length: 0", method="POST"))
        with late.started(how, echo) as program:
            if how is None:
                assert visitor.read().status == 200
            else:
                assert visitor.ended()
                harness.until(lambda: not late.wires)
            assert len(program.heads) == (how is None)


@pytest.mark.parametrize("how", [None, *TAKES])
def test_nor_by_http2(harness: Harness, how: str | None) -> None:
    late = Late(harness)
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
        visitor = Raw(connection)
        stream = visitor.ask(late.site.host, "/pay", ("x-bellglass-token", late.token))
        with late.started(how, speak) as program:
            if how is None:
                assert visitor.status(stream)[0] == 200
            else:
                with pytest.raises((EOFError, ConnectionResetError)):
                    visitor.status(stream)
                harness.until(lambda: not late.wires)
            assert len(program.heads) == (how is None)


def test_a_token_for_single_use_whose_key_is_revoked_before_it_is_spent(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, shown: Program
) -> None:
    """The writer has other things to do first."""
    made = harness.key()
    site = Site(harness, harness.client(made["secret"]), shown.port)
    first, second = (site.token(single_use=True)["token"] for _ in range(2))
    assert site.get("/", f"X-Bellglass-Token: {first}").status == 200
    shown.heads.clear()
    ports, checked, go_on = harness.application._running().ports, threading.Event(), threading.Event()
    spend = ports.spend

    async def later(publication: Publication, used: Pass) -> bool:
        checked.set()
        await asyncio.to_thread(go_on.wait, 20)
        return await spend(publication, used)

    monkeypatch.setattr(ports, "spend", later)
    try:
        with site.visitor() as visitor:
            visitor.send(visitor.request("/", f"X-Bellglass-Token: {second}"))
            assert checked.wait(20)
            assert TAKES["key revoked"](site, made["id"]).status_code == 204
            go_on.set()
            assert visitor.read().status == 401
    finally:
        go_on.set()
    assert shown.heads == []


def test_a_port_that_was_taken_away_stays_so_when_the_clock_is_set_back(
    harness: Harness, api: httpx2.Client, monkeypatch: pytest.MonkeyPatch, shown: Program
) -> None:
    """Of such a port the key is empty."""
    box = make(api, auto_publish="public")["id"]
    path, host = f"/v1/sandboxes/{box}/ports/{shown.port}", f"{box}-{shown.port}.localhost"

    def status() -> int:
        with Visitor(harness.previews_port, host) as visitor:
            return visitor.ask("/").status

    assert status() == 200
    assert api.delete(path).status_code == 204
    monkeypatch.setattr(service, "time", SimpleNamespace(time=lambda: time.time() - 3600))
    assert status() == 404
    assert api.get(path).status_code == 404
    assert api.put(path, json={}).status_code == 200
    assert status() == 401
    [(key,)] = harness.database(f"select key from published_ports where sandbox_id = '{box}'")
    assert len(key) == 64
