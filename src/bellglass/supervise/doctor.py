"""`bellglass doctor` as a function: each need is tried, and what is missing comes with the command that brings it.

A version on paper proves nothing: the agent and the runtime are executed, the kernel's features are used for a moment
in a scratch folder, and as root a whole machine is started by the driver's own probe.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bellglass import settings as settings_module
from bellglass.datadir import DataDir, cache_dir
from bellglass.errors import BellglassError
from bellglass.supervise import control, network_checks, up
from bellglass.supervise.check import Check, as_root
from bellglass.units import format_size

LOW_DISK_BYTES = 5 * 2**30
WANTED_PID_MAX = 4194304
CLONE_NEWUSER = 0x10000000


def run(data: DataDir) -> Iterator[Check]:
    """Every check, as it finishes."""
    settings = settings_module.load(data.settings_file if data.settings_file.exists() else None)
    checks: list[Callable[[], Check]] = [
        _python,
        _root,
        _agent,
        lambda: _program("runc", ["--version"], "apt-get install runc"),
        lambda: _lxcfs(data),
        network_checks.nftables,
        lambda: network_checks.egress(data, settings),
        lambda: _program("mkfs.ext4", ["-V"], "apt-get install e2fsprogs"),
        lambda: _program("mmdebstrap", ["--version"], "apt-get install mmdebstrap"),
        _cgroups,
        _user_namespaces,
        _loop_devices,
        _pid_max,
        _inotify,
        lambda: _disk(data, settings),
        lambda: _template(settings),
        lambda: _port(data, settings),
        lambda: _previews_port(data, settings),
        lambda: _tier(data),
    ]
    for check in checks:
        begun = time.monotonic()
        result = check()
        yield Check(result.name, result.outcome, result.found, result.fix, time.monotonic() - begun)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    try:
        up.require_packages()
    except BellglassError as error:
        return Check(
            "python", "missing", f"{version}, but {error.message}", "pip install '.[server]' (in the checkout)"
        )
    return Check("python", "ok", f"{version} with the server's packages")


def _root() -> Check:
    if os.geteuid() == 0:
        return Check("root", "ok", "running as root")
    found = f"running as uid {os.geteuid()}: the container tier needs a root helper"
    return Check("root", "missing", found, as_root())


def _agent() -> Check:
    try:
        binary = up.require_agent()
    except BellglassError as error:
        return Check("guest agent", "missing", error.message, "make agent")
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False, timeout=10)
    if done.returncode:
        return Check("guest agent", "missing", f"{binary.name} exits with {done.returncode}", "make agent")
    return Check("guest agent", "ok", f"{done.stdout.strip()}, {format_size(binary.stat().st_size)}")


def _program(name: str, arguments: list[str], fix: str) -> Check:
    path = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin")
    if path is None:
        return Check(name, "missing", "not installed", fix)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False, timeout=10)
    lines = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode:
        return Check(name, "missing", f"{path} exits with {done.returncode}: {lines[-1] if lines else ''}", fix)
    return Check(name, "ok", lines[0].strip('"') if lines else path)


def _lxcfs(data: DataDir) -> Check:
    """Of an installation that is up: whether it answers, since running sandboxes read through it."""
    program = _program("lxcfs", ["--version"], "apt-get install lxcfs")
    record = control.read_record(data)
    if program.outcome != "ok" or record is None or not record.alive("supervisor") or "lxcfs" not in record.processes:
        return program
    try:
        (data.lxcfs_dir / "proc/meminfo").read_text()
    except OSError as error:
        found = f"it has died ({error.strerror}): sandboxes can't read /proc/meminfo; the supervisor starts it again"
        return Check("lxcfs", "missing", found, f"bellglass status, and {data.logs_dir / 'lxcfs.log'}")
    return Check("lxcfs", "ok", f"{program.found}, mounted and answering")


def _cgroups() -> Check:
    with open("/proc/self/mounts") as mounts:
        unified = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
    if not unified:
        return Check("cgroups", "missing", "no cgroup2 mount", "mount -t cgroup2 none /sys/fs/cgroup/unified")
    if os.geteuid() != 0:
        return Check("cgroups", "warn", f"cgroup2 at {unified[0]}; making a group needs root", as_root())
    group = Path(unified[0]) / f"bellglass-doctor-{os.getpid()}"
    group.mkdir()
    try:
        if not (group / "cgroup.kill").exists():
            return Check("cgroups", "missing", "this kernel has no cgroup.kill", "use Linux 5.14 or newer")
        kind = "v2" if (group / "cgroup.controllers").read_text().strip() else "hybrid v1, with cgroup.kill"
    finally:
        group.rmdir()
    return Check("cgroups", "ok", f"{kind}, at {unified[0]}")


def _user_namespaces() -> Check:
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        os._exit(0 if libc.unshare(CLONE_NEWUSER) == 0 else min(ctypes.get_errno(), 254) or 255)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        return Check("user namespaces", "missing", f"unshare(CLONE_NEWUSER): {os.strerror(code)}",
                     "sysctl -w user.max_user_namespaces=15000")  # fmt: skip
    return Check("user namespaces", "ok", "one was made")


def _loop_devices() -> Check:
    if os.geteuid() != 0:
        present = Path("/dev/loop-control").exists()
        return Check("loop devices", "warn" if present else "missing", "trying one needs root", as_root())
    losetup = shutil.which("losetup", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if losetup is None:
        return Check("loop devices", "missing", "no losetup", "apt-get install mount util-linux")
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="bellglass-doctor-") as image:
        image.truncate(2**20)
        done = subprocess.run([losetup, "--find", "--show", "--direct-io=on", image.name],
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            return Check("loop devices", "missing", done.stderr.strip(), "modprobe loop max_loop=256")
        subprocess.run([losetup, "--detach", done.stdout.strip()], check=True)
    return Check("loop devices", "ok", f"{done.stdout.strip()} with direct I/O")


def _pid_max() -> Check:
    """Processes and threads of the whole host: what all sandboxes together may use up."""
    for name in ("pid_max", "threads-max"):
        value = int(Path(f"/proc/sys/kernel/{name}").read_text())
        if value < WANTED_PID_MAX:
            return Check("pid_max", "warn", f"{name} {value}: enough for about {value // 600} full sandboxes",
                         f"sysctl -w kernel.{name}={WANTED_PID_MAX}")  # fmt: skip
    return Check("pid_max", "ok", f"{value} processes and threads")


def _inotify() -> Check:
    value = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if value < 512:
        return Check("inotify", "warn", f"max_user_instances {value}", "sysctl -w fs.inotify.max_user_instances=8192")
    return Check("inotify", "ok", f"max_user_instances {value}")


def _disk(data: DataDir, settings: settings_module.Settings) -> Check:
    place = next(folder for folder in (data.root, *data.root.parents) if folder.exists())
    free, mark = shutil.disk_usage(place).free, settings["node.disk_low_water"]
    if free < mark:
        told = f"{format_size(free)} free in {place}, below node.disk_low_water, {format_size(mark)}"
        return Check("disk", "missing", f"{told}: sandboxes stand still", "free some space, or choose a lower mark")
    if free < LOW_DISK_BYTES:
        return Check(
            "disk", "warn", f"{format_size(free)} free in {place}", "free some space or choose another --data-dir"
        )
    return Check("disk", "ok", f"{format_size(free)} free in {place}")


def _template(settings: settings_module.Settings) -> Check:
    folder = up.templates_dir(settings)
    built = sorted(path.parent.name for path in folder.glob("*/template.json")) if folder.is_dir() else []
    if not any(name.startswith("base-") for name in built):
        return Check("base template", "missing", f"not built in {folder}", "make template, or bellglass up")
    return Check("base template", "ok", ", ".join(built))


def _port(data: DataDir, settings: settings_module.Settings) -> Check:
    record = control.read_record(data)
    if record is not None and record.alive("server"):
        return Check("api", "ok", f"bellglass is up at {record.api_url}")
    return _free("api", settings["server.listen"], settings["server.port"], "bellglass up --port 0")


def _previews_port(data: DataDir, settings: settings_module.Settings) -> Check:
    record = control.read_record(data)
    if not settings["previews.listen"]:
        return Check("published ports", "ok", "previews.listen is empty: none are served")
    if record is not None and record.alive("server"):
        return Check("published ports", "ok", "the server that is up serves them")
    fix = f"set previews.port in {data.settings_file}"
    return _free("published ports", settings["previews.listen"], settings["previews.port"], fix)


def _free(name: str, host: str, port: int, fix: str) -> Check:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Check(name, "missing", f"{host}:{port}: {error.strerror}", fix)
    return Check(name, "ok", f"{host}:{port} is free")


def _tier(data: DataDir) -> Check:
    """A whole machine, by the running node's word or by starting an installation of its own in a scratch folder."""
    record = control.read_record(data)
    if record is not None and record.alive("node"):
        try:
            tiers = control.ask_node(data, "node.info")["tiers"]
        except BellglassError as error:
            return Check("container tier", "warn", str(error), as_root())
        return _tier_check(tiers)
    if os.geteuid() != 0:
        return Check("container tier", "warn", "starting one needs root", as_root())
    with tempfile.TemporaryDirectory(prefix="bellglass-doctor-", dir="/var/tmp") as folder:
        scratch = DataDir(Path(folder) / "data")
        try:
            return _tier_check(_probe_in(scratch))
        except BellglassError as error:
            # A log in the scratch folder goes with it; its end is in the message.
            return Check("container tier", "missing", error.message, None if folder in str(error.hint) else error.hint)


def _probe_in(scratch: DataDir) -> list[dict[str, Any]]:
    from bellglass.supervise.install import prepare
    from bellglass.supervise.supervisor import Supervisor

    scratch.root.parent.chmod(0o711)
    up.require_packages()
    up.require_agent()
    settings = settings_module.load(None)
    lock = control.Lock(scratch)
    supervisor = Supervisor(prepare(scratch), settings, None, None, lambda step, seconds: None, lock)
    supervisor.start_node_alone()
    try:
        return control.ask_node(scratch, "node.info")["tiers"]
    finally:
        supervisor.stop()


def _tier_check(tiers: list[dict[str, Any]]) -> Check:
    usable = [f"{tier['tier']} ({tier['runtime']} {tier['version']})" for tier in tiers if tier["usable"]]
    if usable:
        return Check("container tier", "ok", f"a machine was started: {', '.join(usable)}")
    tier = tiers[0] if tiers else {"reason": "the node reports no tier", "hint": f"see the cache folder {cache_dir()}"}
    return Check("container tier", "missing", tier["reason"], tier["hint"])
