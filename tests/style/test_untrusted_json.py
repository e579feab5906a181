"""JSON that a guest or a client may have written is read by bellglass.wire.untrusted, whose only failure is a
ValueError. `json.loads` is for what an installation writes itself."""

from __future__ import annotations

import ast

import pytest

READERS = ("src/bellglass/server/", "src/bellglass/node/contexts/")
OWN = {
    "src/bellglass/server/app.py": "the installation's file",
    "src/bellglass/server/cluster/journal.py": "the node's journal",
    "src/bellglass/server/compat/e2b/interpreter/stream.py": "lines that the node wrote",
    "src/bellglass/server/files/service.py": "the node's answers",
    "src/bellglass/server/files/watching.py": "lines that the node wrote",
    "src/bellglass/server/sandboxes/idempotency.py": "our own rows",
    "src/bellglass/node/contexts/store.py": "our own rows",
}


def loads(text: str) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in ("loads", "load") and ast.unparse(node.value) == "json"
    ]


def test_whoever_may_mean_ill_is_read_with_care(texts: dict[str, str]) -> None:
    looked = {name: text for name, text in texts.items() if name.startswith(READERS) and name.endswith(".py")}
    assert set(OWN) <= {name for name, text in looked.items() if loads(text)}, "the list names what reads no JSON"
    wrong = [f"{name}:{line}" for name, text in looked.items() if name not in OWN for line in loads(text)]
    assert not wrong, f"use untrusted.parse: {wrong}"


@pytest.mark.parametrize(("text", "found"), [("json.loads(x)", [1]), ("untrusted.parse(x)", []), ("import json", [])])
def test_the_check_itself(text: str, found: list[int]) -> None:
    assert loads(text) == found
