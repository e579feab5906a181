"""The steps of a layered recipe in a sandbox of its base, and what they made as a root file system on this host.

What comes out of the sandbox is an archive that its own `tar` made, so anything may stand in it. It is unpacked by the
`tar` of the base, whose root file system is mounted read-only for that: no path in the archive leads elsewhere.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from bellglass import Network, Sandbox
from bellglass.builder import trust
from bellglass.builder.installation import Api
from bellglass.errors import InternalError
from bellglass.node.image.build import Progress
from bellglass.node.image.recipe import Layered
from bellglass.node.image.template import BuiltTemplate

STEP_S = 600
SHAPE: dict[str, Any] = {"cpus": os.cpu_count() or 1, "memory": "4GiB", "disk": "20GiB", "lifetime": "1h"}
_ARCHIVE = f"{trust.FOLDER}/root.tar"
_LINES = 30
# What is mounted in every sandbox, or says which one it was, stays as it is in the base.
_OF_THE_BASE = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id")
_LEFT_OUT = (trust.FOLDER[1:], "dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "var/tmp/*", *_OF_THE_BASE)
_UNPACK = """
set -eu
mount --bind "$base" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$target" "$root/mnt"
mount -o remount,bind,nodev,nosuid "$root/mnt"
exec chroot "$root" sh -euc '
    tar --extract --directory=/mnt --numeric-owner --same-owner --preserve-permissions --delay-directory-restore
    strange=$(find /mnt -xdev ! -type f ! -type d ! -type l -print -quit)
    if [ -n "$strange" ]; then echo "$strange is neither file, folder nor link" >&2; exit 1; fi
    if [ -L /mnt/etc ] || [ ! -d /mnt/etc ]; then echo "/etc is no folder" >&2; exit 1; fi
    for name in hostname hosts resolv.conf machine-id; do rm -rf "/mnt/etc/$name"; done
    cp --archive /etc/hostname /etc/hosts /etc/resolv.conf /etc/machine-id /mnt/etc/
'
"""


def make(recipe: Layered, base: BuiltTemplate, api: Api, rootfs: Path, *, progress: Progress) -> None:
    """Raises InternalError with the last lines of a step that failed."""
    network = Network(presets=list(recipe.presets)) if recipe.presets else "deny"
    options = SHAPE | {"api_url": api.url, "api_key": api.key, "user": "root", "workdir": "/"}
    # It ends with the installation that is made for it.
    with closing(Sandbox(base.name, network=network, **options)) as box:
        for name in (*recipe.steps, *recipe.files):
            box.files.upload(recipe.folder / name, f"{trust.FOLDER}/recipe/{name}")
        box.files.write_bytes(trust.BUNDLE, trust.bundle())
        box.files.write_text(trust.APT_CONF, trust.apt_conf())
        for step in recipe.steps:
            progress(f"step {Path(step).name}")
            _run(box, f"sh {shlex.quote(step)}", step, env=trust.ENV, cwd=f"{trust.FOLDER}/recipe")
        progress("packing what they made")
        left_out = [f"--exclude=./{path}" for path in _LEFT_OUT]
        _run(
            box,
            ["tar", "--create", f"--file={_ARCHIVE}", "--one-file-system", "--format=posix", *left_out, "."],
            "tar",
            cwd="/",
        )
        progress("unpacking it")
        rootfs.mkdir(mode=0o755)
        _unpack(box, base, rootfs)
    _share(base.rootfs, rootfs)


def _run(box: Sandbox, command: Any, name: str, **options: Any) -> None:
    done = box.exec(command, timeout=STEP_S, **options)
    if not done.ok:
        printed = (done.stdout + done.stderr).splitlines()[-_LINES:]
        why = "took longer than its time" if done.timed_out else f"ended with {done.exit_code}"
        raise InternalError(f"{name} {why}:\n" + "\n".join(printed), details={"exit_code": done.exit_code})


def _unpack(box: Sandbox, base: BuiltTemplate, rootfs: Path) -> None:
    root = rootfs.with_name("base")
    root.mkdir()
    argv = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--", "sh", "-c", _UNPACK]
    names = {
        "base": str(base.rootfs),
        "target": str(rootfs),
        "root": str(root),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=names) as tar:
        assert tar.stdin is not None and tar.stderr is not None
        try:
            for piece in box.files.read_stream(_ARCHIVE):
                tar.stdin.write(piece)
        except BrokenPipeError:
            pass  # it says why
        finally:
            tar.stdin.close()
        told = tar.stderr.read().decode(errors="replace")
    root.rmdir()
    if tar.returncode:
        raise InternalError(f"the archive of what the steps made can't be unpacked:\n{told}")


def _share(base: Path, rootfs: Path) -> None:
    """Files that the steps left alone become those of the base: on the disk and in the page cache they are there once.

    Templates are never written to. By folders' descriptors, since `rootfs` may hold links to anywhere."""
    for folder, _, names, fd in os.fwalk(rootfs):
        there = base / os.path.relpath(folder, rootfs)
        if not there.resolve().is_relative_to(base.resolve()):
            continue  # a link of the base, such as /var/run, that is a folder here
        for name in names:
            path = there / name
            try:
                ours, theirs = os.lstat(name, dir_fd=fd), path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if stat.S_ISREG(ours.st_mode) and _signature(ours) == _signature(theirs):
                os.unlink(name, dir_fd=fd)
                os.link(path, name, dst_dir_fd=fd, follow_symlinks=False)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns)
