"""What the supervisor does for proxy and resolver: their configuration, and the two files of the host that the proxy
reads. It can't see the host's own from its chroot, so it gets copies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bellglass.datadir import DataDir
from bellglass.settings import Settings
from bellglass.supervise.install import Installation

NAMES = ("resolver", "proxy")
"""In the order in which they are started: the proxy asks the resolver."""
RESOLV_CONF = Path("/etc/resolv.conf")


def configuration(installation: Installation, settings: Settings, name: str) -> dict[str, Any]:
    """Of one of the two. In its arguments, where every user of the host can read it: it holds no secret."""
    identity = getattr(installation, name)
    found: dict[str, Any] = {"uid": identity.uid, "gid": identity.gid, "node_uid": installation.node.uid}
    if name == "resolver":
        return found | {"proxy_uid": installation.proxy.uid}
    return found | {
        "exceptions": list(settings["egress.exceptions"]),
        "upstream_dns": list(settings["egress.upstream_dns"]),
        "max_connections": settings["egress.max_connections"],
    }


def copy_host_files(data: DataDir, settings: Settings) -> list[str]:
    """Bring the copies up to date; answers which had changed. A file that isn't there is an empty one."""
    sources = {"hosts": Path(settings["egress.hosts_file"]), "resolv.conf": RESOLV_CONF}
    return [name for name, source in sources.items() if _copy(source, data.egress_dir / "etc" / name)]


def _copy(source: Path, copy: Path) -> bool:
    try:
        wanted = source.read_bytes()
    except FileNotFoundError:
        wanted = b""
    if copy.exists() and copy.read_bytes() == wanted:
        return False
    temporary = copy.with_name(f".{copy.name}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(wanted)
        os.fchmod(descriptor, 0o644)
    temporary.rename(copy)
    return True
