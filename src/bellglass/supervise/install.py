"""Preparing an installation's data folder: ids, secrets, folders with their owners and modes. Safe to repeat.

Secrets are made once and never printed: the admin key (root's, for `bellglass keys`), its hash for the server, and the
link secret, in two copies because server and node have different uids.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import json
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bellglass import __version__
from bellglass.datadir import DataDir
from bellglass.errors import InvalidRequest, SandboxFailed
from bellglass.ids import INSTALLATION_ID, new_installation_id, random_base32
from bellglass.times import now

SERVER_USER = "bellglass-server"
NODE_USER = "bellglass-node"
PROXY_USER = "bellglass-proxy"
RESOLVER_USER = "bellglass-resolver"
EGRESS_GIDS = range(0xE600_0000, 0xF600_0000)
"""Above the uids of sandboxes; no names belong to them."""
_LINK_SECRET = re.compile(rb"([0-9a-f]{64})\n?")


@dataclass(frozen=True, slots=True)
class Identity:
    """The uid and gid that a daemon runs under."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Installation:
    id: str
    data: DataDir
    server: Identity
    node: Identity
    proxy: Identity
    resolver: Identity


def prepare(data: DataDir) -> Installation:
    """Make or complete the data folder. Raises InvalidRequest when its place can't serve.

    As root the daemons get system users of their own; as an ordinary user (fake driver) everything is that user's.
    """
    root = os.geteuid() == 0
    server = _system_user(SERVER_USER) if root else Identity(os.getuid(), os.getgid())
    node = _system_user(NODE_USER) if root else server
    data.root.mkdir(parents=True, exist_ok=True, mode=0o755)
    if root:
        _refuse_untraversable(data.root)
    data.root.chmod(0o711)
    identifier = _installation_id(data)
    proxy = _egress_user(PROXY_USER, identifier) if root else server
    resolver = _egress_user(RESOLVER_USER, identifier) if root else server
    _folder(data.server_dir, 0o700, server)
    _folder(data.node_dir, 0o700, node)
    for folder in (data.executions_dir, data.inputs_dir):
        _folder(folder, 0o700, node)
    _folder(data.sandboxes_dir, 0o711, Identity(os.geteuid(), os.getegid()))
    _folder(data.run_dir, 0o755, Identity(os.geteuid(), os.getegid()))
    _folder(data.link_dir, 0o750, Identity(node.uid, server.gid))
    _folder(data.identity_socket.parent, 0o750, Identity(server.uid, node.gid))
    _egress_folders(data, node, proxy)
    _folder(data.logs_dir, 0o750, Identity(os.geteuid(), os.getegid()))
    if not data.settings_file.exists():
        _write(data.settings_file, "# Settings of this installation; see docs/reference/settings.md\n", 0o644)
    _secrets(data, server, node)
    return Installation(id=identifier, data=data, server=server, node=node, proxy=proxy, resolver=resolver)


def _egress_user(name: str, identifier: str) -> Identity:
    """All installations of a host share its uid. The gid is this installation's own, and by it the wall around proxy
    and resolver (node/helper/net/wall.py) tells them from another installation's."""
    number = int.from_bytes(hashlib.sha256(f"{name} {identifier}".encode()).digest()[:4])
    return Identity(_system_user(name).uid, EGRESS_GIDS[number % len(EGRESS_GIDS)])


def _egress_folders(data: DataDir, node: Identity, proxy: Identity) -> None:
    """What proxy and resolver see as `/`. Nothing in it is theirs to write: their sockets are bound by root."""
    root = Identity(os.geteuid(), os.getegid())
    _folder(data.egress_dir, 0o755, root)
    _folder(data.egress_dir / "etc", 0o755, root)
    _folder(data.proxy_socket.parent, 0o750, Identity(root.uid, node.gid))
    _folder(data.resolver_socket.parent, 0o750, Identity(root.uid, node.gid))
    _folder(data.names_socket.parent, 0o750, Identity(root.uid, proxy.gid))


