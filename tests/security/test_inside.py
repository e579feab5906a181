"""What a sandbox's own processes can see and reach, as `user` and as root inside. Each wall is tried."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root]

CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip
USERS = ("user", "root")


def status_field(box: Any, field: str, user: str) -> str:
    line = box.exec(["grep", f"^{field}:", "/proc/self/status"], user=user).stdout
    return line.split()[1]


def test_it_is_not_the_hosts_root(shared_box: Any, stack: Any) -> None:
    assert shared_box.exec(["id", "-u"], user="root").stdout == "0\n"
    first = int(shared_box.exec(["cat", "/proc/self/uid_map"], user="root").stdout.split()[1])
    assert first >= 0x70000000, "root inside is nobody outside"
    marker = f"sleep {4000 + secrets.randbelow(1000)}.5"
    execution = shared_box.start(marker.split(), user="root")
    found = subprocess.run(["pgrep", "-fx", marker], capture_output=True, text=True, check=True)
    owner = Path(f"/proc/{found.stdout.split()[0]}").stat().st_uid
    execution.kill()
    assert owner == first


def test_capabilities_are_the_few(shared_box: Any) -> None:
    wanted = sum(1 << number for number in CAPABILITIES.values())
    assert int(status_field(shared_box, "CapBnd", "root"), 16) == wanted
    assert int(status_field(shared_box, "CapEff", "root"), 16) == wanted
    for field in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        assert int(status_field(shared_box, field, "user"), 16) == 0


MASKED_FILES = [
    f"/proc/{name}"
    for name in ("kcore", "keys", "latency_stats", "timer_list", "sched_debug", "kpagecount", "kmsg", "slabinfo")
]
MASKED_FOLDERS = ["/proc/acpi", "/proc/scsi", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/security"]


@pytest.mark.parametrize("user", USERS)
def test_masked_files_of_proc_and_sys_say_nothing(shared_box: Any, user: str) -> None:
    script = "for f in {}; do [ -e $f ] && head -c 64 $f 2>/dev/null | wc -c; done; :".format(" ".join(MASKED_FILES))
    assert set(shared_box.exec(script, user=user, timeout=30).stdout.split()) <= {"0"}
    script = "for d in {}; do ls -A $d 2>/dev/null; done; :".format(" ".join(MASKED_FOLDERS))
    assert shared_box.exec(script, user=user).stdout == ""
    assert shared_box.exec(["head", "-c", "5", "/proc/version"], user=user).stdout == "Linux", "others are read"


UNWRITABLE = """
/proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/vm/overcommit_memory
/proc/sys/fs/binfmt_misc/register /proc/sys/kernel/hostname /proc/sys/user/max_user_namespaces
/proc/sys/net/ipv4/ip_forward
/sys/kernel/uevent_helper /sys/fs/cgroup/memory/release_agent /sys/fs/cgroup/unified/cgroup.procs /sys/power/state
/sys/module/kernel/parameters/panic /proc/1/oom_score_adj /proc/1/mem
"""


@pytest.mark.parametrize("user", USERS)
def test_nothing_of_the_kernel_is_writable(shared_box: Any, user: str) -> None:
    """Only opened for writing: where a wall is missing, the test must not do the damage."""
    opened = shared_box.exec(["sh", "-c", ": > /tmp/twin-$(id -u)"], user=user)
    assert opened.exit_code == 0, "the allowed twin"
    for path in UNWRITABLE.split():
        result = shared_box.exec(["sh", "-c", f": >> {path}"], user=user)
        if path.startswith("/proc/1/") and user == "root":
            continue  # its own machine's first process, which is no more than itself
        assert result.exit_code != 0, f"{user} could open {path} for writing"


def test_devices_are_the_default_ones(shared_box: Any) -> None:
    # Not find: each is a bind mount over a plain file, and a folder's listing tells the type of that file.
    look = "for f in /dev/*; do [ -L $f ] || [ ! -c $f -a ! -b $f ] || echo $f; done"
    nodes = shared_box.exec(look, user="root").stdout.split()
    wanted = {f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero")}
    assert set(nodes) - {"/dev/ptmx", "/dev/console"} == wanted
    for user in USERS:
        result = shared_box.exec("mknod /tmp/node c 1 3 || mknod /tmp/node b 7 0", user=user)
        assert result.exit_code != 0, user
    assert shared_box.exec(["mkfifo", "/tmp/a-fifo"]).ok
    assert shared_box.exec("ls /dev/kmsg /dev/mem /dev/kvm /dev/fuse /dev/loop-control /dev/vda", user="root").exit_code


@pytest.mark.parametrize("user", USERS)
def test_no_namespace_and_no_mount_is_made(shared_box: Any, user: str) -> None:
    for command in (
        ["unshare", "-U", "true"],
        ["unshare", "-Ur", "true"],
        ["unshare", "-n", "true"],
        ["unshare", "-m", "true"],
        ["unshare", "-p", "-f", "true"],
        ["nsenter", "-t", "1", "-m", "true"],
        ["nsenter", "-t", "1", "-n", "true"],
        ["mount", "-t", "tmpfs", "x", "/mnt"],
        ["mount", "-t", "proc", "proc", "/mnt"],
        ["mount", "-t", "sysfs", "sys", "/mnt"],
        ["mount", "--bind", "/etc", "/mnt"],
        ["mount", "-o", "remount,rw", "/proc/sys"],
        ["umount", "/proc"],
    ):
        assert shared_box.exec(command, user=user).exit_code not in (0, 127), f"{user}: {command}"
    assert shared_box.exec(["cat", "/proc/sys/user/max_user_namespaces"], user=user).stdout == "0\n"
    assert shared_box.exec(["chroot", "/", "true"], user="root").ok, "chroot is among the few capabilities"


def test_no_address_answers_and_no_name_is_known(shared_box: Any) -> None:
    """Without a policy. The kernel takes a connection for the proxy, which then resets it: not a byte is moved."""
    assert shared_box.exec(["ls", "/sys/class/net"], user="root").stdout.split() == ["eth0", "lo"]
    # Loopback's own rows are in the table of IPv6; a row through another link would be a way out.
    assert set(shared_box.exec("awk '{print $NF}' /proc/net/ipv6_route").stdout.split()) <= {"lo"}
    program = (
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print('loopback')\n"
        "for address in ('1.1.1.1', '169.254.169.254', '10.0.0.1', '172.17.0.1', '10.200.0.1'):\n"
        "    try:\n"
        "        with socket.create_connection((address, 80), 10) as c: print('reached', address, c.recv(9))\n"
        "    except ConnectionError: print('refused')\n"
        "try: socket.getaddrinfo('example.com', 80); print('resolved')\n"
        "except socket.gaierror: print('no name')\n"
    )
    for user in USERS:
        lines = shared_box.exec(["python3", "-c", program], user=user, timeout=60).stdout.split("\n")
        assert lines[:7] == ["loopback", *["refused"] * 5, "no name"], lines


def test_abstract_sockets_of_the_host_are_not_there(shared_box: Any) -> None:
    import socket

    name = f"bellglass-test-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        twin = socket.socket(socket.AF_UNIX)
        twin.connect("\0" + name)
        twin.close()
        program = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        assert "ConnectionRefused" in shared_box.exec(["python3", "-c", program], user="root").stderr


def test_the_agents_things_are_out_of_reach_of_the_user(shared_box: Any) -> None:
    look = shared_box.exec(
        "ls -la /run/bellglass/ /run/bellglass/* 2>&1; touch /run/bellglass/x; ls -l /proc/1/fd /proc/1/exe"
    )
    assert "Permission denied" in look.stderr + look.stdout and "agent.sock" not in look.stdout
    assert shared_box.exec("cat /proc/1/mem | head -c 1; cat /proc/1/maps").stdout == ""
    attach = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.ptrace(16, {pid}, 0, 0), ctypes.get_errno())"
    )
    for pid in (1, *_agents(shared_box)):
        assert shared_box.exec(["python3", "-c", attach.format(pid=pid)]).stdout == "-1 1\n", f"EPERM for pid {pid}"
    twin = (
        "import ctypes, subprocess\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "p = subprocess.Popen(['sleep', '5'])\nprint(libc.ptrace(16, p.pid, 0, 0)); p.kill()"
    )
    assert shared_box.exec(["python3", "-c", twin]).stdout == "0\n", "a process of one's own can be traced"
    assert shared_box.exec(["kill", "-9", "1"]).exit_code != 0
    assert shared_box.exec(["echo", "alive"]).stdout == "alive\n"


def _agents(box: Any) -> list[int]:
    """Pids inside that run the agent's program."""
    found = box.exec("grep -l [b]ellglass-agent /proc/[0-9]*/comm /proc/[0-9]*/cmdline 2>/dev/null", user="root").stdout
    return sorted({int(line.split("/")[2]) for line in found.split() if line.split("/")[2].isdigit()} - {1})


