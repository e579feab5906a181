"""Shipping events: in order, at least once, over a collector and a server that come and go, with gaps counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from collector import Collector
from server_harness import Harness

from bellglass.server.events.retention import Retention

PATIENCE_S = 20.0


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.hold.set()
    made.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    """A server with these settings; the next one is of the same folder."""
    running: list[Harness] = []

    def make(settings: dict[str, Any]) -> Harness:
        if running:
            running.pop().stop()
        running.append(Harness(tmp_path / "data", settings).start())
        return running[-1]

    yield make
    for harness in running:
        harness.stop()


def limits(harness: Harness, count: int) -> None:
    """So many events."""
    project = harness.key("limits")["project_id"]
    for i in range(count):
        answer = harness.admin.put("/v1/limits", json={"project": project, "sandboxes": i + 1})
        assert answer.status_code == 200, answer.text


def stored(harness: Harness) -> list[int]:
    return [seq for (seq,) in harness.database("select seq from events order by seq")]


def seqs(records: list[dict[str, Any]]) -> list[int]:
    return [record["seq"] for record in records]


def test_events_arrive_with_their_project_and_the_operators_headers(
    start: Callable[..., Harness], collector: Collector
) -> None:
    headers = ["Authorization=Bearer s3cret", "X-Tenant=a=b"]
    harness = start({"events.jsonl_url": collector.url + "/in?x=1", "events.jsonl_headers": headers})
    box = harness.project("p1").post("/v1/sandboxes", json={"cpus": 1}).json()["id"]
    harness.until(lambda: len(collector.records()) == 2, PATIENCE_S)
    first, second = collector.records()
    project = harness.database("select project_id from sandboxes")[0][0]
    assert (first["type"], second["type"]) == ("sandbox.creating", "sandbox.running")
    assert first["sandbox_id"] == second["sandbox_id"] == box
    assert first["project_id"] == project
    assert first["id"] == f"abcdefgh-{first['seq']}"
    assert collector.heads[0]["authorization"] == "Bearer s3cret"
    assert collector.heads[0]["x-tenant"] == "a=b"
    assert collector.heads[0]["content-type"] == "application/x-ndjson"
    assert collector.paths[0] == "/in?x=1"
    assert harness.admin.get("/v1/node").json()["server"]["event_sinks"] == [
        {"name": "jsonl", "waiting": 0, "dropped": 0, "problem": None}
    ]


def test_a_collector_that_is_away_gets_all_when_it_is_back(start: Callable[..., Harness], collector: Collector) -> None:
    harness = start({"events.jsonl_url": collector.url})
    limits(harness, 3)
    harness.until(lambda: seqs(collector.records()) == stored(harness), PATIENCE_S)
    collector.stop()
    limits(harness, 15)
    sinks = lambda: harness.admin.get("/v1/node").json()["server"]["event_sinks"][0]  # noqa: E731
    harness.until(lambda: sinks()["problem"] is not None, PATIENCE_S)
    assert sinks()["waiting"] == 15
    collector.start()
    harness.until(lambda: seqs(collector.records()) == stored(harness), PATIENCE_S)
    harness.until(lambda: sinks() == {"name": "jsonl", "waiting": 0, "dropped": 0, "problem": None}, PATIENCE_S)


def test_refusals_and_lost_answers_lose_nothing(start: Callable[..., Harness], collector: Collector) -> None:
    collector.answers = [500, 401, 302]
    harness = start({"events.jsonl_url": collector.url})
    limits(harness, 10)
    harness.until(lambda: seqs(collector.records()) == stored(harness), PATIENCE_S)
    assert collector.tried >= 4
    collector.lose_answers = 1
    limits(harness, 1)
    harness.until(lambda: len(collector.records()) == 12, PATIENCE_S)
    *_, once, again = collector.records()
    assert once == again, "a repeat can be told from something new"


def test_a_slow_collector_over_a_restart_of_the_server(start: Callable[..., Harness], collector: Collector) -> None:
    settings = {"events.jsonl_url": collector.url}
    collector.hold.clear()
    harness = start(settings)
    limits(harness, 20)
    harness.until(lambda: collector.tried == 1, PATIENCE_S)
    harness = start(settings)  # in the middle of a request
    limits(harness, 20)
    collector.hold.set()
    harness.until(lambda: len(set(seqs(collector.records()))) == 40, PATIENCE_S)
    in_order = list(dict.fromkeys(seqs(collector.records())))
    assert in_order == stored(harness) == sorted(in_order)


def test_what_retention_drops_before_it_was_sent_is_counted(
    start: Callable[..., Harness], collector: Collector
) -> None:
    settings = {"events.jsonl_url": collector.url, "events.otlp_endpoint": collector.url}
    harness = start(settings)
    limits(harness, 5)
    harness.until(lambda: collector.tried >= 2 and not waiting(harness), PATIENCE_S)
    collector.stop()
    limits(harness, 30)
    services = harness.application.services
    harness.run(Retention(services.reader, services.writer, 86400.0, 20).enforce(datetime.now(UTC)))
    kept = stored(harness)
    assert len(kept) == 20, "19 and the event that tells"
    collector.taken.clear()
    collector.start()
    harness.until(lambda: not waiting(harness), PATIENCE_S)
    lines = [body for body in collector.taken if b"resourceLogs" not in body]
    records = [json.loads(line) for body in lines for line in body.splitlines()]
    assert records[0]["type"] == "events.dropped"
    assert records[0]["data"] == {"count": 11, "sink": "jsonl"}, "5 of the 16 had been sent"
    assert seqs(records[1:]) == kept
    assert records[-1]["data"]["count"] == 16, "the project's own gap"
    assert harness.database("select dropped from event_sinks") == [(0,), (0,)]
    harness.run(Retention(services.reader, services.writer, 60.0, 20).enforce(datetime.now(UTC) + timedelta(hours=1)))
    assert stored(harness) == []


def waiting(harness: Harness) -> int:
    sinks = harness.admin.get("/v1/node").json()["server"]["event_sinks"]
    return sum(sink["waiting"] + sink["dropped"] for sink in sinks)


def test_what_is_too_large_goes_in_smaller_pieces(start: Callable[..., Harness], collector: Collector) -> None:
    collector.hold.clear()
    harness = start({"events.jsonl_url": collector.url})
    limits(harness, 1)
    harness.until(lambda: collector.tried == 1, PATIENCE_S)
    size = 250
    collector.most_bytes = 4 * size
    limits(harness, 30)
    huge = harness.project("p2").post("/v1/sandboxes", json={"cpus": 1}).json()["id"]
    refusal = {"host": "h" * 255, "rule": "r" * 255, "reason": "name_not_allowed", "protocol": "dns", "count": 1}
    refusal |= {"address": "a" * 500, "port": None}
    harness.loop.call_soon_threadsafe(lambda: harness.peer.event("egress.refused", huge, refusals=[refusal]))
    harness.until(lambda: len(stored(harness)) == 34, PATIENCE_S)
    limits(harness, 1)
    collector.hold.set()
    harness.until(lambda: not waiting(harness), PATIENCE_S)
    records = collector.records()
    assert max(len(body) for body in collector.taken) <= 4 * size
    assert len([r for r in records if r["type"] != "events.dropped"]) == 34, "all but the one that never fits"
    assert [r["data"]["count"] for r in records if r["type"] == "events.dropped"] == [1]


def test_otlp_is_what_collectors_read(start: Callable[..., Harness], collector: Collector) -> None:
    collector.reply = b'{"partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "too old"}}'
    harness = start({"events.otlp_endpoint": collector.url + "/", "events.otlp_headers": "api-key=k"})
    box = harness.project("p1").post("/v1/sandboxes", json={"cpus": 1}).json()["id"]
    refusal = {"at": "2026-11-30T00:00:00.123000Z", "protocol": "tcp", "host": "evil.example", "address": None}
    refusal |= {"port": 443, "reason": "name_not_allowed", "rule": "deny", "count": 2}
    harness.loop.call_soon_threadsafe(lambda: harness.peer.event("egress.refused", box, refusals=[refusal]))
    harness.until(lambda: b"evil.example" in b"".join(collector.taken), PATIENCE_S)
    harness.until(lambda: not waiting(harness), PATIENCE_S)
    assert set(collector.paths) == {"/v1/logs"}
    assert collector.heads[0]["content-type"] == "application/json"
    assert collector.heads[0]["api-key"] == "k"
    documents = [json.loads(body) for body in collector.taken]
    resource = documents[0]["resourceLogs"][0]["resource"]["attributes"]
    assert {"key": "service.name", "value": {"stringValue": "bellglass"}} in resource
    records = [r for d in documents for r in d["resourceLogs"][0]["scopeLogs"][0]["logRecords"]]
    assert [r["eventName"] for r in records] == ["sandbox.creating", "sandbox.running", "egress.refused"]
    told = records[-1]
    assert told["timeUnixNano"] == "1795996800123000000"
    assert (told["severityNumber"], told["severityText"]) == (13, "WARN")
    assert told["body"] == {"stringValue": "egress.refused evil.example:443 (name_not_allowed)"}
    attributes = {one["key"]: one["value"] for one in told["attributes"]}
    assert attributes["bellglass.sandbox.id"] == {"stringValue": box}
    assert attributes["bellglass.port"] == {"intValue": "443"}
    assert "bellglass.address" not in attributes


def test_a_file_gets_whole_lines(start: Callable[..., Harness], tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"id": "cut sho')  # by a crash
    harness = start({"events.jsonl_file": str(file)})
    limits(harness, 5)
    harness.until(lambda: len(file.read_bytes().splitlines()) == 6, PATIENCE_S)
    assert seqs([json.loads(line) for line in file.read_text().splitlines()[1:]]) == stored(harness)
    file.rename(tmp_path / "events.jsonl.1")
    limits(harness, 1)
    harness.until(file.exists, PATIENCE_S)
    harness.until(lambda: file.read_bytes().endswith(b"\n"), PATIENCE_S)
    assert len(file.read_bytes().splitlines()) == 1


def test_a_new_sink_begins_with_what_is_kept(start: Callable[..., Harness], collector: Collector) -> None:
    harness = start({})
    limits(harness, 7)
    assert harness.database("select * from event_sinks") == []
    harness = start({"events.jsonl_url": collector.url})
    harness.until(lambda: seqs(collector.records()) == stored(harness), PATIENCE_S)
    assert len(stored(harness)) == 7
    assert isinstance(harness.admin, httpx2.Client)
