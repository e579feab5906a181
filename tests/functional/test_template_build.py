"""Templates are built whole or not at all, whoever builds at the same time and whenever a builder is killed."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from bellglass.builder import installation, layer
from bellglass.builder.build import build as build_layered
from bellglass.builder.trust import FOLDER
from bellglass.datadir import DataDir, cache_dir
from bellglass.errors import InternalError
from bellglass.node.image import build, recipe, template
from bellglass.node.net import discover
from bellglass.supervise.control import read_record
from bellglass.testing.stack import bellglass_command

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


def test_interpreter_carries_nothing_of_its_build() -> None:
    """Neither the index that its packages came from nor what the build believed and left lying about."""
    found = recipe.find("interpreter")
    assert isinstance(found, recipe.Layered)
    base = recipe.base_of(found).digest()
    templates = cache_dir() / "templates"
    built = template.read(templates / template.folder_name(found.name, found.digest(base)))
    root = built.rootfs
    assert not (root / FOLDER[1:]).exists()
    assert built.env == found.env
    for name in ("resolv.conf", "hostname", "hosts", "machine-id"):
        status = (root / "etc" / name).lstat()
        assert stat.S_ISREG(status.st_mode) and status.st_size == 0, name
    for folder in ("dev", "proc", "sys", "run", "tmp", "root/.cache", "home/user/.cache", "var/lib/apt/lists"):
        left = [path for path in root.joinpath(folder).glob("**/*") if path.is_file()]
        assert not left, folder
    hosts = {urlsplit(url).hostname for url in discover.pip()["urls"]}
    assert hosts
    # What packages say of themselves names indexes anyhow.
    for folder in ("etc", "root", "home", "opt", "usr/local/bin", "usr/local/etc"):
        for path in root.joinpath(folder).glob("**/*"):
            if path.is_file() and not path.is_symlink() and path.name != "sources.list":
                text = path.read_text(errors="replace")
                assert not [host for host in hosts if host and host in text], path
    assert (root / "home/user").stat().st_uid == 1000 and (root / "usr/bin/sudo").stat().st_mode & stat.S_ISUID
    shared = root / "usr/bin/python3.11"
    assert shared.samefile(templates / template.folder_name("base", base) / "rootfs/usr/bin/python3.11")


LAYERED = """
name = "layered"
version = "1"
base = "base"
presets = []
steps = ["step.sh"]
files = []
[defaults]
user = "user"
workdir = "/"
[defaults.env]
PATH = "/usr/bin:/bin"
"""


@pytest.fixture
def layered(tmp_path: Path) -> Callable[[str], recipe.Layered]:
    """A recipe on the base, with that as its step."""

    def make(step: str) -> recipe.Layered:
        folder = tmp_path / "recipes/layered"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.toml").write_text(LAYERED)
        (folder / "step.sh").write_text(step)
        if not (folder.parent / "base").exists():
            (folder.parent / "base").symlink_to(recipe.find("base").folder)
        found = recipe.load_any(folder)
        assert isinstance(found, recipe.Layered)
        return found

    return make


@pytest.fixture
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of templates that daemons can pass, with the base in it."""
    found = recipe.find("base")
    assert isinstance(found, recipe.Recipe)
    name = template.folder_name("base", found.digest())
    with tempfile.TemporaryDirectory(prefix="bellglass-templates-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(cache_dir() / "templates" / name, Path(folder, name), symlinks=True, copy_function=os.link)
        yield Path(folder)


WICKED = """
echo made > /etc/made
rm /usr/bin/jq
mkdir /srv/real && echo in > /srv/real/file
# Where an unpacker that follows links would write on the host.
rm -r /opt && ln -s "$CANARY" /opt
mknod /srv/null c 1 3 || true
chown 1234:1234 /srv/real && chmod 2750 /srv/real
"""


def test_steps_make_a_template_and_touch_nothing_else(
    layered: Callable[[str], recipe.Layered], templates: Path, tmp_path: Path
) -> None:
    with pytest.raises(build.InternalError, match=r"step\.sh ended with 3:\nsaid why") as failure:
        build_layered(layered("echo said why >&2; exit 3"), templates, progress=print)
    assert failure.value.details["exit_code"] == 3
    assert [path.name for path in templates.iterdir() if not path.name.startswith("base-")] == [".lock"]

    canary = tmp_path / "canary"
    canary.mkdir()
    found = layered(WICKED.replace("$CANARY", str(canary)))
    built = build_layered(found, templates, progress=print)
    assert build_layered(found, templates, progress=print) == built
    root = built.rootfs
    assert (root / "etc/made").read_text() == "made\n" and not (root / "usr/bin/jq").exists()
    status = (root / "srv/real").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 1234, 0o2750)
    assert (root / "opt").is_symlink() and list(canary.iterdir()) == []
    devices = [path for path in root.glob("**/*") if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFCHR, stat.S_IFBLK)]
    assert not devices
    assert not installation.place(templates).exists()
    assert str(templates) not in Path("/proc/self/mountinfo").read_text()


