"""What the daemons may do and what others may read: capabilities, uids, sockets, key files, logs."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bellglass.errors import BellglassError
from bellglass.testing import kernel

pytestmark = [pytest.mark.root]


def field(pid: int, name: str) -> list[str]:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return line.split()[1:]
    raise AssertionError(name)


def test_only_the_helper_has_capabilities(stack: Any) -> None:
    pids = stack.pids()
    assert {"server", "node", "helper"} <= set(pids)
    assert kernel.effective_capabilities(pids["helper"]) != 0, "so a capability would be seen"
    for name in ("server", "node"):
        for set_name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert field(pids[name], set_name) == ["0000000000000000"], f"{name} {set_name}"
        assert field(pids[name], "NoNewPrivs") == ["1"], "no way back by a setuid program"


def test_every_daemon_has_a_user_of_its_own(stack: Any) -> None:
    pids = stack.pids()
    uids = {name: set(field(pids[name], "Uid")) for name in ("server", "node")}
    assert all(len(found) == 1 for found in uids.values()), "real, effective, saved and file system uid alike"
    assert uids["server"] != uids["node"] and {"0"} not in uids.values()
    for name in ("server", "node"):
        assert set(field(pids[name], "Groups")) <= set(field(pids[name], "Gid")), f"{name} has no further groups"


def test_the_helper_dies_with_the_node(stack: Any) -> None:
    pids = stack.pids()
    assert int(field(pids["helper"], "PPid")[0]) == pids["node"]


def test_the_helper_listens_nowhere(stack: Any) -> None:
    """Its only channel is a socket pair that it was born with."""
    pid = stack.pids()["helper"]
    inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    sockets = {link[8:-1] for link in inodes if link.startswith("socket:[")}
    assert sockets
    named = {line.split()[6]: line.split()[7:] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    assert all(named.get(inode) == [] for inode in sockets), "no address"
    for table in ("tcp", "tcp6", "udp", "udp6", "raw"):
        lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        assert not sockets & {line.split()[9] for line in lines}


FILES = {
    "admin.key": 0o600,
    "client.json": 0o600,
    "profile.json": 0o600,
    "server": 0o700,
    "server/bellglass.db": 0o600,
    "server/link.secret": 0o400,
    "server/admin_key.sha256": 0o400,
    "node/link.secret": 0o400,
    "node/journal.db": 0o600,
    "node/executions": 0o700,
    "run/link": 0o750,
    "logs": 0o750,
}


@pytest.mark.parametrize("name", FILES)
def test_modes(stack: Any, name: str) -> None:
    """No more than these bits: what a umask takes away besides is fine."""
    mode = stat.S_IMODE((stack.data_dir / name).stat().st_mode)
    assert mode & ~FILES[name] == 0 or (mode & 0o077 == 0 and FILES[name] & 0o077 == 0), oct(mode)


def test_nobody_else_can_read_secrets_or_reach_sockets(stack: Any) -> None:
    """Tried as an ordinary user of the host."""
    data = stack.data
    paths = [data.admin_key_file, data.database_file, data.node_secret_file, data.server_secret_file, data.journal_file]
    program = (
        "import os, sys, socket\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(open('/etc/hostname').read() != '')\n"
        "for path in sys.argv[2:]:\n"
        "    try: open(path).read(1); print('read', path)\n"
        "    except PermissionError: pass\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')\n"
        "except PermissionError: pass\n"
    )
    argv = ["/usr/bin/python3", "-c", program, str(data.node_socket), *map(str, paths)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_nodes_socket_wants_the_secret(stack: Any) -> None:
    """Root may connect, but without the installation's secret nobody is answered."""
    from bellglass.link import LinkClient

    async def ask(secret: str) -> Any:
        link = await LinkClient.connect(
            stack.data.node_socket, secret=secret, role="operator", installation=stack.scope.installation
        )
        try:
            return await link.call("node.info", {})
        finally:
            await link.close()

    import asyncio

    assert asyncio.run(ask(stack.data.node_secret_file.read_text().strip()))["version"]
    for wrong in ("", "0" * 64):
        with pytest.raises(BellglassError):
            asyncio.run(ask(wrong))
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(stack.data.node_socket))
        raw.settimeout(10)
        raw.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10)
        while raw.recv(65536):
            pass  # until it hangs up
    assert stack.status()["node"], "and the node goes on"


def test_the_api_listens_on_loopback_alone(stack: Any) -> None:
    port = int(stack.api_url.rpartition(":")[2])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                listening.append(local.rpartition(":")[0])
    assert listening == ["0100007F"], "127.0.0.1"


