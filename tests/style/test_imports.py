"""Which part of the package may import which: the arrows of the architecture, read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

BASE = {"errors", "units", "ids", "record", "model", "times", "wire", "datadir", "settings"}
ALLOWED = {
    "errors": set(),
    "units": {"errors"},
    "ids": set(),
    "datadir": set(),
    "ballast": {"errors"},
    "write_queue": set(),
    "http1": set(),
    "record": set(),
    "times": set(),
    "model": {"record", "errors", "units", "times"},
    "wire": {"wire", "errors"},
    "settings": {"errors", "units"},
    "faultpoints": set(),
    "scheduling": set(),
    "spare_memory": set(),
    "egress": {"egress", "http1"},
    "link": {"link", "wire", "errors", "ids", "model"},
    "sdk": {"sdk", *BASE},
    "integrations": {"integrations", "sdk", *BASE},
    "server": {"server", "link", "egress", "http1", "ballast", "write_queue", "faultpoints", "spare_memory", *BASE},
    "node": {
        "node",
        "link",
        "egress",
        "http1",
        "ballast",
        "write_queue",
        "faultpoints",
        "scheduling",
        "spare_memory",
        *BASE,
    },
    "supervise": {"supervise", "node", "link", "egress", "scheduling", *BASE},
    "builder": {"builder", "sdk", "node", "egress", *BASE},
    "cli": {"cli", "sdk", "supervise", "builder", *BASE},
    "testing": {"testing", "sdk", "supervise", "egress", "faultpoints", *BASE},
}
"""Part to the parts that it may import. `bellglass` itself (the version and the SDK's names) is open to all but the
base; only the root package imports the SDK for others."""

STANDARD_LIBRARY_ONLY = {
    *BASE,
    "testing",
    "egress",
    "http1",
    "ballast",
    "write_queue",
    "faultpoints",
    "scheduling",
    "spare_memory",
}
CLIENT_PACKAGES = {"httpcore2", "typer", "click", "rich", "jsonschema", "referencing"}


def part_of(name: str) -> str:
    """`src/bellglass/server/app.py` is of `server`, `src/bellglass/errors.py` of `errors`."""
    return name.removeprefix("src/bellglass/").partition("/")[0].removesuffix(".py")


def imports_of(text: str) -> list[tuple[int, str]]:
    """(line, dotted module) of every import, at whatever depth of the file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            if node.module == "bellglass":
                found += [(node.lineno, f"bellglass.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, node.module or ""))
    return found


def wrong_directions(name: str, text: str) -> list[str]:
    part = part_of(name)
    if part == "__init__":
        return []
    wrong = []
    for line, module in imports_of(text):
        root, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if root == "bellglass":
            known = target in ALLOWED
            if known and target != part and target not in ALLOWED[part]:
                wrong.append(f"{name}:{line}: {part} imports {module}")
        elif part in STANDARD_LIBRARY_ONLY and root not in sys.stdlib_module_names and root != "__future__":
            wrong.append(f"{name}:{line}: {part} imports {module}, which is not of the standard library")
        elif part == "sdk" and root not in sys.stdlib_module_names | CLIENT_PACKAGES:
            wrong.append(f"{name}:{line}: the client imports {module}, which is not among its dependencies")
    return wrong


def test_directions(sources: dict[str, str]) -> None:
    parts = {part_of(name) for name in sources}
    assert {"errors", "model", "wire"} <= parts
    assert parts - {"__init__", "__main__", "_agent"} <= set(ALLOWED), "a new part needs a row in the table"
    wrong = [line for name, text in sources.items() for line in wrong_directions(name, text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/bellglass/server/x.py", "from bellglass.node import app"),
        ("src/bellglass/node/x.py", "def f():\n    import bellglass.server.app"),
        ("src/bellglass/cli/x.py", "from bellglass import server"),
        ("src/bellglass/wire/x.py", "from bellglass import model"),
        ("src/bellglass/model/values.py", "import pydantic"),
        ("src/bellglass/sdk/x.py", "import fastapi"),
        ("src/bellglass/node/x.py", "from bellglass.testing import leaks"),
    ],
)
def test_a_wrong_direction_is_seen(name: str, text: str) -> None:
    assert wrong_directions(name, text)
    assert not wrong_directions(name, "import json\nfrom bellglass.errors import NotFound")


LINUX_ONLY = ("fcntl", "pwd", "grp", "resource", "termios", "pty", "tty", "posix", "syslog", "spwd", "crypt", "nis")
SERVER_ONLY = (
    "fastapi",
    "pydantic",
    "uvicorn",
    "uvloop",
    "httptools",
    "sqlalchemy",
    "alembic",
    "structlog",
    "starlette",
    "cryptography",
)
BLOCKED_IMPORT = """
import sys
blocked = set(sys.argv[1].split(","))
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is not there on this system")
sys.meta_path.insert(0, Block())
for name in blocked & {"fcntl", "pwd", "grp", "resource", "termios"}:
    sys.modules.pop(name, None)
import importlib
for name in sys.argv[2:]:
    importlib.import_module(name)
print("imported")
"""


def import_without(blocked: tuple[str, ...], *modules: str) -> subprocess.CompletedProcess[str]:
    # The interpreter's own start needs `posix`; a client's import must not.
    names = ",".join(name for name in blocked if name != "posix")
    return subprocess.run(
        [sys.executable, "-c", BLOCKED_IMPORT, names, *modules], capture_output=True, text=True, check=False
    )


def test_client_and_cli_import_without_linux_and_server_modules(checkout: Path) -> None:
    assert "fcntl is not there" in import_without(("fcntl",), "bellglass.testing.kernel").stderr
    done = import_without(LINUX_ONLY + SERVER_ONLY, "bellglass", "bellglass.sdk", "bellglass.cli")
    assert done.stdout == "imported\n", done.stderr


def test_client_and_cli_do_not_load_the_server() -> None:
    code = (
        "import sys, bellglass, bellglass.cli; "
        "unwanted = ('bellglass.server', 'bellglass.node', 'fastapi', 'sqlalchemy'); "
        "print([name for name in sys.modules if name.startswith(unwanted)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