class Archive:
    """In place of the sandbox of a build, whose own tar may say anything."""

    def __init__(self, *strange: tarfile.TarInfo) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in ("./etc", "./srv"):
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(folder)
            for member in strange:
                archive.addfile(member)
        self._raw = buffer.getvalue()
        self.files = self

    def read_stream(self, path: str) -> Iterator[bytes]:
        yield self._raw


def member(name: str, type: bytes, device: tuple[int, int] = (0, 0), leads_to: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname = type, 0o666, leads_to
    made.devmajor, made.devminor = device
    return made


@pytest.mark.parametrize(
    "strange",
    [
        member("./srv/null", tarfile.CHRTYPE, (1, 3)),
        member("./srv/disk", tarfile.BLKTYPE, (7, 250)),
        member("./etc/hostname", tarfile.CHRTYPE, (1, 3)),
        member("./srv/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda made: f"{made.name}-{made.type.decode()}",
)
def test_an_archive_brings_no_device_to_the_host(tmp_path: Path, strange: tarfile.TarInfo) -> None:
    """Here nothing is mounted without devices: who may enter the folder could open the host's disk by one."""
    found = recipe.find("base")
    assert isinstance(found, recipe.Recipe)
    base = template.read(cache_dir() / "templates" / template.folder_name("base", found.digest()))
    for name in ("good", "bad"):
        (tmp_path / name / "rootfs").mkdir(parents=True)
    good = Archive(
        member("./srv/file", tarfile.REGTYPE), member("./etc/hosts", tarfile.SYMTYPE, leads_to="/etc/passwd")
    )
    layer._unpack(cast(Any, good), base, tmp_path / "good/rootfs")
    assert (tmp_path / "good/rootfs/srv/file").is_file()
    hosts = (tmp_path / "good/rootfs/etc/hosts").lstat()
    assert stat.S_ISREG(hosts.st_mode) and hosts.st_size == 0
    with pytest.raises(InternalError, match=f"{strange.name[1:]} is neither file, folder nor link"):
        layer._unpack(cast(Any, Archive(strange)), base, tmp_path / "bad/rootfs")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_build_in_a_sandbox_that_was_killed_is_cleared_away_by_the_next(
    layered: Callable[[str], recipe.Layered], templates: Path
) -> None:
    found = layered("sleep 600")
    script = (
        "import sys; from pathlib import Path; from bellglass.builder.build import build\n"
        "from bellglass.node.image import recipe\n"
        "say = lambda line: print(line, flush=True)\n"
        "build(recipe.load_any(Path(sys.argv[1])), Path(sys.argv[2]), progress=say)"
    )
    argv = [sys.executable, "-c", script, str(found.folder), str(templates)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        assert any(line == "step step.sh\n" for line in builder.stdout)
        builder.kill()
    folder = installation.place(templates)
    supervisor = read_record(DataDir(folder)).processes["supervisor"]
    assert supervisor.wait(time.monotonic() + 60), "its daemons go on though nobody builds"

    built = build_layered(layered("echo made > /etc/made"), templates, progress=print)
    assert (built.rootfs / "etc/made").exists()
    assert not folder.exists() and not processes_below(folder)
    assert {path.name for path in templates.iterdir() if not path.name.startswith("base-")} == {
        ".lock",
        built.folder.name,
    }


def test_the_command_builds_what_is_missing_and_names_what_is_there(tmp_path: Path) -> None:
    argv = [*bellglass_command(), "templates", "build", "interpreter", "--data-dir", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"interpreter [0-9a-f]{12}, \d+ MiB\n", done.stdout), done.stdout
    done = subprocess.run([*argv[:3], "nosuch"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no recipe named 'nosuch'" in done.stderr
