"""Agents of other releases, and the node's files of earlier and later ones."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import pytest
from puppet import EXIT, STARTED, PuppetHost, data, eof, read_frames, spec

from bellglass.errors import AgentLost, VersionMismatch
from bellglass.node.executions import records
from bellglass.node.executions.records import Records
from bellglass.node.journal import SCHEMA, Journal, SandboxRow
from bellglass.wire import tlv
from bellglass.wire.frames import encode
from bellglass.wire.guest import GuestType


def hello(protocol: int) -> bytes:
    said = tlv.put(1, protocol) + tlv.put(3, b"b" * 16) + tlv.put(4, 1) + tlv.put(5, "9.9") + tlv.put(99, "new")
    return encode(GuestType.HELLO, 0, said)


def test_an_agent_of_another_protocol_is_told_at_once(run, tmp_path) -> None:
    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            loop = asyncio.get_running_loop()
            await host.agent(hello=hello(2))
            began = loop.time()
            with pytest.raises(
                VersionMismatch, match=r"agent \(version 9.9\) speaks protocol 2, this side speaks 1"
            ) as told:
                await host.session.wait_link(loop.time() + 20)
            assert loop.time() - began < 5 and told.value.hint
            await host.agent(hello=hello(0))  # no version at all: broken, not newer
            await host.agent(hello=hello(1))
            async with asyncio.timeout(10):
                while not host.session.link_is_up:
                    await asyncio.sleep(0.01)
            assert (await host.session.wait_link(loop.time() + 5)).version == "9.9"
            assert host.session.violations == 1

    run(scenario())


def test_frames_of_unknown_types_are_skipped_whatever_stream_they_name(run, tmp_path) -> None:
    strange = b"".join(encode(kind, stream, b"x" * 5000) for kind in (0, 27, 200) for stream in (0, 1, 2**31))

    async def scenario() -> None:
        async with PuppetHost(tmp_path) as host:
            loop = asyncio.get_running_loop()
            agent = await host.agent(hello=hello(1))
            await host.session.wait_link(loop.time() + 5)
            made, view = host.executions.create(spec())
            await read_frames(agent, 2)
            pieces = (STARTED, data(1, 1, 0, b"hi"), eof(1, 1, 2), eof(1, 2, 0), EXIT)
            await loop.sock_sendall(agent, strange + strange.join(pieces) + strange)
            await made.ended.wait()
            assert view.record()["exit_code"] == 0 and view.record()["stdout_bytes"] == 2
            assert host.session.violations == 0
            with pytest.raises(AgentLost):  # the twin: a known type on a stream that never was ends the link
                await loop.sock_sendall(agent, encode(GuestType.STARTED, 2**31, tlv.put(1, 5)))
                async with asyncio.timeout(5):
                    while host.session.link_is_up:
                        await asyncio.sleep(0.01)
                await host.session.wait_link(loop.time() + 0.1)

    run(scenario())


FIRST_JOURNAL = """
create table sandboxes (id text primary key, state text not null, body text not null, driver_state blob);
create table events (
    seq integer primary key autoincrement, at text not null, kind text not null,
    sandbox_id text not null, generation integer not null, body text not null
);
create table meta (key text primary key, value text not null);
insert into meta values ('node_id', 'ndfirst');
insert into events (at, kind, sandbox_id, generation, body)
    values ('2026-11-29T10:00:00.000000Z', 'sandbox.started', 'sb1', 1, '{"runtime": "runc"}');
