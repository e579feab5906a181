"""Keys: who gets in, who does not, and that a revoked key is out at once."""

from __future__ import annotations

import threading

import httpx2
import pytest
from server_harness import ADMIN, Harness, error_of


def test_missing_and_wrong_keys(harness: Harness, api: httpx2.Client) -> None:
    assert api.get("/v1/sandboxes").status_code == 200
    for header in (None, "", "Bearer", "Basic abc", "bg_" + "a" * 32, "Bearer bg_" + "a" * 32,
                   "Bearer bgadmin_wrong", "Bearer " + "x" * 300, "Bearer a b"):  # fmt: skip
        headers = {} if header is None else {"authorization": header}
        answer = harness.client(None).get("/v1/sandboxes", headers=headers)
        error = error_of(answer, 401, "unauthorized")
        assert error["hint"]
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_unauthorized_comes_before_everything_else(harness: Harness) -> None:
    nobody = harness.client(None)
    error_of(nobody.post("/v1/sandboxes?nope=1", content=b"x" * 100), 401)
    error_of(nobody.get("/v1/sandboxes/x/files"), 401)


def test_admin_and_project_keys_have_their_own_routes(harness: Harness, api: httpx2.Client) -> None:
    error = error_of(harness.admin.get("/v1/sandboxes"), 403, "forbidden")
    assert "keys create" in error["hint"]
    for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("GET", "/v1/projects"), ("GET", "/v1/node")):
        error_of(api.request(method, path, json={} if method == "POST" else None), 403, "forbidden")


def test_secret_is_shown_once_and_kept_hashed(harness: Harness) -> None:
    key = harness.key("hashed")
    assert key["secret"].startswith("bg_")
    assert len(key["secret"]) == 3 + 32
    listed = [found for found in harness.admin.get("/v1/keys").json()["items"] if found["id"] == key["id"]]
    assert listed[0]["secret"] is None
    for file in harness.data.server_dir.iterdir():
        assert key["secret"].encode() not in file.read_bytes(), file


def test_me(harness: Harness) -> None:
    key = harness.key("mine")
    me = harness.client(key["secret"]).get("/v1/me").json()
    assert me["project"]["name"] == "mine"
    assert me["key"]["id"] == key["id"]
    assert me["key"]["secret"] is None
    assert harness.admin.get("/v1/me").json() == {"project": None, "key": {"id": "admin"}}


def test_keys_of_one_project(harness: Harness) -> None:
    first, second = harness.key("shared"), harness.key("shared")
    assert first["project_id"] == second["project_id"]
    names = [project["name"] for project in harness.admin.get("/v1/projects").json()["items"]]
    assert names.count("shared") == 1


@pytest.mark.parametrize("project", ["", "a b", "-a", "a" * 64, "ä", "a\n", "../x"])
def test_project_names(harness: Harness, project: str) -> None:
    assert harness.admin.post("/v1/keys", json={"project": "a" * 63}).status_code == 201
    assert error_of(harness.admin.post("/v1/keys", json={"project": project}), 422)["details"]["field"] == "project"


def test_revoked_key_is_refused_at_once(harness: Harness) -> None:
    key = harness.key("revoked")
    client = harness.client(key["secret"])
    assert client.get("/v1/me").status_code == 200
    assert harness.admin.delete(f"/v1/keys/{key['id']}").status_code == 204
    error_of(client.get("/v1/me"), 401)
    assert harness.admin.delete(f"/v1/keys/{key['id']}").status_code == 204, "repeats are fine"
    for unknown in ("ky" + "a" * 16, "x", "ky%2e%2e"):
        error_of(harness.admin.delete(f"/v1/keys/{unknown}"), 404)


def test_revocation_cuts_streams(harness: Harness) -> None:
    key = harness.key("cut")
    client = harness.client(key["secret"])
    box = client.post("/v1/sandboxes", json={}).json()
    first_line, ended = threading.Event(), threading.Event()

    def read() -> None:
        url = f"/v1/sandboxes/{box['id']}/executions"
        with client.stream("POST", url, json={"command": ["stream"]}) as answer:
            try:
                for _ in answer.iter_lines():
                    first_line.set()
            except httpx2.TransportError:
                ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first_line.wait(5)
    assert not ended.is_set()
    harness.admin.delete(f"/v1/keys/{key['id']}")
    assert ended.wait(2), "the stream goes on"
    reader.join(5)
    harness.until(lambda: "execution.create" in harness.peer.reset_streams)


def test_a_new_admin_key_counts_at_once(own_harness: Harness) -> None:
    import hashlib

    assert own_harness.admin.get("/v1/keys").status_code == 200
    other = "bgadmin_" + "b" * 32
    own_harness.data.admin_hash_file.write_text(hashlib.sha256(other.encode()).hexdigest())
    error_of(own_harness.client(ADMIN).get("/v1/keys"), 401)
    assert own_harness.client(other).get("/v1/keys").status_code == 200
    own_harness.data.admin_hash_file.unlink()
    error_of(own_harness.client(other).get("/v1/keys"), 401)


def test_last_used_and_audit_are_written_behind(own_harness: Harness) -> None:
    key = own_harness.key("audited")
    client = own_harness.client(key["secret"])
    box = client.post("/v1/sandboxes", json={"env": {"TOKEN": "canary-77"}}).json()
    client.post(f"/v1/sandboxes/{box['id']}/executions", json={"command": ["echo", "canary-77"]})
    client.get(f"/v1/sandboxes/{box['id']}")
    error_of(client.get("/v1/sandboxes/sb" + "a" * 20), 404)
    rows = lambda: own_harness.database("select action, objects, status, code, key_id from audit order by seq")  # noqa: E731
    own_harness.until(lambda: len(rows()) >= 4, within_s=2)
    found = rows()
    assert [row[0] for row in found] == ["key.create", "sandbox.create", "exec.create", "sandbox.get"]
    assert box["id"] in found[1][1]
    assert found[3][2:4] == (404, "not_found")
    assert "canary-77" not in str(found)
    assert own_harness.database(f"select last_used_at from api_keys where id = '{key['id']}'")[0][0]
