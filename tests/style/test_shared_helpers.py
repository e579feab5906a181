"""What tests share lies in helper modules, each with a base name of its own.

Folders of tests are put on the import path beside each other: a base name that two of them have means the module of
whichever was collected first.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import PurePosixPath

import pytest

OF_EACH_FOLDER = {"conftest", "__init__"}


def modules_of_tests(texts: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name.startswith("tests/") and name.endswith(".py")}


def imported(text: str) -> list[tuple[int, str]]:
    """(line, dotted name) of every module that an import names or may name, at whatever depth of the file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, node.module or ""))
            # Of a package the names may be modules: `from tests.unit import test_x`, `from . import test_x`.
            found += [(node.lineno, f"{node.module or ''}.{alias.name}") for alias in node.names]
    return found


def imports_of_tests(texts: dict[str, str]) -> list[str]:
    """Imports of one of the tree's test modules, however it is named."""
    modules = modules_of_tests(texts)
    tests = {stem for name in modules if (stem := PurePosixPath(name).stem).startswith("test_")}
    return [
        f"{name}:{line}: {module.strip('.')}"
        for name, text in modules.items()
        for line, module in imported(text)
        if module.rpartition(".")[2] in tests
    ]


def shared_base_names(texts: dict[str, str]) -> dict[str, list[str]]:
    """Base name to the paths that have it, of helper modules that more than one folder has."""
    found = defaultdict(list)
    for name in modules_of_tests(texts):
        stem = PurePosixPath(name).stem
        if stem not in OF_EACH_FOLDER and not stem.startswith("test_"):
            found[stem].append(name)
    return {stem: names for stem, names in found.items() if len(names) > 1}


def test_no_module_imports_a_test_module(texts: dict[str, str]) -> None:
    wrong = imports_of_tests(texts)
    assert not wrong, "move what is shared into a helper module:\n" + "\n".join(wrong)


def test_helper_modules_have_unique_base_names(texts: dict[str, str]) -> None:
    assert "tests/unit/node/harness.py" in texts, "the helpers are looked at"
    assert shared_base_names(texts) == {}


@pytest.mark.parametrize(
    "line",
    [
        "from test_a import make",
        "import test_a",
        "import tests.unit.test_a as a",
        "from .test_a import make",
        "from . import test_a",
        "from tests.unit import test_a",
        "from tests.unit.test_a import make",
        "def f():\n    from test_a import make",
    ],
)
def test_an_import_of_a_test_module_is_seen(line: str) -> None:
    for importer in ("tests/unit/test_b.py", "tests/unit/helper.py"):
        assert imports_of_tests({"tests/unit/test_a.py": "", importer: line})
        assert not imports_of_tests({"tests/unit/test_a.py": "", importer: line.replace("test_a", "harness")})


def test_a_base_name_of_two_folders_is_seen() -> None:
    two = {"tests/a/rig.py": "", "tests/b/rig.py": ""}
    assert shared_base_names(two) == {"rig": ["tests/a/rig.py", "tests/b/rig.py"]}
    assert shared_base_names({"tests/a/rig.py": "", "tests/b/other_rig.py": ""}) == {}
    twice_by_need = {f"tests/{folder}/{name}.py": "" for folder in "ab" for name in ("test_x", "conftest", "__init__")}
    assert shared_base_names(twice_by_need) == {}
