"""Daemons whose code lies below a folder that their users may not pass."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from bellglass.supervise import view
enter, needed, other = sys.argv[1] == "enter", Path(sys.argv[2]), Path(sys.argv[3])
os.umask(0o077)  # as the launcher sets it
if enter:
    view.enter([needed])
assert os.umask(0o077) == 0o077
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
def read(path):
    try:
        return path.read_text()
    except OSError as error:
        return type(error).__name__
print(read(needed / "code.py"), read(other))
"""


@pytest.fixture
def home(tmp_path):
    """A home of mode 0700 with a program and a private file in it."""
    home = tmp_path / "home"
    (home / "project/src").mkdir(parents=True)
    (home / "project/src/code.py").write_text("code")
    (home / "private").write_text("secret")
    home.chmod(0o700)
    return home


def run(how, home, needed="project/src"):
    argv = [sys.executable, "-c", PROGRAM, how, str(home / needed), str(home / "private")]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)


def test_the_program_becomes_readable_and_the_rest_of_the_home_stays_away(home):
    assert run("stay", home).stdout.split() == ["PermissionError", "PermissionError"]
    assert run("enter", home).stdout.split() == ["code", "FileNotFoundError"]


def mounts():
    """Without those of installations, which other tests make and end meanwhile."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/bellglass-" not in line]


def test_the_host_sees_nothing_of_it(home):
    before = mounts()
    assert before and run("enter", home).returncode == 0
    assert mounts() == before
    assert (home / "private").read_text() == "secret"


def test_a_program_folder_that_is_itself_private_is_told_with_the_command_that_helps(home):
    (home / "project/src").chmod(0o700)
    home.chmod(0o755)
    done = run("enter", home)
    assert done.returncode == 1 and f"chmod -R o+rX {home / 'project/src'}" in done.stderr
