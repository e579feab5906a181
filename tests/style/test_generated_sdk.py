"""The synchronous SDK is what scripts/unasync.py makes of the asynchronous one."""

from __future__ import annotations

import ast
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def generator() -> Any:
    spec = spec_from_file_location("bellglass_unasync", ROOT / "scripts" / "unasync.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_current() -> None:
    stale = generator().drift()
    assert not stale, f"run scripts/unasync.py: {[path.name for path in stale]}"


def test_drift_is_seen(tmp_path: Path) -> None:
    module = generator()
    copy = tmp_path / "sdk"
    for folder in ("_async", "_sync"):
        (copy / folder).mkdir(parents=True)
        for path in (module.SDK / folder).glob("*.py"):
            (copy / folder / path.name).write_text(path.read_text())
    module.SDK = copy
    assert module.drift() == []
    changed = copy / "_sync" / "box.py"
    changed.write_text(changed.read_text() + "# by hand\n")
    orphan = copy / "_sync" / "gone.py"
    orphan.write_text("")
    assert module.drift() == [changed, orphan]


def test_no_trace_of_async_is_left() -> None:
    for path in (ROOT / "src/bellglass/sdk/_sync").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            kinds = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
            assert not isinstance(node, kinds), f"{path.name}:{node.lineno}"
