"""An installation of the first release, with data in it, comes up under this one."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest
from server_harness import Harness, error_of

from bellglass.errors import VersionMismatch
from bellglass.model import CreateSandbox, now
from bellglass.server.db import migrate
from bellglass.server.db.migrations import HEAD
from bellglass.server.sandboxes.idempotency import digest

RUNNING, ENDED = "sb" + "a" * 20, "sb" + "b" * 20
SECRET = "bg_" + "a" * 32
FIRST_DIGEST = "ecc2228dd125803205fdf4a2d0d399ca7f260175330047a5785022e3040cec40"
"""Of the body `{"template": "base"}` as the first release took it. Keys outlive an upgrade: a field that is added later
must not change the digest of a body that does not have it."""


def first_release(database: Path) -> None:
    script = (Path(__file__).parent / "first_release.sql").read_text()
    for mark, value in (
        ("@DIGEST@", hashlib.sha256(SECRET.encode()).hexdigest()), ("@NOW@", now()), ("@BODY@", FIRST_DIGEST)
    ):  # fmt: skip
        script = script.replace(mark, value)
    connection = sqlite3.connect(database)
    connection.executescript(script)
    connection.close()


@pytest.fixture
def upgraded(tmp_path: Path):
    harness = Harness(tmp_path / "data")
    first_release(harness.data.database_file)
    assert migrate.current_revision(harness.data.database_file) == "0001"
    harness.peer.sandboxes[RUNNING] = {
        "sandbox_id": RUNNING, "generation": 1, "state": "running", "runtime": "runc", "runtime_version": "1.1.5",
        "started_at": "2026-11-29T10:00:02.000000Z", "expires_at": "2030-01-01T00:00:00.000000Z",
        "termination_reason": None, "ended_at": None,
    }  # fmt: skip
    # The first two are taken in already, says the cursor: they must not end the running one.
    for _ in range(2):
        harness.peer.event("sandbox.ended", RUNNING, reason="lifetime", ended_at=now())
    harness.start()
    yield harness
    harness.stop()


def test_the_first_releases_data_is_served(upgraded: Harness) -> None:
    assert migrate.current_revision(upgraded.data.database_file) == HEAD
    api = upgraded.client(SECRET)
    assert api.get("/v1/me").json()["project"]["name"] == "first"
    found = api.get(f"/v1/sandboxes/{RUNNING}").json()
    assert (found["state"], found["name"], found["labels"], found["env"], found["memory_bytes"]) == (
        "running", "report-7", {"team": "data"}, {"A": "1"}, 4294967296
    )  # fmt: skip
    assert (found["network"], found["network_generation"]) == ("deny", 1)
    assert [item["id"] for item in api.get("/v1/sandboxes?label=team=data").json()["items"]] == [RUNNING]
    ended = api.get(f"/v1/sandboxes/{ENDED}").json()
    assert (ended["state"], ended["termination_reason"], ended["message"]) == ("ended", "idle", "nobody came")
    error_of(api.post(f"/v1/sandboxes/{ENDED}/executions", json={"command": ["true"]}), 410, "sandbox_gone")
    done = api.post(f"/v1/sandboxes/{RUNNING}/executions", json={"command": ["true"]})
    assert done.status_code == 200, done.text
    assert upgraded.database("select action from audit where request_id = 'rq1'") == [("sandbox.create",)]
    assert api.delete(f"/v1/sandboxes/{RUNNING}").status_code == 204
    assert api.get(f"/v1/sandboxes/{RUNNING}").status_code == 404


def test_an_idempotency_key_of_the_first_release_still_holds(upgraded: Harness) -> None:
    assert digest(CreateSandbox(template="base")) == FIRST_DIGEST
    api = upgraded.client(SECRET)
    again = api.post("/v1/sandboxes", json={"template": "base"}, headers={"Idempotency-Key": "key-1"})
    assert (again.status_code, again.json()) == (201, {"id": RUNNING, "stored": True})
    other = api.post("/v1/sandboxes", json={"template": "base", "cpus": 1}, headers={"Idempotency-Key": "key-1"})
    error_of(other, 409, "idempotency_conflict")


def test_events_go_on_behind_the_cursor(upgraded: Harness) -> None:
    api = upgraded.client(SECRET)
    assert api.get(f"/v1/sandboxes/{RUNNING}").json()["state"] == "running"
    upgraded.end(RUNNING, "oom")
    upgraded.until(lambda: api.get(f"/v1/sandboxes/{RUNNING}").json()["termination_reason"] == "oom")
    assert upgraded.database("select seq from node_cursors") == [(3,)]


def test_a_newer_releases_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bellglass.db"
    migrate.ensure(path)
    connection = sqlite3.connect(path)
    connection.execute("update alembic_version set version_num = '9001'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(migrate.MigrationFailed, match=rf"has schema 9001, this release knows up to {HEAD}.*backup"):
        migrate.ensure(path)
    assert path.read_bytes() == before


def test_a_node_of_another_protocol_is_a_typed_error_of_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from bellglass.link.connection import Identity

    def hello_of_tomorrow(identity: Identity) -> bytes:
        said = {"protocol": 2, "role": identity.role, "version": "9.9", "installation": identity.installation}
        return json.dumps(said | {"secret": identity.secret}).encode()

    harness = Harness(tmp_path / "data").start()
    api = harness.project()
    made = api.post("/v1/sandboxes", json={})
    assert made.status_code == 201, made.text
    try:
        harness.run(harness.peer.stop())
        # Only the listener's HELLO is tomorrow's: the dialer's is made by the same class, so it is chosen by the role.
        todays = Identity.hello
        monkeypatch.setattr(
            Identity, "hello", lambda self: hello_of_tomorrow(self) if self.role == "node" else todays(self)
        )
        harness.run(harness.peer.start())
        templates = "/v1/templates"
        harness.until(lambda: api.get(templates).json().get("error", {}).get("code") == VersionMismatch.code, 10)
        error = error_of(api.get(templates), 503, "version_mismatch")
        assert "speaks protocol 2, this side speaks 1" in error["message"] and not error["retryable"]
        assert error["details"] == {"ours": [1, 1], "theirs": [2, 2]}
        monkeypatch.setattr(Identity, "hello", todays)
        harness.until(lambda: api.get(templates).status_code == 200, 10)
    finally:
        harness.stop()