def read_installation_id(data: DataDir) -> str:
    """The id of an installation that exists. Raises InvalidRequest when there is none."""
    try:
        identifier = json.loads(data.installation_file.read_text())["id"]
    except FileNotFoundError as error:
        hint = f"`bellglass up{data.option}` makes one"
        raise InvalidRequest(f"there is no installation in {data.root}", hint=hint) from error
    if not INSTALLATION_ID.match(identifier):
        raise InvalidRequest(f"{data.installation_file} holds no installation id")
    return identifier


def _installation_id(data: DataDir) -> str:
    if not data.installation_file.exists():
        record = {"id": new_installation_id(), "created_at": now(), "version": __version__}
        _write(data.installation_file, json.dumps(record) + "\n", 0o644)
    return read_installation_id(data)


def _secrets(data: DataDir, server: Identity, node: Identity) -> None:
    if not data.admin_key_file.exists():
        _write(data.admin_key_file, f"bgadmin_{random_base32(32)}\n", 0o600)
    admin_key = data.admin_key_file.read_text().strip()
    _write(data.admin_hash_file, hashlib.sha256(admin_key.encode()).hexdigest() + "\n", 0o400, server)
    secret = read_link_secret(data) or secrets.token_hex(32)
    for file, owner in ((data.node_secret_file, node), (data.server_secret_file, server)):
        _write(file, secret + "\n", 0o400, owner)


def read_link_secret(data: DataDir) -> str | None:
    """None where there is none that fits. Its folder is the node's, who could put a link to a file of root's there:
    what is read here is written to where node and server can read it, or said to the node."""
    try:
        descriptor = os.open(data.node_secret_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, OSError) as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = _LINK_SECRET.fullmatch(file.read(100))
    return found[1].decode() if found else None


def _write(file: Path, text: str, mode: int, owner: Identity | None = None) -> None:
    """Atomic, never readable by others in between, and on disk before it counts. The folder may be a daemon's. What is
    there as it should be stays: `down` has to work on a full disk."""
    if _is_as_it_should_be(file, text, mode, owner):
        return
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, owner.uid, owner.gid)
        os.fsync(descriptor)
    temporary.rename(file)


def _is_as_it_should_be(file: Path, text: str, mode: int, owner: Identity | None) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, OSError) as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return False
    with os.fdopen(descriptor, "rb") as handle:
        found = os.fstat(descriptor)
        wanted = owner or Identity(os.geteuid(), os.getegid())
        is_private_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        return (
            is_private_file
            and (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (mode, wanted.uid, wanted.gid)
            and handle.read(len(text.encode()) + 1) == text.encode()
        )


def _folder(path: Path, mode: int, owner: Identity) -> None:
    """By a descriptor: some lie in folders of the daemons, who could put a link in their place at any moment."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise SandboxFailed(f"{path} is not a folder", hint="see what it is, and remove it") from error
    try:
        os.fchown(descriptor, owner.uid, owner.gid)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _refuse_untraversable(root: Path) -> None:
    """A sandbox's processes have uids of their own and must pass every folder above their root file system."""
    for folder in root.resolve().parents:
        if not folder.stat().st_mode & 0o001:
            raise InvalidRequest(
                f"the data folder {root} can't serve: {folder} may not be passed by other users",
                hint=f"choose another --data-dir, or `chmod o+x {folder}`",
                details={"field": "data_dir"},
            )


def _system_user(name: str) -> Identity:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
        if useradd is None:
            raise SandboxFailed(f"no system user {name} and no useradd", hint="apt-get install passwd") from None
        done = subprocess.run(
            [useradd, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
             "--shell", "/usr/sbin/nologin", name],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        # 9: the name is taken, by another `up` that was quicker.
        if done.returncode not in (0, 9):
            raise SandboxFailed(f"useradd {name} failed: {done.stderr.strip()}") from None
        entry = pwd.getpwnam(name)
    return Identity(entry.pw_uid, grp.getgrnam(name).gr_gid)
