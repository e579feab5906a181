"""What root inside can and cannot do: ids, capabilities, name spaces, masked paths, mounts, network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

CAPABILITIES = {
    "cap_chown", "cap_dac_override", "cap_fowner", "cap_fsetid", "cap_kill", "cap_setgid", "cap_setuid",
    "cap_net_bind_service", "cap_sys_chroot", "cap_setfcap", "cap_audit_write",
}  # fmt: skip
BITS = {
    0: "cap_chown", 1: "cap_dac_override", 3: "cap_fowner", 4: "cap_fsetid", 5: "cap_kill", 6: "cap_setgid",
    7: "cap_setuid", 10: "cap_net_bind_service", 18: "cap_sys_chroot", 29: "cap_audit_write", 31: "cap_setfcap",
}  # fmt: skip


def test_root_inside_is_a_nobody_outside(machine: Any) -> None:
    assert machine.agent.shell("id -u; id -G") == "0\n0\n"
    assert machine.agent.shell("cat /proc/self/uid_map").split() == ["0", str(machine.first_uid), "65536"]
    status = Path(f"/proc/{machine.pid}/status").read_text()
    assert f"Uid:\t{machine.first_uid}\t" in status
    assert f"Gid:\t{machine.first_uid}\t" in status


def test_capabilities(machine: Any) -> None:
    status = dict(line.split(":\t", 1) for line in machine.agent.shell("cat /proc/self/status").splitlines())
    for kind in ("CapBnd", "CapEff", "CapPrm"):
        held = {BITS.get(bit, str(bit)) for bit in range(64) if int(status[kind], 16) >> bit & 1}
        assert held == CAPABILITIES
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["Seccomp"] == "2"


def test_setuid_programs_work(machine: Any) -> None:
    assert machine.agent.run("sudo", "-n", "id", "-u", user="user").stdout == "0\n"
    assert machine.agent.run("id", "-u", user="user").stdout == "1000\n"
    script = "cp /usr/bin/id /usr/bin/suid-id && chmod 4755 /usr/bin/suid-id"
    machine.agent.shell(script)
    assert machine.agent.run("suid-id", "-u", user="user").stdout == "0\n"


def test_the_root_file_system_is_writable_and_without_devices(machine: Any) -> None:
    machine.agent.shell("echo x > /etc/probe && rm /etc/debian_version && touch /root/r /usr/u && rm /root/r /usr/u")
    assert "nodev" in machine.agent.shell("grep ' / / ' /proc/self/mountinfo")
    refused = machine.agent.run("mknod", "/root/null", "c", "1", "3")
    assert refused.exit_code != 0 and "Operation not permitted" in refused.stderr
    assert machine.agent.run("mkfifo", "/root/fifo").exit_code == 0
    assert machine.agent.shell("echo data > /dev/null; head -c3 /dev/zero | od -An -tx1") == " 00 00 00\n"


def test_no_user_namespaces_even_without_the_filter(machine: Any) -> None:
    assert machine.agent.shell("cat /proc/sys/user/max_user_namespaces") == "0\n"
    # From outside there is no seccomp filter: what refuses here is the limit itself.
    enter = ["nsenter", "--target", str(machine.pid), "--user", "--mount", "--pid", "--setuid", "0"]
    assert subprocess.run([*enter, "true"]).returncode == 0
    refused = subprocess.run([*enter, "unshare", "--user", "true"], capture_output=True, text=True)
    assert refused.returncode != 0 and "No space left on device" in refused.stderr


MASKED_FILES = (
    *("/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/kallsyms", "/proc/kmsg"),
    *("/proc/vmallocinfo", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/sysrq-trigger"),
    *("/proc/config.gz", "/proc/iomem", "/proc/ioports", "/proc/mtrr", "/proc/partitions", "/sys/kernel/notes"),
)
MASKED_FOLDERS = (
    *("/proc/acpi", "/proc/scsi", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing"),
    *("/sys/kernel/security", "/sys/fs/bpf", "/sys/fs/pstore", "/sys/module", "/sys/devices/virtual/block"),
    *("/sys/fs/cgroup", "/sys/kernel/slab", "/proc/driver"),
)


def test_masked_paths(machine: Any) -> None:
    assert machine.agent.shell("head -c 5 /proc/version") == "Linux", "what is not masked can be read"
    for path in MASKED_FILES:
        assert machine.agent.shell(f"test ! -e {path} || head -c 10 {path} | wc -c").strip() in ("", "0"), path
    for path in MASKED_FOLDERS:
        assert machine.agent.shell(f"test ! -e {path} || ls -A {path}") == "", path
    masked_on_host = [path for path in MASKED_FILES if os.path.exists(path)]
    assert len(masked_on_host) > 8, "the list means something on this host"


@pytest.mark.parametrize(
    "path", ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"]
)
def test_read_only_paths(machine: Any, path: str) -> None:
    before = Path(path).read_bytes() if "sysrq" not in path else b""
    result = machine.agent.run("/bin/sh", "-c", f"echo 1 > {path}")
    assert result.exit_code != 0 or "sysrq" in path  # masked by /dev/null, which takes it
    assert before == (Path(path).read_bytes() if "sysrq" not in path else b"")


def test_sysfs_is_read_only(machine: Any) -> None:
    assert machine.agent.shell("test -r /sys/class/net/lo/mtu && cat /sys/class/net/lo/mtu") == "65536\n"
    assert "Read-only file system" in machine.agent.run("/bin/sh", "-c", "echo 1 > /sys/class/net/lo/mtu").stderr


def test_the_agents_folder(machine: Any) -> None:
    assert sorted(machine.agent.shell("ls /run/bellglass").split()) == ["agent.sock", "bellglass-agent"]
    refused = machine.agent.run("touch", "/run/bellglass/x")
    assert "Read-only file system" in refused.stderr
    as_user = machine.agent.run("ls", "/run/bellglass", user="user")
    assert as_user.exit_code != 0 and "Permission denied" in as_user.stderr
    assert "Permission denied" in machine.agent.run("cat", "/proc/1/environ", user="user").stderr


def test_files_of_the_name_service(machine: Any) -> None:
    hostname = machine.handle.sandbox_id
    assert machine.agent.shell("cat /etc/hostname; hostname") == f"{hostname}\n{hostname}\n"
    assert machine.agent.shell("getent hosts localhost").split()[1] == "localhost"
    assert machine.agent.shell(f"getent hosts {hostname}").split() == ["127.0.0.1", "localhost", hostname]
    assert "Read-only file system" in machine.agent.run("/bin/sh", "-c", "echo x > /etc/hosts").stderr


def test_tmp_is_on_the_disk_and_shm_in_memory(machine: Any) -> None:
    kinds = machine.agent.shell("stat -f -c %T /tmp /dev/shm /run; stat -c %a /tmp /dev/shm").split()
    assert kinds == ["overlayfs", "tmpfs", "tmpfs", "1777", "1777"]
    assert machine.agent.shell("df --output=size -k /dev/shm | tail -1").strip() == str(128 * 1024)


def test_inputs_are_read_only(rig: Any, clean: None) -> None:
    spec = rig.spec(has_inputs=True)
    folder = rig.data.inputs_dir / spec.sandbox_id
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text("given")
    with rig.machine(sandbox_id=spec.sandbox_id, has_inputs=True) as machine:
        assert machine.agent.run("cat", "/inputs/deep/a.txt", user="user").stdout == "given"
        assert "Read-only file system" in machine.agent.run("touch", "/inputs/x").stderr
    for path in (folder / "deep" / "a.txt", folder / "deep", folder):
        path.rmdir() if path.is_dir() else path.unlink()
