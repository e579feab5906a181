"""`python -m bellglass.node.helper`: started by the launcher of the node, as root, with its end of a socketpair."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import signal
import socket
import sys
from pathlib import Path

from bellglass import faultpoints, ids, settings
from bellglass.datadir import DataDir
from bellglass.errors import BellglassError
from bellglass.node.helper import hostwide, kernel, service
from bellglass.node.helper.context import Context, seccomp_profile

OPEN_FILES = 65536


def main() -> int:
    options = _options()
    _set_up_process()
    data = DataDir(options.data_dir.resolve())
    faultpoints.watch(data.faults_dir)
    configured = settings.load(data.settings_file)
    templates = configured["node.templates_dir"] or options.cache_dir / "templates"
    context = Context(
        data=data,
        templates_dir=Path(templates).resolve(),
        blanks_dir=(options.cache_dir / "disks").resolve(),
        installation=options.installation,
        node_uid=options.node_uid,
        node_gid=options.node_gid,
        proxy_uid=options.proxy_uid,
        proxy_gid=options.proxy_gid,
        resolver_uid=options.resolver_uid,
        resolver_gid=options.resolver_gid,
        machine=platform.machine(),
    )
    channel = socket.socket(fileno=options.fd)
    channel.set_inheritable(False)
    try:
        service.log("host counts", **hostwide.raise_host_counts())
    except OSError as error:
        service.log("host counts can't be raised", error=str(error))
    if configured["node.favordynmods"]:
        try:
            service.log("cgroups favor changes", remounted=hostwide.favor_dynmods())
        except (OSError, BellglassError) as error:
            service.log("cgroups can't favor changes: executions start about 11 ms later", error=str(error))
    seccomp_profile(context.machine)
    service.serve(context, channel)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bellglass.node.helper", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, required=True)
    parser.add_argument("--installation", required=True)
    for daemon in ("node", "proxy", "resolver"):
        parser.add_argument(f"--{daemon}-uid", type=int, required=True)
        parser.add_argument(f"--{daemon}-gid", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True, help="this end of the SOCK_SEQPACKET socketpair")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("the helper runs as root")
    if not ids.INSTALLATION_ID.fullmatch(options.installation):
        parser.error(f"{options.installation!r} is not the id of an installation")
    return options


def _set_up_process() -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The runtime leaves a machine's first process to us, so its exit is noticed even where nobody else reaps.
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    os.umask(0o022)
    # For machines. Inherited, not set by the runtime: over a process of a namespace that another uid owns it may have
    # no right.
    open_files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())
