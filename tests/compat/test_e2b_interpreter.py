"""E2B's code interpreter: its clients against the façade, and its wire where none of them goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bellglass.testing.stack import Stack
from tests.compat.suites import run_python, run_typescript

pytestmark = pytest.mark.root


@pytest.mark.parametrize("suite", ["interpreter_sync.py", "interpreter_async.py"])
def test_python(
    suite: str, client_environment: Callable[[str], Path], e2b_environment: dict[str, str], no_leak: None
) -> None:
    run_python(suite, client_environment("e2b-2_63"), e2b_environment)


def test_typescript(
    client_environment: Callable[[str], Path], e2b_environment: dict[str, str], tmp_path: Path, no_leak: None
) -> None:
    run_typescript("interpreter_sdk.mts", client_environment("e2b-js"), e2b_environment, tmp_path)


class Interpreter:
    """Port 49999 of a sandbox, by hand."""

    def __init__(self, client: httpx2.Client, key: str) -> None:
        self.client, self.key = client, {"X-API-KEY": key}
        made = client.post("/compat/e2b/v2/sandboxes", json={"templateID": "code-interpreter-v1"}, headers=self.key)
        assert made.status_code == 201, made.text
        self.made: dict[str, Any] = made.json()
        self.to = {"E2b-Sandbox-Id": self.made["sandboxID"], "E2b-Sandbox-Port": "49999"}
        self.traffic = {"E2B-Traffic-Access-Token": self.made["trafficAccessToken"]}

    def ask(self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx2.Response:
        given = self.traffic if headers is None else headers
        return self.client.request(method, path, headers={**self.to, **given}, **more)

    def execute(self, code: str, **more: Any) -> httpx2.Response:
        return self.ask("POST", "/execute", json={"code": code, **more})


@pytest.fixture(scope="module")
def http(stack: Stack) -> Iterator[httpx2.Client]:
    limits = httpx2.Limits(max_keepalive_connections=0)
    with httpx2.Client(base_url=stack.api_url, timeout=60, trust_env=False, limits=limits) as client:
        yield client


@pytest.fixture(scope="module")
def interpreter(http: httpx2.Client, e2b_key: str) -> Iterator[Interpreter]:
    made = Interpreter(http, e2b_key)
    assert made.execute("1").status_code == 200
    yield made
    http.delete(f"/compat/e2b/sandboxes/{made.made['sandboxID']}", headers=made.key)


def test_either_token_opens_it_and_no_other(interpreter: Interpreter, http: httpx2.Client, e2b_key: str) -> None:
    own = {"X-Access-Token": interpreter.made["envdAccessToken"]}
    assert interpreter.ask("POST", "/execute", headers=own, json={"code": "1"}).status_code == 200
    other = Interpreter(http, e2b_key)
    wrong: tuple[dict[str, str], ...] = ({}, other.traffic, {"X-Access-Token": "x"}, {"X-API-KEY": e2b_key})
    for headers in wrong:
        for method, path in (
            ("POST", "/execute"),
            ("GET", "/contexts"),
            ("POST", "/contexts"),
            ("DELETE", "/contexts/python"),
        ):
            refused = interpreter.ask(method, path, headers=headers, json={"code": "1"})
            assert (refused.status_code, refused.json()["code"]) == (403, 403), (headers, path)
    http.delete(f"/compat/e2b/sandboxes/{other.made['sandboxID']}", headers=other.key)


def test_lines_are_ascii_none_is_empty_and_keys_without_a_value_are_left_out(interpreter: Interpreter) -> None:
    answer = interpreter.execute("print('\\u2028')\n5", context_id=None, language=None, env_vars=None)
    assert answer.headers["content-type"] == "application/x-ndjson" and answer.content.isascii()
    lines = [json.loads(line) for line in answer.content.decode().split("\n")[:-1]]
    assert [line["type"] for line in lines] == ["number_of_executions", "stdout", "result", "end_of_execution"]
    assert lines[2] == {"type": "result", "is_main_result": True, "text": "5"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"code": "1", "context_id": "python", "language": "python"}, 400),
        ({"code": "1", "context_id": "x"}, 404),
        ({"code": "1", "context_id": "cx" + "a" * 20}, 404),
        ({"code": "1", "language": "cobol"}, 500),
        ({"code": 5}, 400),
        ({}, 400),
        ({"code": "1", "env_vars": {"A": 1}}, 400),
        ({"code": "1", "env_vars": {"A=": "1"}}, 400),
        ({"code": "x" * 5_000_000}, 400),
        ([], 400),
    ],
)
def test_what_is_wrong_has_its_status_and_a_json_body(interpreter: Interpreter, body: Any, status: int) -> None:
    refused = interpreter.ask("POST", "/execute", json=body)
    assert (refused.status_code, refused.json()["code"]) == (status, status), refused.text
    assert interpreter.execute("1").status_code == 200


def test_routes_that_are_none_and_a_body_that_is_none(interpreter: Interpreter) -> None:
    for method, path in (("GET", "/execute"), ("PUT", "/contexts"), ("POST", "/contexts/python"), ("GET", "/")):
        assert interpreter.ask(method, path).status_code == 404, path
    assert interpreter.ask("POST", "/execute", content=b"{").status_code == 400
    assert interpreter.ask("POST", "/contexts/cx" + "a" * 20 + "/restart").status_code == 404
    assert interpreter.ask("GET", "/health", headers={}).status_code == 200
    made = interpreter.ask("POST", "/contexts")
    assert made.json()["language"] == "python" and set(made.json()) == {"id", "language", "cwd"}
    assert interpreter.ask("DELETE", f"/contexts/{made.json()['id']}").status_code == 204
