"""What nothing uses does not stay: names that stand in one place only, settings that nobody reads, dependencies."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator

from bellglass.settings import SETTINGS

PLAIN_DECORATORS = {"property", "staticmethod", "classmethod", "contextmanager", "cached_property"}
"""Any other may be what uses the function."""
BROUGHT_ALONG = {
    "starlette": "fastapi",
    "pydantic_core": "pydantic",
    "yaml": "inspect-ai",
}
"""Import name to the dependency that cannot be without it."""
IMPORTED_AS = {"inspect-ai": "inspect_ai", "grpcio": "grpc", "python-multipart": "python_multipart"}
LOADED_BY_NAME = {
    "uvloop": "by uvicorn too",
    "httptools": "by uvicorn",
    "pytest-xdist": "by pytest",
    "pytest-timeout": "by pytest",
    "ruff": "a program",
    "mypy": "a program",
    "types-jsonschema": "by mypy",
}


def definitions(text: str) -> Iterator[str]:
    """Names of functions, classes, methods and values that a module gives. What a framework calls by its name is left
    out: decorated functions, methods of classes that inherit, and what these set of themselves."""

    def visit(node: ast.AST, inherits: bool, *, method: bool = False) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield child.name
                yield from visit(child, bool(child.bases))
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                decorated = {ast.unparse(one) for one in child.decorator_list} - PLAIN_DECORATORS
                if not decorated and (method or not inherits):
                    yield child.name
                yield from visit(child, inherits, method=True)
            elif isinstance(child, (ast.Assign, ast.AnnAssign)):
                for target in child.targets if isinstance(child, ast.Assign) else [child.target]:
                    if isinstance(target, ast.Name):
                        yield target.id
                    elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and not inherits:
                        yield target.attr
            else:
                yield from visit(child, inherits, method=method)

    yield from (name for name in visit(ast.parse(text), False) if not name.startswith("__"))


def unused_names(sources: dict[str, str], texts: dict[str, str]) -> list[str]:
    counted = Counter[str]()
    for name, text in texts.items():
        if "/_sync/" not in name:
            counted.update(re.findall(r"\w+", text))
    return [
        f"{name}: {found}"
        for name, text in sources.items()
        if "/migrations/versions/" not in name
        for found in definitions(text)
        if counted[found] == 1
    ]


def test_every_name_is_used_somewhere(sources: dict[str, str], texts: dict[str, str]) -> None:
    for line in ("A = 1", "def a(): ...", "class A: ...", "class B:\n    def a(self): ...\nB", "self.a = 1"):
        assert len(unused_names({"a.py": line}, {"a.py": line})) == 1
        assert unused_names({"a.py": line}, {"a.py": line, "b.py": "A, a"}) == []
    for line in (
        "@routes.get\ndef a(): ...",
        "class A(B):\n    def a(self): ...\nA",
        "class A(B):\n    def __init__(self):\n        self.a = 1\nA",
    ):
        assert unused_names({"a.py": line}, {"a.py": line}) == []
    assert unused_names(sources, texts) == []


def strings(text: str) -> Iterator[str]:
    """Every string of a module as a pattern: what an f-string fills in may be any word."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(re.escape(p.value) if isinstance(p, ast.Constant) else r"\w+" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value)


def unread_settings(names: list[str], sources: dict[str, str]) -> list[str]:
    sections = tuple({name.partition(".")[0] + r"\." for name in names})
    read = [
        pattern
        for name, text in sources.items()
        if name != "src/bellglass/settings.py"
        for pattern in strings(text)
        if pattern.startswith(sections)
    ]
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in read)]


def test_every_setting_is_read(sources: dict[str, str]) -> None:
    reads = {"a.py": 'settings["a.b"]\nsettings[f"a.{kind}_limit"]'}
    assert unread_settings(["a.b", "a.log_limit", "a.log_size"], reads) == ["a.log_size"]
    assert unread_settings([setting.name for setting in SETTINGS], sources) == []


def dependencies(texts: dict[str, str]) -> set[str]:
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return {re.match(r"[\w-]+", line)[0] for line in lines}


def imported_packages(texts: dict[str, str], *folders: str) -> set[str]:
    line = re.compile(r"^\s*(?:from (?=[\w.]+ import )|import (?=[\w.]+(?:$|,| as |  #)))(\w+)", re.MULTILINE)
    return {
        found
        for name, text in texts.items()
        if name.endswith(".py") and name.startswith(folders)
        for found in line.findall(text)
    }


def test_every_dependency_is_used_and_every_import_is_one(texts: dict[str, str]) -> None:
    wanted = dependencies(texts)
    modules = {IMPORTED_AS.get(name, name) for name in wanted}
    assert imported_packages({"src/a.py": "import a.b\ndef f():\n    from c import d\n"}, "src/") == {"a", "c"}
    everywhere = imported_packages(texts, "src/", "tests/", "scripts/", "benchmarks/", "examples/")
    assert modules - set(LOADED_BY_NAME) <= everywhere, "a dependency that nothing imports"
    assert set(LOADED_BY_NAME) <= wanted, "a reason for a dependency that is gone"
    foreign = imported_packages(texts, "src/") - sys.stdlib_module_names - {"bellglass"}
    assert {BROUGHT_ALONG.get(name, name) for name in foreign} <= modules | wanted, (
        "an import that no dependency brings"
    )


def test_every_dependency_has_its_reason(texts: dict[str, str]) -> None:
    table = texts["ARCHITECTURE.md"].partition("## Dependencies and why")[2]
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))))
    assert dependencies(texts) - named == set(), "ARCHITECTURE.md does not say what they are for"
