"""envd's streams over restarts of the node, in an installation that may lose it."""

from __future__ import annotations

import base64

import pytest

from bellglass.testing.stack import Stack
from tests.compat.envd_wire import Live, Wire, command, output_of

SCRIPT = "for i in $(seq 1 300); do echo $i; sleep 0.02; done"


@pytest.mark.slow
def test_output_goes_on_where_it_was_when_the_node_comes_back() -> None:
    with Stack.start() as stack, stack.sandbox(cpus=1, memory="512MiB", disk="1GiB") as box:
        asked = Wire(stack.api_url, box.id, None).ask(
            "POST", f"/compat/e2b/sandboxes/{box.id}/connect", b'{"timeout":600}', X_API_KEY=stack.api_key,
            Content_Type="application/json", E2b_Sandbox_Id=None, E2b_Sandbox_Port=None,
        )  # fmt: skip
        wire = Wire(stack.api_url, box.id, asked.json["envdAccessToken"])
        live = Live(wire, "process.Process/Start", command(SCRIPT))
        first = [live.next() for _ in range(5)]
        stack.kill("node")
        rest = []
        while not rest or rest[-1][0] == 0:
            rest.append(live.next())
        live.close()
        assert rest[-1] == (2, {})
        messages = [message for flags, message in (*first, *rest) if flags == 0]
        assert b"".join(output_of_messages(messages)) == b"".join(b"%d\n" % i for i in range(1, 301))
        assert [message["event"] for message in messages].count(messages[0]["event"]) == 1
        assert messages[-1]["event"]["end"]["exitCode"] == 0
        assert output_of(wire.start("echo after")) == b"after\n"


def output_of_messages(messages: list[dict[str, dict[str, dict[str, str]]]]) -> list[bytes]:
    return [base64.b64decode(message["event"].get("data", {}).get("stdout", "")) for message in messages]
