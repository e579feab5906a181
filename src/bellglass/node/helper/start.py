"""Starting a machine: a plan of steps, run in a worker of the helper.

The worker first gets a mount namespace of its own. All mounts are made there, the container keeps those it needs, and
the rest vanishes when the worker leaves it or dies: nothing has to be unmounted, and the host's mount table stays as it
was.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bellglass import faultpoints
from bellglass.errors import BellglassError, NoCapacity, NotFound, SandboxFailed
from bellglass.node.helper import cgroup, idmap, kernel, loop, oci, priority, run, uids
from bellglass.node.helper.context import DISK, MACHINE, STAGING, Context, locked, seccomp_profile, start_ticks
from bellglass.node.helper.net import gateway
from bellglass.node.helper.reclaim import reclaim_locked
from bellglass.node.image import disk

TIMEOUT_S = 30.0
RESOLV_CONF = (
    "# only names that the sandbox's network policy allows exist\n"
    f"nameserver {gateway.GATEWAY_ADDRESS}\n"
    # It answers at once or has just died with the question: five seconds' wait would be for nothing.
    "options timeout:1 attempts:5\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMachine:
    sandbox_id: str
    runtime: str
    template_name: str
    template_digest: str
    cpus: float
    cpu_ids: tuple[int, ...]
    memory_bytes: int
    disk_bytes: int
    inodes: int
    pids: int
    has_inputs: bool
    has_network: bool
    background: bool = False
    reuse_disk: bool = False
    """On the disk that an earlier machine of this sandbox left; a failure leaves it too."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    describe: str
    act: Callable[[], None]


