"""URLs of a file that need no key: what they allow, and that they allow nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import httpx2
import pytest

from bellglass import Sandbox
from bellglass.errors import InvalidRequest, NotFound
from bellglass.testing.stack import Stack


@pytest.fixture
def web(stack: Stack) -> Iterator[httpx2.Client]:
    """Whoever has a URL, and no key."""
    with httpx2.Client(timeout=60, limits=httpx2.Limits(max_keepalive_connections=0), trust_env=False) as client:
        yield client


def changed(url: str, **query: str) -> str:
    """The URL with other values in its query; its path with `at`."""
    parts = urlsplit(url)
    path = query.pop("at", parts.path)
    values = {name: found[0] for name, found in parse_qs(parts.query).items()} | query
    return urlunsplit(parts._replace(path=path, query=str(httpx2.QueryParams(values))))


def test_read(shared_box: Sandbox, web: httpx2.Client) -> None:
    body = bytes(range(256)) * 1000
    shared_box.files.write_bytes('signed/ä "&#?.html', body)
    url = shared_box.files.sign('signed/ä "&#?.html', expires_in="5m")
    answer = web.get(url)
    assert (answer.status_code, answer.content) == (200, body)
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A4%20%22%26%23%3F.html"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    part = web.get(url, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, body[10:20])
    head = web.head(url)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(body)), b"")
    shared_box.files.remove('signed/ä "&#?.html')
    assert web.get(url).status_code == 404


def test_write(shared_box: Sandbox, web: httpx2.Client) -> None:
    url = shared_box.files.sign("signed/new/up.bin", "write", expires_in=300)
    answer = web.put(url, content=b"first")
    assert (answer.status_code, answer.json()["size"], answer.json()["user"]) == (201, 5, "user")
    assert web.put(url, content=b"second").status_code == 200
    assert shared_box.files.read_bytes("signed/new/up.bin") == b"second"
    as_root = shared_box.files.sign("/srv/by-root", "write", user="root")
    assert web.put(as_root, content=b"x").json()["user"] == "root"


def test_it_allows_nothing_else(stack: Stack, shared_box: Sandbox, new_box: Any, web: httpx2.Client) -> None:
    files = shared_box.files
    files.write_text("signed/mine", "mine")
    files.write_text("signed/other", "other")
    reading, writing = files.sign("signed/mine"), files.sign("signed/mine", "write")
    assert web.get(reading).text == "mine" and web.put(writing, content=b"mine").status_code == 200
    other = new_box()
    other.files.write_text("signed/mine", "of another")
    signature = parse_qs(urlsplit(reading).query)["signature"][0]
    soon = str(int(time.time()) + 10_000)
    wrong = [
        web.put(reading, content=b"x"),
        web.get(writing),
        web.get(changed(reading, path="signed/other")),
        web.get(changed(reading, path="./signed/mine")),
        web.get(changed(reading, user="root")),
        web.get(changed(reading, expires=soon)),
        web.get(changed(reading, key=new_key(stack))),
        web.get(changed(reading, at=f"/v1/sandboxes/{other.id}/files/signed")),
        web.get(changed(reading, signature=signature[:-2])),
        web.get(changed(reading, signature="é")),
    ]
    assert [answer.status_code for answer in wrong] == [403] * len(wrong)
    assert web.put(changed(writing, path="signed/other"), content=b"x").status_code == 403
    assert files.read_text("signed/mine") == "mine" and files.read_text("signed/other") == "other"
    assert web.get(changed(reading, at=f"/v1/sandboxes/{shared_box.id}/files")).status_code in (401, 422)
    assert web.get(reading).text == "mine"


def new_key(stack: Stack) -> str:
    headers = {"Authorization": f"Bearer {stack.admin_key}"}
    made = httpx2.post(f"{stack.api_url}/v1/keys", json={"project": "signing"}, headers=headers)
    return str(made.json()["id"])


def test_its_time_and_its_key(stack: Stack, shared_box: Sandbox, web: httpx2.Client) -> None:
    shared_box.files.write_text("signed/timed", "x")
    short = shared_box.files.sign("signed/timed", expires_in=1)
    deadline = time.monotonic() + 20
    while (answer := web.get(short)).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answer.status_code == 403 and "time is over" in answer.json()["error"]["message"]
    for wrong in (0, -1, "8d", "soon", 0.5):
        with pytest.raises(InvalidRequest, match="expires_in"):
            shared_box.files.sign("signed/timed", expires_in=wrong)
    with pytest.raises(InvalidRequest, match="operation"):
        shared_box.files.sign("signed/timed", "list")

    admin = {"Authorization": f"Bearer {stack.admin_key}"}
    made = httpx2.post(f"{stack.api_url}/v1/keys", json={"project": "default"}, headers=admin).json()
    own = Sandbox.connect(shared_box.id, api_url=stack.api_url, api_key=made["secret"])
    url = own.files.sign("signed/timed", expires_in="7d")
    own.close()
    assert web.get(url).text == "x"
    assert httpx2.delete(f"{stack.api_url}/v1/keys/{made['id']}", headers=admin).status_code == 204
    assert web.get(url).status_code == 401


def test_only_for_ones_own_sandboxes(stack: Stack, shared_box: Sandbox, second_key: str) -> None:
    body = {"path": "f"}
    where = f"{stack.api_url}/v1/sandboxes/{shared_box.id}/files/sign"
    mine = httpx2.post(where, json=body, headers={"Authorization": f"Bearer {stack.api_key}"})
    assert mine.status_code == 200 and mine.json()["url"].startswith(stack.api_url)
    assert httpx2.post(where, json=body, headers={"Authorization": f"Bearer {second_key}"}).status_code == 404
    with pytest.raises(NotFound):
        Sandbox.connect(shared_box.id, api_url=stack.api_url, api_key=second_key)
