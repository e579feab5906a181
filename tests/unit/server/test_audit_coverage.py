"""What changes something by an API call has an entry in the audit, whichever route it came by."""

from __future__ import annotations

import ast
from pathlib import Path

from bellglass.server.app import make_fastapi
from bellglass.server.compat import e2b

READS_OF_ENVD = {"context.list", "exec.list", "exec.output", "file.list", "file.stat", "file.watch"}
"""Calls of envd and of the interpreter are POSTs, reads among them."""


def test_every_native_route_that_writes_is_audited() -> None:
    described = [(route, route.described) for route in make_fastapi().routes if hasattr(route, "described")]
    writing = [(route.path, about) for route, about in described if not route.methods <= {"GET", "HEAD"}]
    assert len(writing) > 30
    assert [path for path, about in writing if not about.audited] == []
    reading = {about.action for route, about in described if about.audited and route.methods <= {"GET", "HEAD"}}
    assert "file.read" in reading, "so are reads of files"


def test_what_e2bs_programs_leave_out_reads_alone() -> None:
    left_out = set()
    for path in Path(e2b.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(
                word.arg == "audited" and isinstance(word.value, ast.Constant) and word.value.value is False
                for word in node.keywords
            ):
                left_out |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    assert left_out == READS_OF_ENVD