@dataclass(slots=True)
class MachineStart:
    context: Context
    spec: StartMachine
    place: cgroup.Layout
    index: int
    device: loop.LoopDevice | None = None
    namespaces: idmap.Namespaces | None = None
    gateway: int = -1
    """A descriptor of its network namespace."""
    listeners: list[socket.socket] = field(default_factory=list)
    pid: int = 0
    usual_nice: int = 0
    profile_ms: dict[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.context.data.sandbox_dir(self.spec.sandbox_id)

    @property
    def first_uid(self) -> int:
        return uids.first_uid(self.index)

    @property
    def template_dir(self) -> Path:
        return self.context.templates_dir / f"{self.spec.template_name}-{self.spec.template_digest[:16]}"

    def plan(self) -> list[Step]:
        spec, image = self.spec, self.folder / DISK
        size = f"{spec.disk_bytes} bytes, {spec.inodes} inodes"
        group = self.context.group_name(spec.sandbox_id)
        gateways = [Step("gateway", "unshare the network for the gateway, pin it", self.make_gateway)]
        if not spec.has_network:
            gateways.clear()
        return [
            Step("template", f"check that {self.template_dir} is {spec.template_digest}", self.check_template),
            *gateways,
            Step("namespace", f"unshare mounts; tmpfs on {STAGING}", self.enter_namespace),
            Step("disk", f"find {image}", self.find_disk)
            if spec.reuse_disk
            else Step("disk", f"sparse ext4 {image}: {size}", self.make_disk),
            Step("loop", f"attach {image} with direct I/O, mount it", self.mount_disk),
            Step("idmap", f"map template and disk to uids from {self.first_uid}", self.map_layers),
            Step("network", "join sandbox and gateway, open the listeners", self.join_network)
            if spec.has_network
            else Step("network", "loopback alone", self.loopback_alone),
            Step("overlay", f"mount the overlay as uid {self.first_uid}", self.mount_root),
            Step("binds", "clone agent, files, inputs and lxcfs, read-only", self.bind_folders),
            Step("cgroup", f"make {group} in {len(self.place.hierarchies)} hierarchies", self.make_groups),
            Step("bundle", f"write {self.folder / 'bundle/config.json'}", self.write_bundle),
            Step("runtime", f"{spec.runtime} run --detach {spec.sandbox_id}", self.start_runtime),
        ]

    def check_template(self) -> None:
        meta = self.template_dir / "template.json"
        named = f"{self.spec.template_name}@{self.spec.template_digest[:16]}"
        try:
            status, data = meta.stat(), json.loads(meta.read_text())
        except FileNotFoundError:
            raise NotFound(f"template {named} is not built on this node", hint="make template") from None
        if data.get("digest") != self.spec.template_digest:
            raise NotFound(f"{self.template_dir} holds another digest than {named}", hint="make template")
        if status.st_uid != 0 or status.st_mode & 0o022:
            raise SandboxFailed(f"{meta} must be root's, and writable by root alone")

    def make_gateway(self) -> None:
        self.gateway = gateway.make(self.context.data, self.spec.sandbox_id)

    def join_network(self) -> None:
        assert self.namespaces is not None
        self.listeners = gateway.connect(self.gateway, self.namespaces.net, self.first_uid)
        os.close(self.gateway)

    def loopback_alone(self) -> None:
        assert self.namespaces is not None
        gateway.loopback_alone(self.namespaces.net)

    def enter_namespace(self) -> None:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_SLAVE)
        STAGING.mkdir(mode=0o755, parents=True, exist_ok=True)
        kernel.mount("tmpfs", str(STAGING), "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=755,size=1m")
        for name in ("disk", "lower", "upper", "root", "agent", "files", "inputs", "lxcfs"):
            (STAGING / name).mkdir()

    def find_disk(self) -> None:
        if not (self.folder / DISK).is_file():
            raise NotFound(f"{self.spec.sandbox_id} has left no disk")

    def make_disk(self) -> None:
        (self.folder / MACHINE).write_text(json.dumps(asdict(self.spec)))
        disk.create(
            self.folder / DISK,
            self.spec.disk_bytes,
            self.spec.inodes,
            self.context.blanks_dir,
            lambda argv: run.run(*argv, timeout_s=TIMEOUT_S),
        )

    def mount_disk(self) -> None:
        name = self.context.group_name(self.spec.sandbox_id)
        self.device = loop.attach(self.folder / DISK, name)
        target = STAGING / "disk"
        kernel.mount(self.device.path, str(target), "ext4", kernel.MS_NOATIME | kernel.MS_NODEV, disk.MOUNT_OPTIONS)
        os.close(self.device.fd)
        for folder in ("u", "w"):
            (target / folder).mkdir(mode=0o755, exist_ok=self.spec.reuse_disk)

    def map_layers(self) -> None:
        self.namespaces = idmap.namespaces(self.first_uid)
        userns = self.namespaces.user
        rootfs = str(self.template_dir / "rootfs")
        idmap.mount_idmapped(rootfs, str(STAGING / "lower"), userns, read_only=True)
        idmap.mount_idmapped(str(STAGING / "disk"), str(STAGING / "upper"), userns, read_only=False)

    def mount_root(self) -> None:
        upper = STAGING / "upper"
        idmap.mount_overlay(
            str(STAGING / "lower"), str(upper / "u"), str(upper / "w"), str(STAGING / "root"), self.first_uid
        )

    def bind_folders(self) -> None:
        data, spec = self.context.data, self.spec
        files = self.folder / "files"
        files.mkdir(mode=0o755)
        for name, text in sandbox_files(spec.sandbox_id, len(spec.cpu_ids), has_network=spec.has_network).items():
            (files / name).write_text(text)
            (files / name).chmod(0o644)
        # The parents of these are root's alone, so their paths hold still.
        _bind(str(data.agent_dir(spec.sandbox_id)), STAGING / "agent")
        _bind(str(files), STAGING / "files")
        if self.context.has_lxcfs:
            _bind(str(data.lxcfs_dir), STAGING / "lxcfs")
        if spec.has_inputs:
            # The node's own folders: it must not lead the helper elsewhere by a symbolic link.
            fd = _open_beneath(data.root, data.inputs_dir.relative_to(data.root) / spec.sandbox_id)
            try:
                _bind(fd, STAGING / "inputs")
            finally:
                os.close(fd)

    def make_groups(self) -> None:
        spec = self.spec
        limits = cgroup.Limits(
            memory_bytes=spec.memory_bytes,
            pids=spec.pids,
            cpu_quota_us=oci.cpu_quota_us(spec.cpus),
            cpu_period_us=oci.CPU_PERIOD_US,
            cpu_list=oci.cpu_list(spec.cpu_ids),
        )
        name = self.context.group_name(spec.sandbox_id)
        cgroup.make(self.place, name, self.context.node_uid, self.context.node_gid, limits)

    def write_bundle(self) -> None:
        spec, namespaces = self.spec, self.namespaces
        assert namespaces is not None
        name = "/" + self.context.group_name(spec.sandbox_id)
        machine = oci.Machine(
            hostname=spec.sandbox_id,
            staging=STAGING,
            first_uid=self.first_uid,
            user_namespace=f"/proc/{os.getpid()}/fd/{namespaces.user}",
            network_namespace=f"/proc/{os.getpid()}/fd/{namespaces.net}",
            cgroups_path=f"{name}/{cgroup.INIT_SCOPE}" if self.place.is_v2 else name,
            cpus=spec.cpus,
            cpu_list=oci.cpu_list(spec.cpu_ids),
            memory_bytes=spec.memory_bytes,
            pids=spec.pids,
            has_inputs=spec.has_inputs,
            has_lxcfs=self.context.has_lxcfs,
            has_swap_accounting=(self.place.memory / "memory.memsw.limit_in_bytes").exists(),
            limits_in_parent=self.place.is_v2,
        )
        config = oci.oci_config(machine, seccomp_profile(self.context.machine))
        bundle = self.folder / "bundle"
        bundle.mkdir(mode=0o700)
        (bundle / "config.json").write_text(json.dumps(config))

    def start_runtime(self) -> None:
        log, pid_file = self.folder / "runtime.log", self.folder / "pid"
        try:
            run.run(
                *(self.spec.runtime, "--root", str(self.context.data.runc_root), "--log", str(log)),
                *("--log-format", "json", "run", "--detach", "--pid-file", str(pid_file)),
                *("--bundle", str(self.folder / "bundle"), self.spec.sandbox_id),
                timeout_s=TIMEOUT_S,
                capture=False,
            )
        except BellglassError as error:
            raise SandboxFailed(_log_tail(log) or error.message, hint=error.hint) from error
        self.pid = int(pid_file.read_text())
        self.restore_priority()
        for fd in self.namespaces or ():
            os.close(fd)

    def restore_priority(self) -> None:
        """What this child gave up, its machine has inherited."""
        if self.spec.background:
            priority.restore(self.pid, self.usual_nice)


