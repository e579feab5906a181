"""Fault points: the table names every point in the sources and no other, and an armed one kills who reaches it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bellglass import faultpoints
from bellglass.datadir import DataDir
from bellglass.node.helper import cgroup
from bellglass.node.helper.context import Context
from bellglass.node.helper.start import MachineStart, StartMachine

SOURCES = Path(faultpoints.__file__).parent


def reached(text: str) -> list[str]:
    """The names that a source gives to `reach`; of one made with a step's name, the part before that and a star."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "faultpoints.reach":
            [name] = node.args
            if isinstance(name, ast.JoinedStr):
                found.append(str(name.values[0].value) + "*")  # type: ignore[attr-defined]
            else:
                found.append(ast.literal_eval(name))
    return found


def steps_of_a_start() -> list[str]:
    folder = Path("/nowhere")
    context = Context(DataDir(folder), folder, folder, "testtest", 1, 2, 3, 4, 5, 6, machine="x86_64")
    spec = StartMachine(
        sandbox_id="sb" + "a" * 20, runtime="runc", template_name="base", template_digest="0" * 64, cpus=1.0,
        cpu_ids=(0,), memory_bytes=2**29, disk_bytes=2**30, inodes=65536, pids=100, has_inputs=False, has_network=True,
    )  # fmt: skip
    plan = MachineStart(context, spec, cgroup.parse_mounts("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"), 3).plan()
    return [step.name for step in plan]


def test_each_point_of_the_table_is_in_the_sources_once_and_no_other() -> None:
    assert reached('faultpoints.reach("a.b")\nfaultpoints.reach(f"a.{step.name}")') == ["a.b", "a.*"]
    found = [name for path in sorted(SOURCES.rglob("*.py")) for name in reached(path.read_text())]
    steps = [f"helper.start.{name}" for name in steps_of_a_start()]
    assert "helper.start.*" in found
    found.remove("helper.start.*")
    assert sorted(found + steps) == sorted(faultpoints.POINTS)


def test_a_point_says_what_is_true_there() -> None:
    for name, sentence in faultpoints.POINTS.items():
        assert len(name.split(".")) == 3 and len(sentence.split()) > 3, name


CHILD = """
import sys
from pathlib import Path
from bellglass import faultpoints
faultpoints.watch(Path(sys.argv[1]))
for name in sys.argv[2:]:
    faultpoints.reach(name)
print("lives")
"""


def run(folder: Path, *points: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CHILD, str(folder), *points], capture_output=True, text=True)


POINT = "node.create.journaled"


def test_who_reaches_an_armed_point_dies_and_the_next_lives(tmp_path: Path) -> None:
    folder = faultpoints.make_folder(tmp_path)
    assert run(folder, POINT).stdout == "lives\n"
    faultpoints.arm(folder, POINT)
    assert run(folder, "node.create.hello").stdout == "lives\n"
    assert faultpoints.armed(folder) == [POINT]
    done = run(folder, POINT)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert faultpoints.armed(folder) == []
    assert run(folder, POINT).stdout == "lives\n"


def test_the_nth_time_counts_over_processes(tmp_path: Path) -> None:
    folder = faultpoints.make_folder(tmp_path)
    faultpoints.arm(folder, POINT, nth=12)
    assert run(folder, *[POINT] * 4).stdout == run(folder, *[POINT] * 7).stdout == "lives\n"
    assert faultpoints.armed(folder) == [POINT]
    assert run(folder, POINT).returncode == -signal.SIGKILL


def test_a_daemon_that_found_no_folder_never_looks(tmp_path: Path) -> None:
    arm = "faultpoints.arm(faultpoints.make_folder(Path(sys.argv[1]).parent), sys.argv[2])\n"
    code = CHILD.replace("for name", arm + "for name")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "faults"), POINT], capture_output=True, text=True)
    assert done.stdout == "lives\n", done.stderr
    assert faultpoints.armed(tmp_path / "faults") == [POINT]


def test_parent_dies_first(tmp_path: Path) -> None:
    folder = faultpoints.make_folder(tmp_path)
    faultpoints.arm(folder, POINT, victim="parent")
    read, write = os.pipe()
    fork = f"subprocess.run([sys.executable, '-c', {CHILD!r}, *sys.argv[1:]], pass_fds=[{write}])"
    code = f"import subprocess, sys; {fork}"
    done = subprocess.run([sys.executable, "-c", code, str(folder), POINT], pass_fds=[write], capture_output=True)
    os.close(write)
    assert done.returncode == -signal.SIGKILL
    assert os.read(read, 1) == b""  # the child has ended too
    os.close(read)


def test_an_unknown_point_cannot_be_armed(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        faultpoints.arm(faultpoints.make_folder(tmp_path), "node.create.nonsense")
