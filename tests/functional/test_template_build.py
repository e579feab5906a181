"""Templates are built whole or not at all, whoever builds at the same time and whenever a builder is killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bellglass.datadir import cache_dir
from bellglass.node.image import build, recipe, template

pytestmark = [pytest.mark.root]

TINY = """
name = "tiny"
version = "1"
suite = "bookworm"
variant = "essential"
packages = []
hooks = []
[defaults]
user = "root"
workdir = "/"
[defaults.env]
PATH = "/usr/bin:/bin"
"""


@pytest.fixture
def tiny(tmp_path: Path) -> recipe.Recipe:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "recipe.toml").write_text(TINY)
    return recipe.load(folder)


def processes_below(folder: Path) -> list[str]:
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = cmdline.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in text:
            found.append(text)
    return found


def until(condition, seconds: float) -> bool:
    # The kernel has no event for "no process names this folder any more".
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_killed_build_leaves_nothing_after_the_next(tiny: recipe.Recipe, tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    script = (
        "import sys; from pathlib import Path; from bellglass.node.image import build, recipe\n"
        "build.build(recipe.load(Path(sys.argv[1])), Path(sys.argv[2]), progress=print)"
    )
    builder = subprocess.Popen([sys.executable, "-c", script, str(tiny.folder), str(templates)], start_new_session=True)
    assert until(lambda: any(templates.glob(".build-*/rootfs/var/lib/dpkg")), 60)
    assert processes_below(templates)
    os.killpg(builder.pid, signal.SIGKILL)
    assert builder.wait() == -signal.SIGKILL
    assert template.installed(templates) == []
    assert list(templates.glob(".build-*"))
    assert until(lambda: not processes_below(templates), 10), processes_below(templates)

    lines: list[str] = []
    results = []
    builders = [
        threading.Thread(target=lambda: results.append(build.build(tiny, templates, progress=lines.append)))
        for _ in range(2)
    ]
    for thread in builders:
        thread.start()
    for thread in builders:
        thread.join()
    assert len(results) == 2 and results[0] == results[1]
    assert any("interrupted build" in line for line in lines)
    assert sum("running apt-get update" in line for line in lines) == 1
    assert sorted(path.name for path in templates.iterdir()) == [".lock", results[0].folder.name]
    assert str(templates) not in Path("/proc/self/mountinfo").read_text()

    root = results[0].rootfs
    assert list((root / "dev").iterdir()) == []
    assert not (root / "etc/apt/apt.conf.d/99mmdebstrap").exists()


def test_a_failed_build_shows_why_and_leaves_nothing(tiny: recipe.Recipe, tmp_path: Path) -> None:
    (tiny.folder / "recipe.toml").write_text(TINY.replace("packages = []", 'packages = ["no-such-package"]'))
    templates = tmp_path / "templates"
    with pytest.raises(build.InternalError, match="no-such-package") as failure:
        build.build(recipe.load(tiny.folder), templates, progress=print)
    assert "mmdebstrap --mode=root" in (failure.value.hint or "")
    assert [path.name for path in templates.iterdir()] == [".lock"]


def test_a_build_over_its_time_is_stopped(tiny: recipe.Recipe, tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    with pytest.raises(build.InternalError, match="longer than 1 s"):
        build.build(tiny, templates, progress=print, timeout_s=1)
    assert [path.name for path in templates.iterdir()] == [".lock"]
    assert not processes_below(templates)


def test_base_carries_nothing_of_the_build_host() -> None:
    base = recipe.find("base")
    root = template.read(cache_dir() / "templates" / template.folder_name("base", base.digest())).rootfs
    for name in ("resolv.conf", "hostname", "hosts", "machine-id"):
        status = (root / "etc" / name).lstat()
        assert stat.S_ISREG(status.st_mode) and status.st_size == 0, name
    assert not list((root / "etc/apt").glob("**/*mmdebstrap*"))
    assert not list((root / "var/log").glob("**/*.log"))
    assert list((root / "dev").iterdir()) == []
    assert (root / "usr/bin/sudo").stat().st_mode & stat.S_ISUID
    assert (root / "etc/sudoers.d/user").stat().st_mode & 0o777 == 0o440
    assert (root / "home/user").stat().st_uid == 1000
    assert not list(root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"))
    assert any((root / "usr/lib/python3").glob("**/*.pyc")), "without byte code every start of Python compiles"
