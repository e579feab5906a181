"""Ends in a crowd: deletes that race with everything else, clients that vanish, and what others then hear."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bellglass import AsyncSandbox, Sandbox, SandboxGone
from bellglass.errors import Conflict, NotFound
from bellglass.model import parse_time
from bellglass.testing.stack import Stack

TINY = {"template": "base", "cpus": 0.5, "memory": "64MiB", "disk": "64MiB", "pids": 32, "lifetime": "10m"}


@pytest.fixture
def project(stack: Stack, no_leak: None) -> Iterator[httpx2.Client]:
    """A client of a project of its own; what it leaves running ends with the test."""
    with httpx2.Client(
        base_url=stack.api_url,
        headers={"authorization": f"Bearer {new_key(stack)}"},
        timeout=120,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        trust_env=False,
    ) as api:
        yield api
        for id in ids_of(api):
            assert api.delete(f"/v1/sandboxes/{id}").status_code == 204


def new_key(stack: Stack) -> str:
    """Of a new project; quicker than by the command line."""
    headers = {"authorization": f"Bearer {stack.admin_key}"}
    body = {"project": f"crowd-{secrets.token_hex(4)}"}
    answer = httpx2.post(f"{stack.api_url}/v1/keys", json=body, headers=headers, trust_env=False)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


def ids_of(api: httpx2.Client, **params: Any) -> list[str]:
    answer = api.get("/v1/sandboxes", params={"limit": 1000, **params})
    return [item["id"] for item in answer.json()["items"]]


def connection(api: httpx2.Client) -> dict[str, Any]:
    return {
        "api_url": str(api.base_url).rstrip("/"),
        "api_key": api.headers["authorization"].removeprefix("Bearer "),
    }


def until(true: Callable[[], Any], what: str, within_s: float = 20) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def test_ten_deletes_at_once_all_succeed(project: httpx2.Client) -> None:
    made = project.post("/v1/sandboxes", json=TINY).json()["id"]
    project.post(f"/v1/sandboxes/{made}/executions", json={"command": ["sleep", "100"], "detach": True})
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: project.delete(f"/v1/sandboxes/{made}"), range(10)))
    assert [answer.status_code for answer in answers] == [204] * 10
    assert project.get(f"/v1/sandboxes/{made}").status_code == 404
    assert project.delete(f"/v1/sandboxes/{made}").status_code == 204, "and so does one that comes late"


def test_a_delete_during_a_create(project: httpx2.Client) -> None:
    """Whoever creates hears that it is gone, also when asking again with the same key; nothing is left."""
    outcomes = []
    for number in range(6):
        name, key = f"brief-{number}", {"idempotency-key": secrets.token_hex(8)}
        body = {**TINY, "name": name}
        with ThreadPoolExecutor(4) as pool:
            creating = pool.submit(project.post, "/v1/sandboxes", json=body, headers=key)
            [made] = until(lambda name=name: ids_of(project, name=name), "the row does not come")
            deletes = [pool.submit(project.delete, f"/v1/sandboxes/{made}") for _ in range(3)]
            assert [done.result().status_code for done in deletes] == [204] * 3
            answer = creating.result()
        outcomes.append(answer.status_code)
        if answer.status_code == 410:
            again = project.post("/v1/sandboxes", json=body, headers=key)
            assert (again.status_code, again.json()["error"]["code"]) == (410, "sandbox_gone")
            assert again.json()["error"]["details"]["sandbox_id"] == made
        assert project.get(f"/v1/sandboxes/{made}").status_code == 404
    assert set(outcomes) <= {201, 410} and 410 in outcomes
    assert ids_of(project, state="all") == []


def big_file(folder: Path) -> Path:
    """More than can be moved before a delete gets through."""
    file = folder / "big"
    with open(file, "wb") as made:
        made.truncate(3 << 30)
    return file


def begins(box: Any, delete: Callable[..., None], folder: Path, what: str) -> Any:
    """Something long in the sandbox, which calls `delete` once it is under way."""
    if what == "upload":
        return box.files.upload(big_file(folder), "/tmp/big", on_progress=delete)
    if what == "upload_dir":
        (folder / "many").mkdir()
        big_file(folder / "many")
        return box.files.upload_dir(folder / "many", "/tmp/many", on_progress=delete)
    if what == "download":
        return box.files.download("/tmp/sparse/big", folder / "came", on_progress=delete)
    if what == "download_dir":
        return box.files.download_dir("/tmp/sparse", folder / "came", on_progress=delete)
    return box.exec("echo begun; sleep 60", on_stdout=delete)


LONG = ["exec", "upload", "upload_dir", "download", "download_dir"]


def check_gone(error: SandboxGone, asked_at: float, what: str) -> None:
    assert error.details["reason"] == "user"
    if error.details["ended_at"] is None:  # a download learns by asking again, and what was deleted is unknown then
        assert what.startswith("download")
        return
    ended_at = parse_time(error.details["ended_at"]).timestamp()
    assert asked_at - 1 < ended_at < time.time() + 1


@pytest.mark.parametrize("what", LONG)
def test_deleted_by_another_client_says_so(
    new_box: Callable[..., Any], stack: Stack, tmp_path: Path, what: str
) -> None:
    """In the middle of whatever it is: SandboxGone with reason and time, soon, and no half file."""
    box = new_box(disk="4GiB")
    box.exec("mkdir /tmp/sparse; truncate -s 3G /tmp/sparse/big")
    other = Sandbox.connect(box.id, api_url=stack.api_url, api_key=stack.api_key)
    asked_at: list[float] = []
    thread = threading.Thread(target=other.delete)

    def delete(*_: Any) -> None:
        if not asked_at:
            asked_at.append(time.time())
            thread.start()

    with pytest.raises(SandboxGone) as caught:
        begins(box, delete, tmp_path, what)
    thread.join(10)
    assert asked_at and not thread.is_alive()
    check_gone(caught.value, asked_at[0], what)
    assert time.time() - asked_at[0] < 20
    if what == "download":
        assert not (tmp_path / "came").exists(), "half a file"


@pytest.mark.parametrize("what", LONG)
def test_deleted_by_another_task_says_so(new_box: Callable[..., Any], stack: Stack, tmp_path: Path, what: str) -> None:
    made = new_box(disk="4GiB")
    made.exec("mkdir /tmp/sparse; truncate -s 3G /tmp/sparse/big")

    async def check() -> None:
        keys = {"api_url": stack.api_url, "api_key": stack.api_key}
        box, other = await AsyncSandbox.connect(made.id, **keys), await AsyncSandbox.connect(made.id, **keys)
        asked_at: list[float] = []
        tasks: list[asyncio.Task[Any]] = []

        def delete(*_: Any) -> None:
            if not asked_at:
                asked_at.append(time.time())
                tasks.append(asyncio.get_running_loop().create_task(other.delete()))

        with pytest.raises(SandboxGone) as caught:
            await begins(box, delete, tmp_path, what)
        await asyncio.gather(*tasks)
        check_gone(caught.value, asked_at[0], what)
        await box.aclose()

    asyncio.run(check())


def test_a_download_tells_the_reason_of_an_end_by_itself(new_box: Callable[..., Any], tmp_path: Path) -> None:
    box = new_box(disk="4GiB")
    box.exec("mkdir /tmp/sparse; truncate -s 3G /tmp/sparse/big")
    with pytest.raises(SandboxGone) as caught:
        for number, _ in enumerate(box.files.read_stream("/tmp/sparse/big")):
            if number == 0:
                box.update(lifetime=1)
    assert caught.value.details["reason"] == "lifetime" and caught.value.details["ended_at"]


class Vanishing:
    """Sends requests and is gone some milliseconds later, half of the time with a reset."""

    def __init__(self, api: httpx2.Client) -> None:
        self._address = (str(api.base_url.host), int(api.base_url.port or 80))
        self._key = api.headers["authorization"]
        self._random = random.Random(38)

    def send(self, method: str, path: str, body: Any = None, headers: str = "") -> None:
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: {self._key}\r\n{headers}"
        with socket.create_connection(self._address, timeout=10) as line:
            line.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw)
            line.settimeout(self._random.uniform(0.0005, 0.12))
            try:
                line.recv(1)
            except TimeoutError:
                pass
            if self._random.random() < 0.5:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_clients_that_vanish_leave_nothing_undone(project: httpx2.Client) -> None:
    """A create goes on and is found by its key; executions end; a delete is carried through."""
    gone, count = Vanishing(project), 12
    keys = [secrets.token_hex(8) for _ in range(count)]
    with ThreadPoolExecutor(4) as pool:
        for key in keys:
            pool.submit(gone.send, "POST", "/v1/sandboxes", TINY, f"idempotency-key: {key}\r\n")
    answers = [project.post("/v1/sandboxes", json=TINY, headers={"idempotency-key": key}) for key in keys]
    assert {answer.status_code for answer in answers} == {201}, [answer.text for answer in answers]
    made = {answer.json()["id"] for answer in answers}
    assert len(made) == count and set(ids_of(project)) == made, "one for each key, whoever saw it first"

    with ThreadPoolExecutor(4) as pool:
        for id in made:
            for command in (["true"], ["sh", "-c", "head -c 300000 /dev/zero; sleep 0.2; head -c 300000 /dev/zero"]):
                pool.submit(gone.send, "POST", f"/v1/sandboxes/{id}/executions", {"command": command, "timeout": 10})
    running = {"state": "running"}
    for id in made:
        until(
            lambda id=id: project.get(f"/v1/sandboxes/{id}/executions", params=running).json()["items"] == [],
            "an execution whose client is gone does not end",
        )
        done = project.post(f"/v1/sandboxes/{id}/executions", json={"command": ["echo", "usable"]})
        assert done.json()["stdout"] == "usable\n"

    with ThreadPoolExecutor(4) as pool:
        for id in made:
            pool.submit(gone.send, "DELETE", f"/v1/sandboxes/{id}")
    until(lambda: not ids_of(project, state="all"), "a delete whose client is gone is not carried through")


def test_a_crowd_on_three_names(project: httpx2.Client) -> None:
    """Everybody gets, uses and deletes the same sandboxes: only errors that say what happened, and nothing stays."""
    deadline = time.monotonic() + 4
    options = {name: value for name, value in TINY.items() if name != "template"} | connection(project)
    done = {"exec": 0, "delete": 0, "refused": 0}

    def work(seed: int) -> None:
        choose = random.Random(seed)
        while time.monotonic() < deadline:
            try:
                box = Sandbox.get_or_create(name=f"crowd-{choose.randrange(3)}", **options)
            except (SandboxGone, NotFound):  # deleted while it was made
                done["refused"] += 1
                continue
            try:
                for _ in range(3):
                    what = choose.random()
                    if what < 0.4:
                        assert box.exec(["echo", "x"]).stdout == "x\n"
                        done["exec"] += 1
                    elif what < 0.6:
                        box.files.write_text(f"f{seed}", "x" * 1000)
                    elif what < 0.8:
                        list(box.executions())
                    else:
                        box.delete()
                        done["delete"] += 1
                        break
            except (SandboxGone, NotFound, Conflict):
                done["refused"] += 1
            finally:
                box.close()

    with ThreadPoolExecutor(12) as pool:
        for finished in [pool.submit(work, seed) for seed in range(12)]:
            finished.result(60)
    assert done["exec"] and done["delete"], done
    assert len(ids_of(project)) <= 3