def test_nothing_secret_is_in_sight(new_box: Callable[..., Any], stack: Any) -> None:
    """Not the API's keys, not the link's secret, not one execution's environment for another user."""
    secret = f"canary-{secrets.token_hex(8)}"
    box = new_box(env={"MINE": "visible"})
    holder = box.start(["sleep", "60"], env={"TOKEN": secret}, user="root")
    data = stack.data
    secrets_of_host = [
        stack.api_key,
        stack.admin_key,
        data.node_secret_file.read_text().strip(),
        data.server_secret_file.read_text().strip(),
    ]
    look = "cat /proc/*/environ /proc/*/cmdline /proc/*/task/*/environ 2>/dev/null | tr '\\0' '\\n'"
    seen_by_user, seen_by_root = (box.exec(look, user=user, timeout=30).stdout for user in USERS)
    assert "MINE=visible" in seen_by_user and secret not in seen_by_user
    assert secret in seen_by_root, "root inside sees its own machine whole, so the search does find things"
    for value in secrets_of_host:
        assert value not in seen_by_user + seen_by_root
    where = (
        "find / -xdev \\( -name '*token*' -o -name '*.secret' -o -name 'admin.key' -o -name 'client.json' \\) "
        "-not -path '/proc/*' -not -path '/sys/*' -not -path '/usr/*' 2>/dev/null"
    )
    assert box.exec(where, user="root", timeout=60).stdout == ""
    searched = "grep -rlF -e {} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null"
    pattern = " -e ".join(secrets_of_host)
    assert box.exec(searched.format(pattern), user="root", timeout=120).stdout == ""
    holder.kill()


