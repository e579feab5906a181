"""The host's disk without a single free block, filled by somebody else: what works then, and that it can be left again.

The order of the tests is that of the file: one installation goes through all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from bellglass import Sandbox
from bellglass.errors import NoCapacity, NotFound
from tests.functional.full_disk import MIB, SmallDisk, small_disk
from tests.functional.waiting import wait_until

OPTIONS: dict[str, Any] = {"memory": "256MiB", "disk": "128MiB", "cpus": 1, "lifetime": "15m"}


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with small_disk() as made:
        yield made


@pytest.fixture(autouse=True)
def room_for_the_next(disk: SmallDisk) -> Iterator[None]:
    """A test that fails leaves no full disk to those behind it."""
    yield
    disk.empty()
    disk.wait_low(False)


def client(disk: SmallDisk, key: str) -> httpx2.Client:
    return httpx2.Client(
        base_url=disk.stack.api_url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
        limits=httpx2.Limits(max_keepalive_connections=0),
        trust_env=False,
    )


def test_what_was_finished_is_there_and_the_sandbox_lives_on(disk: SmallDisk) -> None:
    with disk.stack.sandbox(**OPTIONS) as box:
        data = {f"file{number}": os.urandom(64 * 1024) for number in range(20)}
        for name, content in data.items():
            box.files.write_bytes(name, content)
        box.exec("mkdir work; for i in $(seq 200); do echo $i > work/$i; done")
        done = box.start("seq 1 1000")
        done.wait()
        disk.fill()
        disk.wait_low(True)
        disk.wait_settled()
        assert disk.free() <= disk.given_up(), "all that is free is what the daemons have made room of"
        disk.fill()
        os.sync()  # as the kernel does within half a minute; a disk that can't be written is read-only from then on
        for name, content in data.items():
            assert box.files.read_bytes(name) == content
        assert len(box.files.list("work")) == 200
        assert done.status().exit_code == 0 and b"".join(c.data for c in done.output()).endswith(b"1000\n")
        assert box.info().state == "running"
        with pytest.raises(NoCapacity):
            box.files.write_text("more", "x")
        box.files.remove("file0")
        box.files.remove("work", recursive=True)
        with client(disk, disk.stack.api_key) as api:
            assert api.get("/v1/sandboxes").status_code == 200
        assert disk.stack.status()["disk"]["low"]
        assert not box.files.exists("file0")
        os.sync()
        disk.empty()
        disk.wait_low(False)
        assert box.exec("echo more > file0; sync file0; cat file0").stdout == "more\n", "the disk inside is broken"
        for name, content in list(data.items())[1:]:
            assert box.files.read_bytes(name) == content


def test_every_refusal_says_that_it_is_the_disk(disk: SmallDisk) -> None:
    """No 5xx but 503 no_capacity, also where it is the server's own database that can't be written any more."""
    with client(disk, disk.stack.api_key) as api, client(disk, disk.stack.admin_key) as admin:
        body = {"template": "base", **OPTIONS}
        first = api.post("/v1/sandboxes", json=body)
        assert first.status_code == 201
        disk.fill()
        disk.wait_low(True)
        spent = 0
        for _ in range(400):  # each writes to the database: keys live in it
            made = admin.post("/v1/keys", json={"project": "p" * 60, "label": "x" * 250})
            spent += made.status_code == 201
            if made.status_code != 201:
                break
        assert spent, "the ballast was there for the first ones"
        refused = api.post("/v1/sandboxes", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_capacity"), refused.text
        assert refused.json()["error"]["details"]["resource"] == "disk" and refused.json()["error"]["retryable"]
        assert refused.headers["retry-after"]
        sandbox_id = first.json()["id"]
        deleted = api.delete(f"/v1/sandboxes/{sandbox_id}")
        assert deleted.status_code == 204, deleted.text
        assert api.get(f"/v1/sandboxes/{sandbox_id}").status_code == 404
        disk.empty()
        disk.wait_low(False)
        again = api.post("/v1/sandboxes", json=body)
        assert again.status_code == 201
        assert api.delete(f"/v1/sandboxes/{again.json()['id']}").status_code == 204


def test_a_delete_goes_through_without_any_ballast(disk: SmallDisk) -> None:
    box = disk.stack.sandbox(**OPTIONS)
    box.files.write_bytes("something", os.urandom(20 * MIB))
    pids = box.exec("echo $$").stdout
    assert pids
    disk.fill()
    disk.wait_low(True)
    for folder in (disk.stack.data.node_dir, disk.stack.data.server_dir):
        os.truncate(folder / "ballast", 0)
    disk.fill()  # and what they held is gone as well
    box.delete()
    with pytest.raises(NotFound):
        box.info()
    disk.empty()
    disk.wait_low(False)
    wait_until(lambda: not any(disk.stack.data.sandboxes_dir.iterdir()), 60, "it is not given back")


def test_up_and_down_work(disk: SmallDisk) -> None:
    stack = disk.stack
    box = stack.sandbox(**OPTIONS)
    box.files.write_text("kept", "here")
    disk.fill()
    disk.wait_low(True)
    stack.down(sandboxes=False)
    disk.fill()  # what the daemons gave up is gone as well
    stack.up()
    found = Sandbox.connect(box.id, api_url=stack.api_url, api_key=stack.api_key)
    assert found.files.read_text("kept") == "here", "sandboxes outlive a down, and an up finds them"
    found.close()
    stack.down(sandboxes=True)
    assert not any(stack.data.sandboxes_dir.iterdir())
    disk.empty()
    stack.up()
    stack.sandbox(**OPTIONS)
    disk.fill()
    disk.wait_low(True)
    stack.down(sandboxes=False)
    assert any(stack.data.sandboxes_dir.iterdir())
    stack.down(sandboxes=True)
    assert not any(stack.data.sandboxes_dir.iterdir()), "a node alone deletes them, on a disk as full as before"
    disk.empty()
    stack.up()
