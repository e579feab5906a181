"""Where an installation keeps its things: the data folder's layout, in one place.

    <data_dir>/
      bellglass.toml        settings, world-readable, no secret
      installation.json     {"id", "created_at", "version"}
      lock                  held (flock) by the supervisor
      admin.key             the admin key, 0600, for `bellglass keys`
      client.json           a key of project `default`, 0600, that `up` copies into profiles
      server/               0700, server's uid: bellglass.db, admin_key.sha256, link.secret, ballast
      node/                 0700, node's uid: journal.db, executions/<sandbox>/, inputs/<sandbox>/, link.secret, ballast
      sandboxes/<id>/       made by the helper, root's: disk.img, agent/ (the socket's folder), bundle/, files/
      run/                  0755: link/node.sock (node's uid, group of the server's), identity/server.sock (server's
                            uid, group of the node's), lxcfs/, runc/, supervisor.json, gateways/ (0700, root's: the
                            sandboxes' gateways, mounted)
      run/egress/           0755: all that proxy and resolver see of the host's files: etc/hosts, etc/resolv.conf, and
                            their sockets, each in a folder that only those may pass who are meant to connect
      previews/             made by `bellglass previews ca`: a CA with its key (root's), a certificate with its key
                            (the server's)
      logs/                 server.log node.log helper.log proxy.log resolver.log supervisor.log
      faults/               made by tests alone: see faultpoints.py

The cache folder (templates, blank disks) is shared by all installations of a host: `BELLGLASS_CACHE`, by default
/var/cache/bellglass for root and ~/.cache/bellglass for others.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DataDir:
    root: Path

    settings_file = property(lambda self: self.root / "bellglass.toml")
    installation_file = property(lambda self: self.root / "installation.json")
    lock_file = property(lambda self: self.root / "lock")
    admin_key_file = property(lambda self: self.root / "admin.key")
    client_file = property(lambda self: self.root / "client.json")
    server_dir = property(lambda self: self.root / "server")
    database_file = property(lambda self: self.server_dir / "bellglass.db")
    admin_hash_file = property(lambda self: self.server_dir / "admin_key.sha256")
    server_secret_file = property(lambda self: self.server_dir / "link.secret")
    node_dir = property(lambda self: self.root / "node")
    journal_file = property(lambda self: self.node_dir / "journal.db")
    executions_dir = property(lambda self: self.node_dir / "executions")
    inputs_dir = property(lambda self: self.node_dir / "inputs")
    node_secret_file = property(lambda self: self.node_dir / "link.secret")
    faults_dir = property(lambda self: self.root / "faults")
    sandboxes_dir = property(lambda self: self.root / "sandboxes")
    run_dir = property(lambda self: self.root / "run")
    link_dir = property(lambda self: self.run_dir / "link")
    node_socket = property(lambda self: self.link_dir / "node.sock")
    identity_socket = property(lambda self: self.run_dir / "identity" / "server.sock")
    egress_dir = property(lambda self: self.run_dir / "egress")
    proxy_socket = property(lambda self: self.egress_dir / "proxy" / "proxy.sock")
    resolver_socket = property(lambda self: self.egress_dir / "resolver" / "resolver.sock")
    names_socket = property(lambda self: self.egress_dir / "names" / "names.sock")
    lxcfs_dir = property(lambda self: self.run_dir / "lxcfs")
    gateways_dir = property(lambda self: self.run_dir / "gateways")
    runc_root = property(lambda self: self.run_dir / "runc")
    supervisor_file = property(lambda self: self.run_dir / "supervisor.json")
    previews_dir = property(lambda self: self.root / "previews")
    logs_dir = property(lambda self: self.root / "logs")

    @property
    def option(self) -> str:
        """What a command line needs to mean this folder: nothing for the usual one."""
        return "" if self.root == default_data_dir() else f" --data-dir {shlex.quote(str(self.root))}"

    def machines(self) -> list[str]:
        """The sandboxes that have more than a disk that was kept. For root: the folder can't be listed by others."""
        return [folder.name for folder in self.sandboxes_dir.iterdir() if (folder / "agent").exists()]

    def sandbox_dir(self, sandbox_id: str) -> Path:
        return self.sandboxes_dir / sandbox_id

    def agent_dir(self, sandbox_id: str) -> Path:
        return self.sandbox_dir(sandbox_id) / "agent"


def default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/bellglass")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "bellglass"


def cache_dir() -> Path:
    if named := os.environ.get("BELLGLASS_CACHE"):
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/cache/bellglass")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bellglass"