def everything_written(stack: Any) -> str:
    """Logs and errors of the daemons, and the server's database with its audit."""
    parts = [path.read_bytes() for path in stack.data.logs_dir.iterdir()]
    parts += [path.read_bytes() for path in stack.data.server_dir.glob("bellglass.db*")]
    return b"\n".join(parts).decode("utf-8", "replace")


def test_secrets_are_in_no_log_and_no_error(new_box: Callable[..., Any], stack: Any, api: Any) -> None:
    canaries = {name: f"canary{name}{secrets.token_hex(8)}" for name in ("env", "stdin", "header", "file", "key")}
    box = new_box()
    box.exec(["true"], env={"TOKEN": canaries["env"]}, stdin=canaries["stdin"])
    box.files.write_text("secret", canaries["file"])
    errors = [
        api.post(f"/v1/sandboxes/{box.id}/executions", json={"command": "true", "env": {"A=B": canaries["env"]}}),
        api.post(f"/v1/sandboxes/{box.id}/executions", json={"command": "true", "stdin": [canaries["stdin"]]}),
        api.get("/v1/me", headers={"Authorization": f"Bearer {canaries['key']}"}),
        api.get("/v1/nothing", headers={"X-Secret": canaries["header"]}),
    ]
    assert all(answer.status_code >= 400 for answer in errors)
    written = everything_written(stack)
    assert box.id in written, "it is what the daemons wrote"
    for name, value in canaries.items():
        assert value not in written, f"the {name} stands in a log or the database"
    assert canaries["key"] not in errors[2].text and canaries["header"] not in errors[3].text
    for key in (stack.api_key, stack.admin_key):
        assert key not in written, "keys are stored hashed"


def test_the_users_code_is_in_no_argument_list(new_box: Callable[..., Any]) -> None:
    """Seen by any user of the host in ps: the daemons' and the runtime's arguments hold nothing of the tenant's."""
    canary = f"canary{secrets.token_hex(8)}"
    box = new_box(env={"TOKEN": canary}, labels={"l": canary})
    box.exec(["true"], env={"TOKEN": canary})
    for process in kernel.processes():
        if "pytest" not in process.command:
            assert canary not in process.command


@pytest.mark.parametrize("name", ["proxy", "resolver"])
def test_proxy_and_resolver_have_given_everything_up(stack: Any, name: str) -> None:
    pids = stack.pids()
    pid = pids[name]
    for set_name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
        assert field(pid, set_name) == ["0000000000000000"], set_name
    assert (field(pid, "NoNewPrivs"), field(pid, "Seccomp"), field(pid, "Threads")) == (["1"], ["2"], ["1"])
    uids = {other: field(pids[other], "Uid")[0] for other in ("server", "node", "proxy", "resolver")}
    assert len(set(uids.values())) == 4 and "0" not in uids.values()
    assert set(field(pid, "Uid")) == {uids[name]} and field(pid, "Groups") == []
    assert os.readlink(f"/proc/{pid}/root") == str(stack.data.egress_dir)
    limits = {line[:26].strip(): line[26:].split()[0] for line in Path(f"/proc/{pid}/limits").read_text().splitlines()}
    assert (limits["Max processes"], limits["Max core file size"]) == ("0", "0")
    assert int(limits["Max address space"]) <= 4 << 30
    assert Path(f"/proc/{pid}/environ").stat().st_uid == 0, "not dumpable: nobody of its uid looks into it"


@pytest.mark.parametrize("name", ["proxy", "resolver"])
def test_proxy_and_resolver_hold_no_folder_and_no_file_but_their_log(stack: Any, name: str) -> None:
    pid = stack.pids()[name]
    held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    files = {target for target in held if target.startswith("/") and target != "/dev/null"}
    assert files == {str(stack.data.logs_dir / f"{name}.log")}


def test_what_both_see_as_root_holds_two_files_and_is_nobodys_to_write(stack: Any) -> None:
    found = {str(path.relative_to(stack.data.egress_dir)): path for path in stack.data.egress_dir.rglob("*")}
    assert set(found) == {
        *("etc", "etc/hosts", "etc/resolv.conf", "proxy", "proxy/proxy.sock", "resolver", "resolver/resolver.sock"),
        *("names", "names/names.sock"),
    }
    for name, path in found.items():
        assert path.stat().st_uid == 0
        if not path.is_socket():
            assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0, name
    assert found["etc/hosts"].read_text() == Path("/etc/hosts").read_text()
