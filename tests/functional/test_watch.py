"""Watches through SDK and API: what exec and API change is told, whole after a sync, and their ends are typed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import websockets.sync.client as websockets
from websockets.exceptions import ConnectionClosed

from bellglass import AsyncSandbox, FileEvent, Sandbox
from bellglass.errors import (
    AgentLost,
    ConnectionFailed,
    FileMissing,
    FilePermission,
    FileTypeMismatch,
    InvalidRequest,
    LimitExceeded,
    NodeUnavailable,
    SandboxGone,
    StreamInterrupted,
)
from bellglass.testing.stack import Stack
from tests.functional.waiting import wait_until


def seen(events: list[FileEvent]) -> list[tuple[str, str]]:
    return [(event.kind, event.path) for event in events]


def test_exec_and_api_are_seen(shared_box: Sandbox) -> None:
    files = shared_box.files
    files.mkdir("watch/exec")
    with files.watch("watch", recursive=True) as watch:
        assert watch.sync() == []
        shared_box.exec(
            "cd watch && mkdir -p new/deep && echo hi > new/deep/f && mv new other && rm -r exec", check=True
        )
        told = seen(watch.sync())
        assert told[0] == ("create", "new") and ("remove", "exec") in told
        assert ("create", "new/deep") in told or ("create", "other/deep") in told
        assert any(kind == "create" and path.endswith("deep/f") for kind, path in told)
        files.write_text("watch/other/deep/f", "more")
        told = seen(watch.sync())
        assert ("create", "other/deep/f") in told, "an atomic write puts a new file in the old one's place"
        files.remove("watch/other", recursive=True)
        assert ("remove", "other") in seen(watch.sync())
    with files.watch("watch") as watch:
        files.write_text("watch/f", "x", user="root", owner="user", in_place=True, attributes={})
        assert seen(watch.sync()) == [("create", "f"), ("chmod", "f"), ("write", "f")]


def test_iterating(shared_box: Sandbox) -> None:
    shared_box.files.mkdir("iterate")
    with shared_box.files.watch("iterate", recursive=True) as watch:
        shared_box.exec("cd iterate && mkdir d && touch d/last && rm -r d && cd .. && rmdir iterate", check=True)
        told = seen(list(watch))
    assert told[0] == ("create", "d") and told[-1] == ("remove", "."), told


def test_the_async_form(stack: Stack, shared_box: Sandbox) -> None:
    async def scenario() -> None:
        box = await AsyncSandbox.connect(shared_box.id, api_url=stack.api_url, api_key=stack.api_key)
        await box.files.mkdir("async")
        async with await box.files.watch("async") as watch:
            taken: list[FileEvent] = []

            async def take() -> None:
                async for event in watch:
                    taken.append(event)
                    if event.path == "b":
                        return

            taking = asyncio.create_task(take())
            await box.files.write_text("async/a", "x")
            await box.files.mkdir("async/b")
            await asyncio.wait_for(taking, 20)
            assert ("create", "b") in seen(taken) and taken[-1].dir
        await box.aclose()

    asyncio.run(scenario())


def test_refusals(shared_box: Sandbox) -> None:
    files = shared_box.files
    files.write_text("refused/f", "x")
    files.watch("refused").close()
    with pytest.raises(FileTypeMismatch):
        files.watch("refused/f")
    with pytest.raises(FileMissing):
        files.watch("refused/none")
    with pytest.raises(InvalidRequest, match="user"):
        files.watch("refused", user="nobody-here")
    shared_box.exec(
        "mkdir refused/private; sudo chmod 700 refused/private; sudo chown root refused/private", check=True
    )
    with pytest.raises(FilePermission):
        files.watch("refused/private")
    files.watch("refused/private", user="root").close()


def test_watches_are_counted_and_given_back(shared_box: Sandbox) -> None:
    watches = [shared_box.files.watch(".") for _ in range(16)]
    with pytest.raises(LimitExceeded, match="16 watches"):
        shared_box.files.watch(".")
    assert len(workers(shared_box)) == 16
    for watch in watches:
        watch.close()
    # The node hears of each end a moment later.
    wait_until(lambda: not workers(shared_box), 20, "workers of closed watches stay")
    shared_box.files.watch(".").close()


def test_a_watcher_that_vanishes_leaves_nothing(shared_box: Sandbox) -> None:
    watch = shared_box.files.watch(".", recursive=True)
    assert len(workers(shared_box)) == 1
    watch._socket._stream.get_extra_info("socket").close()  # without a word
    wait_until(lambda: not workers(shared_box), 20, "the worker stays")


def test_messages_that_are_none(stack: Stack, shared_box: Sandbox) -> None:
    address = f"{stack.api_url.replace('http', 'ws')}/v1/sandboxes/{shared_box.id}/files/watch?path=."
    for wrong in ("x", b"\xff", '{"type":"sync"}', '{"type":"sync","token":-1}', '{"type":"sync","token":true}', "[]"):
        with websockets.connect(address, additional_headers={"Authorization": f"Bearer {stack.api_key}"}) as socket:
            assert socket.recv() == '{"type":"ready"}'
            socket.send('{"type":"sync","token":7}')
            assert socket.recv() == '{"type":"synced","token":7}'
            socket.send(wrong)
            assert '"code":"invalid_request"' in str(socket.recv())
            with pytest.raises(ConnectionClosed):
                socket.recv()
            assert (socket.close_code, socket.close_reason) == (4422, "invalid_request")


def workers(box: Sandbox) -> list[str]:
    """Processes of the agent's own beside itself."""
    listed = box.exec("ps -eo pid=,ppid=,args= | grep '[b]ellglass-agent' | grep -v '^ *1 '").stdout
    return listed.splitlines()


