"""Fixtures of the functional and security tests: real installations, sandboxes, keys, and the leak check around each.

As root nothing is skipped: a missing runtime, agent or template fails, since `make test` has to have brought it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from bellglass.errors import NotFound
from bellglass.testing.leaks import (
    assert_no_leak,
    host_leaks,
    host_namespaces,
    settled_snapshot,
    snapshot,
    snapshot_of_nothing,
)
from bellglass.testing.stack import Stack
from tests.functional.own import own_installation

SANDBOX_OPTIONS: dict[str, Any] = {"cpus": 1, "memory": "512MiB", "disk": "1GiB", "lifetime": "15m"}
"""Small, so that many fit on a small machine."""


LONGEST_FIRST = (
    *("test_crash_points.py", "test_symlink_race.py", "test_crash_random.py", "test_template_build.py"),
    *("test_previews.py", "test_egress_faults.py", "test_packages.py", "test_streams_survive.py", "test_big_files.py"),
    *("test_adapters.py", "test_inspect.py", "test_e2b_speed.py", "test_e2b_clients.py"),
)
"""Files that would keep one worker busy after the others have ended."""
DESCRIPTORS = 65536
_HOST = pytest.StashKey[Any]()


def pytest_configure() -> None:
    """A worker holds the connections of crowds, in the unit tests both ends of them: more than the limit that it was
    often started with, which is its own to raise."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        wanted = max(most, DESCRIPTORS) if os.geteuid() == 0 else most
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
        except (ValueError, PermissionError):  # root of a container that may not
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.name) if item.path.name in LONGEST_FIRST else 99)


def pytest_sessionstart(session: pytest.Session) -> None:
    if os.geteuid() == 0 and not hasattr(session.config, "workerinput"):
        session.config.stash[_HOST] = host_namespaces()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Once all workers have ended, no namespace may be left of any test."""
    before = session.config.stash.get(_HOST, None)
    if before is not None and (left := host_leaks(before)):
        print("\nleft behind by the run:\n  " + "\n  ".join(left))
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """An installation with the runc driver. Afterwards nothing of it may be left on the machine."""
    assert os.geteuid() == 0, "sandboxes need root"
    # Beside other workers the kernel's count is theirs too and never calm: the whole run's is compared at its end.
    is_worker = hasattr(request.config, "workerinput")
    running = Stack.start()
    scope = running.scope
    try:
        _warm_up(running)
        before = snapshot(scope) if is_worker else settled_snapshot(scope)
        yield running
        assert_no_leak(before, late=not is_worker)
    finally:
        running.close()
    assert_no_leak(snapshot_of_nothing(scope), deadline_s=10)


@pytest.fixture(scope="module")
def own_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """An installation for all tests of the file, which they may stop, kill, fill, or set otherwise than the suite's.
    What `Stack.start` is to get stands in the file's mark:

    pytestmark = pytest.mark.own_stack(settings={"node.log_limit": 2**23})
    """
    mark = request.node.get_closest_marker("own_stack")
    with own_installation(**(mark.kwargs if mark is not None else {})) as running:
        yield running


@pytest.fixture(scope="session")
def fake_stack() -> Iterator[Stack]:
    """An installation whose driver isolates nothing and needs no root."""
    with Stack.start(driver="fake") as running:
        yield running


def _warm_up(running: Stack) -> None:
    """Whatever daemons open once and keep (database connections, worker threads) is open before the first snapshot."""
    with running.sandbox(**SANDBOX_OPTIONS) as box:
        box.exec(["true"])
        box.files.write_text("warm", "up")
        box.files.read_text("warm")
    deadline = time.monotonic() + 10
    while any(running.data.sandboxes_dir.iterdir()):
        assert time.monotonic() < deadline, "the first sandbox is not reclaimed"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around every test that uses the installation: what it made is gone 5 s later.

    Fixtures of a wider scope, such as `shared_box`, are set up before and don't count.
    """
    names = set(request.fixturenames)
    # A kernel that replaces a dead one would be a process left behind; of the interpreter's sandbox the end counts.
    if "interpreter" in names or not {"stack", "box", "new_box", "shared_box"} & names:
        yield
        return
    running: Stack = request.getfixturevalue("stack")
    before = snapshot(running.scope)
    yield
    assert_no_leak(before, deadline_s=5)