"""
FIRST_RECORDS = """
create table executions (
    sandbox_id text not null, id text not null, stream_id integer not null, digest text not null,
    state text not null, record text not null, resume text not null,
    primary key (sandbox_id, id)
) without rowid;
create index executions_by_state on executions (sandbox_id, state, id);
create table streams (sandbox_id text primary key, next_id integer not null) without rowid;
insert into executions values ('sb1', '01ARZ3NDEKTSV4RRFFQ69G5FAV', 7, 'd', 'exited', '{"exit_code": 3}', '{}');
insert into streams values ('sb1', 1025);
"""


def version_of(path: Path) -> int:
    db = sqlite3.connect(path)
    try:
        return db.execute("pragma user_version").fetchone()[0]
    finally:
        db.close()


def write(path: Path, script: str) -> None:
    db = sqlite3.connect(path)
    db.executescript(script)
    db.close()


def first_row() -> dict:
    """A sandbox as the first release wrote it down."""
    return {
        "id": "sb1", "generation": 1, "project_id": "pj1", "spec": {"template": "base"}, "driver": "runc",
        "state": "running", "runtime": "runc", "runtime_version": "1.1.5", "started_at": "2026-11-29T10:00:00.000000Z",
        "expires_at_unix": 1.5, "idle_timeout_s": None, "reason": None, "message": None, "ended_at": None,
        "ended_at_unix": None, "reclaimed": False, "cpu_ids": [0, 1], "shell": "/bin/bash",
    }  # fmt: skip


def test_the_first_releases_journal_goes_on(run, tmp_path) -> None:
    path = tmp_path / "journal.db"
    write(path, FIRST_JOURNAL)
    db = sqlite3.connect(path)
    db.execute("insert into sandboxes values ('sb1', 'running', ?, ?)", (json.dumps(first_row()), b"state"))
    db.commit()
    db.close()
    assert version_of(path) == 0

    async def scenario() -> None:
        journal = await Journal.open(path)
        try:
            assert await journal.meta("node_id") == "ndfirst"
            (row,) = await journal.sandboxes()
            assert row == SandboxRow(**{**first_row(), "cpu_ids": (0, 1)}, driver_state=b"state")
            (event,) = await journal.events(0)
            assert (event.seq, event.kind, event.body) == (1, "sandbox.started", {"runtime": "runc"})
        finally:
            journal.close()

    run(scenario())
    assert version_of(path) == len(SCHEMA)
    run(scenario())


def test_the_first_releases_records_go_on(tmp_path) -> None:
    path = tmp_path / "executions.db"
    write(path, FIRST_RECORDS)
    for _ in range(2):
        opened = Records(path)
        stored = opened.get("sb1", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
        assert stored is not None and (stored.record, stored.stream_id) == ({"exit_code": 3}, 7)
        assert opened.next_stream_id("sb1") == 1025
        opened.close()
    assert version_of(path) == len(records.SCHEMA)


def test_files_of_a_newer_release_are_refused_and_left_alone(run, tmp_path) -> None:
    async def open_journal() -> None:
        (await Journal.open(tmp_path / "journal.db")).close()

    run(open_journal())
    Records(tmp_path / "executions.db").close()
    for name in ("journal.db", "executions.db"):
        path = tmp_path / name
        write(path, "pragma user_version = 99; create table of_tomorrow (a)")
        with pytest.raises(VersionMismatch, match=rf"{name} has schema 99, this release knows up to \d") as told:
            run(open_journal()) if name == "journal.db" else Records(path)
        assert "backup" in (told.value.hint or "")
        assert version_of(path) == 99


def test_event_numbers_never_come_back_with_an_older_journal(run, tmp_path) -> None:
    """The server passes over what is numbered below the last event that it took in."""
    path, copy = tmp_path / "journal.db", tmp_path / "copy.db"
    row = SandboxRow(**{**first_row(), "cpu_ids": (0,)})

    async def add(file: Path, count: int) -> list[int]:
        journal = await Journal.open(file)
        try:
            for _ in range(count):
                await journal.put(row, ("sandbox.started", {}))
            return [event.seq for event in await journal.events(0)]
        finally:
            journal.close()

    before = run(add(path, 2))
    source, target = sqlite3.connect(path), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    seen = run(add(path, 50))
    assert seen[:2] == before and seen == sorted(set(seen))
    while time.time() * 1000 <= max(seen):  # 50 numbers are 50 ms of the clock, and writing them took about as long
        time.sleep(0.005)
    restored = run(add(copy, 3))
    assert restored[:2] == before and min(restored[2:]) > max(seen)


def test_acknowledged_events_stay_for_a_database_that_is_restored(run, tmp_path) -> None:
    async def scenario() -> None:
        journal = await Journal.open(tmp_path / "journal.db")
        try:
            row = SandboxRow(**{**first_row(), "cpu_ids": (0,)})
            for _ in range(6):
                await journal.put(row, ("sandbox.started", {}))
            numbers = [event.seq for event in await journal.events(0)]
            await journal.acknowledge(numbers[3])
            await journal.forget_events("2000", most=100)
            assert [event.seq for event in await journal.events(0)] == numbers, "not old, not many"
            await journal.forget_events("2000", most=4)
            assert [event.seq for event in await journal.events(0)] == numbers[2:]
            await journal.forget_events("2999", most=100)
            assert [event.seq for event in await journal.events(0)] == numbers[4:], "nobody has taken these in"
        finally:
            journal.close()

    run(scenario())