def test_a_slow_reader_is_told_what_it_lost(shared_box: Sandbox) -> None:
    with shared_box.files.watch("/tmp", recursive=True) as watch:
        # More than the kernel's queue, the agent, node, server and two sockets hold.
        shared_box.exec(MANY.format(folder="/tmp/slow", count=50_000), check=True, timeout=120)
        told = watch.sync()
        assert "overflow" in {event.kind for event in told}
        shared_box.exec("mkdir /tmp/slow/again && touch /tmp/slow/again/f", check=True)
        assert ("create", "slow/again/f") in seen(watch.sync())
    shared_box.exec("rm -r /tmp/slow", check=True, timeout=120)


MANY = """python3 - <<'END'
import os
os.makedirs("{folder}")
os.chdir("{folder}")
for number in range({count}):
    os.close(os.open("x" * 200 + str(number), os.O_CREAT | os.O_WRONLY))
END"""


def test_one_sandbox_uses_up_only_its_own_watches(box: Sandbox, shared_box: Sandbox) -> None:
    """The kernel's limits are for each owner of a user namespace, and each sandbox is its own."""
    box.files.watch(".").close()
    wait_until(lambda: not workers(box), 20, "the worker stays")  # it has one of the instances
    hog = box.start(["python3", "-uc", HOG])
    for chunk in hog.output(follow=True):
        if b"full" in chunk.data:
            break
    with pytest.raises(LimitExceeded, match="watches open"):
        box.files.watch(".")
    with shared_box.files.watch(".") as watch:
        shared_box.files.write_text("unhurt", "x")
        assert ("create", "unhurt") in seen(watch.sync())
    hog.signal("SIGKILL")
    hog.wait()
    wait_until(lambda: can_watch(box), 20, "what was used up is not given back")


def can_watch(box: Sandbox) -> bool:
    try:
        box.files.watch(".").close()
    except LimitExceeded:
        return False
    return True


HOG = """
import ctypes, time
libc = ctypes.CDLL(None)
while libc.inotify_init() >= 0:
    pass
print("full")
time.sleep(600)
"""


def test_the_sandbox_ends(stack: Stack, new_box: Any) -> None:
    box = new_box()
    other = Sandbox.connect(box.id, api_url=stack.api_url, api_key=stack.api_key)
    watch = other.files.watch(".", recursive=True)
    box.delete()
    with pytest.raises(SandboxGone):
        list(watch)
    with pytest.raises(SandboxGone):
        watch.sync()
    watch.close()
    other.close()


@pytest.mark.own_stack()
def test_daemons_end_it_with_an_error_and_it_can_be_set_anew(own_stack: Stack) -> None:
    with own_stack.sandbox() as box:
        for daemon in ("node", "server"):
            watch = box.files.watch(".", recursive=True)
            box.files.write_text("before", "x")
            assert ("create", "before") in seen(watch.sync())
            own_stack.kill(daemon)
            with pytest.raises((AgentLost, NodeUnavailable, StreamInterrupted)):
                list(watch)
            watch.close()
            wait_until(lambda: is_back(box), 60, f"{daemon} is not back")
            wait_until(lambda: not workers(box), 20, "the worker of the watch stays")
            with box.files.watch(".") as again:
                box.files.write_text(f"after-{daemon}", "x")
                assert ("create", f"after-{daemon}") in seen(again.sync())
            box.files.remove("before")


def is_back(box: Sandbox) -> bool:
    try:
        return box.exec(["true"]).ok
    except (AgentLost, NodeUnavailable, StreamInterrupted, ConnectionFailed):
        return False