def start_machine(context: Context, spec: StartMachine) -> dict[str, object]:
    """Run the plan. The caller is left in the mount namespace of the start, and as far back as one in the background
    steps. When a step fails, everything made so far is given back, the uid range included.

    Raises NotFound (template), NoCapacity, SandboxFailed.
    """
    usual_nice = os.getpriority(os.PRIO_PROCESS, 0)
    if spec.background:
        priority.step_back()
    host_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    with locked(context, spec.sandbox_id, TIMEOUT_S) as exists:
        index = uids.find(context.installation, spec.sandbox_id)
        if not exists or index is None:
            raise SandboxFailed(f"{spec.sandbox_id} has no uid range: lease_uids comes first")
        start = MachineStart(context, spec, cgroup.layout(), index, usual_nice=usual_nice)
        try:
            for step in start.plan():
                began = time.perf_counter()
                _run_step(step)
                faultpoints.reach(f"helper.start.{step.name}")
                start.profile_ms[step.name] = round((time.perf_counter() - began) * 1000, 2)
            assert start.device is not None
            os.close(host_namespace)
            return {
                "pid": start.pid,
                "start_ticks": start_ticks(start.pid),
                "direct_io": start.device.direct_io,
                "lxcfs": context.has_lxcfs,
                "profile_ms": start.profile_ms,
                "descriptors": [listener.detach() for listener in start.listeners],
            }
        except BaseException:
            # Out of the namespace first: as long as this process is in it, the disk is mounted.
            kernel.setns(host_namespace, kernel.CLONE_NEWNS)
            for listener in start.listeners:
                listener.close()
            if start.device is not None:
                with suppress(OSError):
                    os.close(start.device.fd)
            reclaim_locked(context, spec.sandbox_id, keep_disk=spec.reuse_disk)
            raise


def sandbox_files(hostname: str, cpu_count: int, *, has_network: bool) -> dict[str, str]:
    """What the sandbox reads of itself: in /etc, and as /sys/devices/system/cpu/online."""
    return {
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost ip6-loopback\n",
        "resolv.conf": RESOLV_CONF if has_network else "# this sandbox has no network\n",
        "cpu_online": "0\n" if cpu_count == 1 else f"0-{cpu_count - 1}\n",
    }


def _run_step(step: Step) -> None:
    try:
        step.act()
    except BellglassError as error:
        raise type(error)(f"{step.name}: {error.message}", hint=error.hint, details=error.details) from error
    except OSError as error:
        message = f"{step.name} ({step.describe}): {error}"
        if error.errno in (28, 122):
            raise NoCapacity(message, hint="the host's disk is full", details={"resource": "disk"}) from error
        raise SandboxFailed(message) from error


def _bind(source: str | int, target: Path) -> None:
    tree = kernel.clone_tree(source)
    try:
        flags = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
        kernel.set_mount_attributes(tree, flags)
        kernel.attach_tree(tree, str(target))
    finally:
        os.close(tree)


def _open_beneath(root: Path, path: Path) -> int:
    """An O_PATH descriptor of a folder; no component below the root may be a symbolic link."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.parts:
        try:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _log_tail(log: Path) -> str:
    """The last error that the runtime logged, or nothing."""
    found = ""
    with suppress(FileNotFoundError):
        for line in log.read_text(errors="replace").splitlines():
            with suppress(ValueError, AttributeError):
                entry = json.loads(line)
                if entry.get("level") in ("error", "fatal"):
                    found = str(entry.get("msg", ""))
    return found[:1000]
