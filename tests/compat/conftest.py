"""The façades of other products, driven by those products' own clients, each version in an environment of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.compat import suites
from tests.compat.envd_wire import UNARY, Wire
from tests.compat.suites import client_variables, e2b_variables_of

# The clients' own interpreters run these; here their packages are missing.
collect_ignore = ["python", "typescript"]


@pytest.fixture(scope="session")
def e2b_variables(stack: Stack) -> dict[str, str]:
    return e2b_variables_of(stack)


@pytest.fixture(scope="session")
def e2b_key(e2b_variables: dict[str, str]) -> str:
    return e2b_variables["E2B_API_KEY"]


@pytest.fixture(scope="session")
def e2b_environment(e2b_variables: dict[str, str]) -> dict[str, str]:
    return client_variables(e2b_variables)


@pytest.fixture(scope="session")
def client_environment() -> Callable[[str], Path]:
    return suites.client_environment


@pytest.fixture(scope="module")
def create(stack: Stack, e2b_key: str) -> Callable[[], Wire]:
    def make() -> Wire:
        made = Wire(stack.api_url, "", None)
        answer = made.ask(
            "POST", "/compat/e2b/v2/sandboxes", json.dumps({"templateID": "base", "timeout": 600}),
            Content_Type=UNARY, X_API_KEY=e2b_key, E2b_Sandbox_Id=None, E2b_Sandbox_Port=None,
        )  # fmt: skip
        assert answer.status == 201, answer.body
        return Wire(stack.api_url, answer.json["sandboxID"], answer.json["envdAccessToken"])

    return make


@pytest.fixture(scope="module")
def delete(stack: Stack, e2b_key: str) -> Callable[[Wire], None]:
    def end(wire: Wire) -> None:
        path = f"/compat/e2b/sandboxes/{wire.sandbox_id}"
        wire.ask("DELETE", path, X_API_KEY=e2b_key, E2b_Sandbox_Id=None, E2b_Sandbox_Port=None)

    return end


@pytest.fixture(scope="module")
def wire(create: Callable[[], Wire], delete: Callable[[Wire], None]) -> Iterator[Wire]:
    made = create()
    made.start("true")
    yield made
    delete(made)