def test_paths_of_the_host_are_not_told(shared_box: Any, stack: Any) -> None:
    """mountinfo tells sources; none of them is more than a folder of the sandbox's own."""
    text = shared_box.exec("cat /proc/self/mountinfo /proc/mounts /proc/self/cgroup", user="root").stdout
    assert " / / " in text
    for word in (str(stack.data_dir / "node"), str(stack.data_dir / "server"), "/var/cache/bellglass/venv"):
        assert word not in text


def test_two_sandboxes_share_nothing(new_box: Callable[..., Any]) -> None:
    one, two = new_box(), new_box()
    one.files.write_text("/tmp/mine", "one")
    one.start(["sleep", "4242"])
    assert not two.files.exists("/tmp/mine")
    assert "sleep 4242" not in two.exec("ps -eo args").stdout
    maps = [box.exec(["cat", "/proc/self/uid_map"]).stdout.split()[1] for box in (one, two)]
    assert maps[0] != maps[1], "a uid range of its own for each"
    names = [box.exec(["cat", "/proc/sys/kernel/random/boot_id", "/etc/machine-id"]).stdout for box in (one, two)]
    assert all(names)
    ids = [box.exec("readlink /proc/self/ns/*", user="root").stdout.split() for box in (one, two)]
    assert not {n for n in ids[0] if "time" not in n} & set(ids[1])


def test_seen_from_outside_it_is_confined(shared_box: Any) -> None:
    """The host's view of one process of the sandbox: namespaces, seccomp, uid, cgroups."""
    marker = f"{5000 + secrets.randbelow(1000)}.25"
    execution = shared_box.start(["sleep", marker])
    found = subprocess.run(["pgrep", "-fx", f"sleep {marker}"], capture_output=True, text=True, check=True)
    pid = int(found.stdout.split()[0])
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "net", "pid", "ipc", "uts", "user", "cgroup")}
    shared = [name for name, link in own.items() if os.readlink(f"/proc/{pid}/ns/{name}") == link]
    groups = Path(f"/proc/{pid}/cgroup").read_text()
    execution.kill()
    assert shared == []
    assert status["Seccomp"] == "2" and int(status["CapEff"], 16) == 0
    assert all(int(uid) >= 0x70000000 for uid in status["Uid"].split())
    assert all(
        "bellglass-" in line for line in groups.splitlines() if line.split(":")[1] in ("memory", "pids", "cpuset", "")
    )
    assert json.dumps(groups)
