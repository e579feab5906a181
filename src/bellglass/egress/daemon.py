"""The frame of the two egress daemons: how each starts, is confined and says that it serves.

`python -P -m bellglass.egress.proxy --data-dir D --config JSON`, as root. The JSON holds `uid gid` (the daemon's own),
`node_uid`, `proxy_uid` (the resolver's), and the proxy's settings. The folders of the sockets are the supervisor's to
make. SIGTERM ends either at once: they have nothing to store.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bellglass.egress import confine
from bellglass.egress.confine import Confinement, Identity
from bellglass.egress.log import log


class Start(NamedTuple):
    """What a daemon has when it begins to serve. Its sockets are SOCK_SEQPACKET, listen and don't block."""

    config: dict[str, Any]
    control: socket.socket
    names: socket.socket | None = None
    """The resolver's: where the proxy asks."""


def main(name: str, confinement: Confinement, serve: Callable[[Start], None], *, names: bool = False) -> int:
    """Ends only by a signal, or where it can't start."""
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    if set(options) != {"--data-dir", "--config"} or os.geteuid() != 0:
        print(
            f"bellglass.egress.{name}: the supervisor starts it, as root, with --data-dir and --config", file=sys.stderr
        )
        return 2
    config = json.loads(options["--config"])
    root = Path(options["--data-dir"]).resolve() / "run/egress"
    report = os.dup(1)
    os.dup2(2, 1)
    try:
        start = Start(config, _bind(root / name / f"{name}.sock"), _bind(root / "names/names.sock") if names else None)
        confine.enter(
            confinement,
            Identity(int(config["uid"]), int(config["gid"])),
            root=str(root),
            listen=[one for one in (start.control, start.names) if one is not None],
            keep=[report],
        )
    except (OSError, RuntimeError) as error:
        log("can't start", error=str(error))
        return 1
    os.write(report, b'{"ready": true}\n')
    os.close(report)
    log("serving", uid=os.getuid())
    serve(start)
    return 1


def _bind(path: Path) -> socket.socket:
    """Whoever may pass its folder may connect; the supervisor let in only those who are meant."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise RuntimeError(f"{path} is there and no socket")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    bound.bind(str(path))
    path.chmod(0o666)
    return bound
