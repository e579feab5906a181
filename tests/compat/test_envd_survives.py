"""What E2B's clients have open, over the death of the server or the node, in an installation that may lose them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bellglass.node.helper import cgroup
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack
from tests.compat.envd_wire import Answer, Live, Wire, command, output_of
from tests.compat.suites import client_variables, e2b_variables_of, run_python
from tests.functional.waiting import wait_until

FILESYSTEM = "filesystem.Filesystem"
SCRIPT = "for i in $(seq 1 150); do echo $i; sleep 0.02; done"


@pytest.fixture(scope="module")
def own_wire(own_stack: Stack) -> Iterator[Wire]:
    with own_stack.sandbox(cpus=1, memory="512MiB", disk="1GiB") as box:
        asked = Wire(own_stack.api_url, box.id, None).ask(
            "POST", f"/compat/e2b/sandboxes/{box.id}/connect", b'{"timeout":600}', X_API_KEY=own_stack.api_key,
            Content_Type="application/json", E2b_Sandbox_Id=None, E2b_Sandbox_Port=None,
        )  # fmt: skip
        yield Wire(own_stack.api_url, box.id, asked.json["envdAccessToken"])


def has_node(wire: Wire) -> bool:
    return bool(wire.ask("GET", "/v1/health", E2b_Sandbox_Id=None, E2b_Sandbox_Port=None).json["node"] == "up")


def test_the_client_over_the_death_of_the_server(own_stack: Stack, client_environment: Callable[[str], Path]) -> None:
    """Commands, terminals and contexts go on; a watcher that is asked has to be made anew."""
    more = {"SUPERVISOR_FILE": str(own_stack.data.supervisor_file)}
    environment = client_variables(e2b_variables_of(own_stack)) | more
    run_python("survives_server.py", client_environment("e2b-2_63"), environment)


def test_output_goes_on_where_it_was_when_the_node_comes_back(own_stack: Stack, own_wire: Wire) -> None:
    live = Live(own_wire, "process.Process/Start", command(SCRIPT))
    first = [live.next() for _ in range(5)]
    own_stack.kill("node")
    rest = []
    while not rest or rest[-1][0] == 0:
        rest.append(live.next())
    live.close()
    assert rest[-1] == (2, {})
    messages = [message for flags, message in (*first, *rest) if flags == 0]
    assert b"".join(output_of_messages(messages)) == b"".join(b"%d\n" % i for i in range(1, 151))
    assert [message["event"] for message in messages].count(messages[0]["event"]) == 1
    assert messages[-1]["event"]["end"]["exitCode"] == 0
    assert output_of(own_wire.start("echo after")) == b"after\n"


def output_of_messages(messages: list[dict[str, dict[str, dict[str, str]]]]) -> list[bytes]:
    return [base64.b64decode(message["event"].get("data", {}).get("stdout", "")) for message in messages]


def test_a_stream_of_a_folders_changes_ends_with_an_error_when_the_node_dies(own_stack: Stack, own_wire: Wire) -> None:
    """No end by itself: that would say that the folder is gone."""
    folder = "/home/user/streamed"
    assert own_wire.unary(f"{FILESYSTEM}/MakeDir", {"path": folder}).status == 200
    live = Live(own_wire, f"{FILESYSTEM}/WatchDir", {"path": folder})
    assert live.next() == (0, {"start": {}})
    output_of(own_wire.start(f"mkdir {folder}/made"))
    assert live.next()[1]["filesystem"] == {"name": "made", "type": "EVENT_TYPE_CREATE"}
    end_and_await(own_stack, "node")
    flags, last = live.next()
    live.close()
    assert (flags, last["error"]["code"]) == (2, "unavailable")
    wait_until(lambda: has_node(own_wire), 20, "the server has no node")


# --- watchers that a client asks again and again ----------------------------------------------------------------------


def made(wire: Wire, folder: str) -> dict[str, str]:
    answer = wire.unary(f"{FILESYSTEM}/CreateWatcher", {"path": folder, "recursive": True})
    assert answer.status == 200, answer
    return {"watcherId": answer.json["watcherId"]}


def names(wire: Wire, watcher: dict[str, str]) -> set[str]:
    answer = wire.unary(f"{FILESYSTEM}/GetWatcherEvents", watcher)
    assert answer.status == 200, answer
    return {event["name"] for event in answer.json["events"]}


def error(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json.get("code")


def processes(stack: Stack, sandbox_id: str) -> int:
    """Of the sandbox, as the host counts them: each watch is one."""
    group = cgroup.layout().group(cgroup.group_name(stack.scope.installation, sandbox_id))
    return sum(len(file.read_text().split()) for file in group.rglob("cgroup.procs"))


@pytest.mark.parametrize("daemon", ["server", "node"])
def test_polled_watchers_end_with_the_daemon_and_leave_nothing(own_stack: Stack, own_wire: Wire, daemon: str) -> None:
    wire, folder, unknown = own_wire, f"/home/user/{daemon}", {"watcherId": "0" * 16}
    assert wire.unary(f"{FILESYSTEM}/MakeDir", {"path": folder}).status == 200
    at_rest = processes(own_stack, wire.sandbox_id)
    watchers = [made(wire, folder) for _ in range(8)]
    assert processes(own_stack, wire.sandbox_id) >= at_rest + 8
    output_of(wire.start(f"touch {folder}/before"))
    assert all(names(wire, watcher) == {"before"} for watcher in watchers)
    assert wire.unary(f"{FILESYSTEM}/RemoveWatcher", watchers.pop()).status == 200

    end_and_await(own_stack, daemon)
    # The server dials a node that has just come back a moment later.
    wait_until(lambda: has_node(wire), 20, "the server has no node")
    wait_until(lambda: processes(own_stack, wire.sandbox_id) == at_rest, 20, "watches live in the sandbox")
    for method in ("GetWatcherEvents", "RemoveWatcher"):
        assert error(wire.unary(f"{FILESYSTEM}/{method}", unknown)) == (404, "not_found")
        for watcher in watchers:
            assert error(wire.unary(f"{FILESYSTEM}/{method}", watcher)) == (404, "not_found")
    again = made(wire, folder)
    output_of(wire.start(f"touch {folder}/after"))
    assert names(wire, again) == {"after"}
    assert wire.unary(f"{FILESYSTEM}/RemoveWatcher", again).status == 200
    wait_until(lambda: processes(own_stack, wire.sandbox_id) == at_rest, 20, "a removed watch lives in the sandbox")