@pytest.fixture
def new_box(stack: Stack, no_leak: None) -> Iterator[Callable[..., Any]]:
    """Makes sandboxes that end with the test: `new_box(memory="1GiB")`."""
    made = []

    def make(template: str = "base", **options: Any) -> Any:
        box = stack.sandbox(template, **{**SANDBOX_OPTIONS, **options})
        made.append(box)
        return box

    yield make
    for box in made:
        end(box)


def end(box: Any) -> None:
    """Delete a sandbox that the test may have deleted already."""
    try:
        box.delete()
    except NotFound:
        box.close()


@pytest.fixture
def box(new_box: Callable[..., Any]) -> Any:
    """A sandbox of the test's own."""
    return new_box()


@pytest.fixture(scope="module")
def shared_box(stack: Stack) -> Iterator[Any]:
    """One sandbox for all tests of a file; they leave no process running and keep to paths of their own."""
    made = stack.sandbox(**SANDBOX_OPTIONS)
    made.exec(["echo", "the first output makes the folder of its logs"])
    yield made
    end(made)


@pytest.fixture(scope="session")
def api(stack: Stack) -> Iterator[httpx2.Client]:
    """The HTTP API as it is, for what the SDK does not show. No connection outlives its request."""
    with httpx2.Client(
        base_url=stack.api_url,
        headers={"Authorization": f"Bearer {stack.api_key}"},
        timeout=120,
        limits=httpx2.Limits(max_keepalive_connections=0),
        trust_env=False,
    ) as client:
        yield client


class Pushed(NamedTuple):
    """What a server answered to a body before all of it was sent, and how much was."""

    status: int
    error: dict[str, Any]
    sent_bytes: int


@pytest.fixture(scope="session")
def push(stack: Stack) -> Callable[..., Pushed]:
    """Sends a body only until the server answers, and then wants the connection to end: a server that goes on reading
    would let a refused client fill its line."""

    def send(method: str, target: str, pieces: Iterator[bytes], *, length: int) -> Pushed:
        host, port = stack.api_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {stack.api_key}\r\n"
            connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
            sent, answered = 0, False
            for piece in pieces:
                if select.select([connection], [], [], 0)[0]:
                    answered = True
                    break
                try:
                    connection.sendall(piece)
                except (ConnectionResetError, BrokenPipeError):
                    answered = True  # and what it said before is still there to be read
                    break
                sent += len(piece)
            connection.settimeout(10)
            raw = connection.recv(65536)
            while raw and b"\r\n\r\n" not in raw:
                raw += connection.recv(65536)
            assert raw, "hung up without an answer"
            head, _, body = raw.partition(b"\r\n\r\n")
            headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            while len(body) < int(headers[b"content-length"]):
                body += connection.recv(65536)
            assert answered or sent < length
            try:
                deadline = time.monotonic() + 10
                while connection.recv(65536) != b"":
                    assert time.monotonic() < deadline, "the server keeps the connection of a body that it refused"
            except ConnectionResetError:
                pass
        return Pushed(int(head.split()[1]), json.loads(body)["error"], sent)

    return send


@pytest.fixture(scope="session")
def second_key(stack: Stack) -> str:
    """A key of another project of the same installation."""
    return stack.create_key("second")


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file of the host's, readable by root alone, that nothing from inside may read, change or remove."""
    path = Path(f"/etc/bellglass-canary-{os.getpid()}")
    path.write_text("host canary\n")
    path.chmod(0o600)
    yield path
    try:
        assert path.read_text() == "host canary\n"
    finally:
        path.unlink(missing_ok=True)
