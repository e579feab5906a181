"""Client and command line import on any system, and quickly."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
class Blocker:
    names = {"fcntl", "pwd", "grp", "resource", "termios", "uvloop", "pyroute2", "fastapi", "sqlalchemy", "uvicorn"}
    def find_spec(self, name, path=None, target=None):
        if name in self.names or name.startswith(("bellglass.server", "bellglass.node", "bellglass.supervise",
                                                  "bellglass.link", "bellglass.testing")):
            raise ImportError(f"{name} is not there on this system")
sys.meta_path.insert(0, Blocker())
for name in list(Blocker.names): sys.modules.pop(name, None)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_blocker_blocks() -> None:
    code = BLOCKED + "\ntry:\n    import fcntl\nexcept ImportError:\n    print('blocked')"
    assert run(code) == "blocked\n"


def test_client_and_command_line_import_without_linux() -> None:
    code = (
        BLOCKED
        + """
import bellglass, bellglass.cli, importlib
for name in bellglass.__all__: getattr(bellglass, name)
for noun, (target, _) in bellglass.cli.NOUNS.items():
    if noun not in ("up", "down", "status", "doctor"):
        importlib.import_module(target.split(":")[0])
print("imported")
"""
    )
    assert run(code) == "imported\n"


def test_the_local_commands_are_listed_without_linux() -> None:
    code = BLOCKED + "\nfrom bellglass.cli import main\nprint('code', main(['--help']))"
    out = run(code)
    assert " up " in out and " doctor " in out and out.endswith("code 0\n")


def test_importing_the_package_imports_nothing_else() -> None:
    out = run(
        "import sys; import bellglass; print([m for m in sys.modules if m.startswith(('httpcore2', 'bellglass.'))])"
    )
    assert out == "[]\n"


def test_help_loads_no_client() -> None:
    code = "import sys\nfrom bellglass.cli import main\nmain(['--help'])\n"
    out = run(code + "print([m for m in sys.modules if m.startswith(('httpcore2', 'anyio', 'bellglass.sdk'))])")
    assert out.endswith("[]\n")
