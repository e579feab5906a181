"""The node's process: `python -m bellglass.node --data-dir D`.

Started by the supervisor as the node's own user, with the helper's socket in BELLGLASS_HELPER_FD. Prints one JSON line
on stdout when it serves; SIGTERM stops it and leaves the sandboxes running.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from bellglass import faultpoints
from bellglass import settings as settings_table
from bellglass.datadir import DataDir
from bellglass.errors import BellglassError
from bellglass.node import recovery
from bellglass.node.app import Node, read_installation, read_secret
from bellglass.spare_memory import without

with without("rich"):  # for logs on a terminal
    import structlog

log = logging.getLogger("bellglass.node")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bellglass.node", description="The daemon that holds sandboxes.")
    parser.add_argument("--data-dir", type=Path, required=True)
    options = parser.parse_args(argv)
    _log_to_stderr()
    try:
        return uvloop.run(_serve(options))
    except BellglassError as error:
        log.error("the node can't start: %s", error)
        print(f"bellglass node: {error}", file=sys.stderr)
        return 1


async def _serve(options: argparse.Namespace) -> int:
    data = DataDir(options.data_dir.resolve())
    faultpoints.watch(data.faults_dir)
    helper = os.environ.get("BELLGLASS_HELPER_FD")
    node = await Node.start(
        data,
        settings_table.load(data.settings_file),
        read_installation(data),
        helper_fd=int(helper) if helper else None,
        on_helper_lost=_end_with_helper,
        boot_id_file=_boot_id_file(data),
    )
    try:
        await node.listen(secret=read_secret(data.node_secret_file), allowed_uids=_peers(data))
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        print(json.dumps({"ready": True}), flush=True)
        await stop.wait()
        log.info("stopping; sandboxes go on")
    finally:
        await node.close()
    return 0


def _end_with_helper(reason: str) -> None:
    """Like a crash, and before anybody hears of a change that was cut off: with its next helper the node finishes or
    undoes it, and callers who find their link broken ask again."""
    log.error("%s; the node ends with it", reason)
    os._exit(1)


def _peers(data: DataDir) -> set[int]:
    """Who may speak on the link: root (the supervisor), the server, known by who owns its folder, and ourselves."""
    return {0, os.geteuid(), data.server_dir.stat().st_uid if data.server_dir.exists() else os.geteuid()}


def _boot_id_file(data: DataDir) -> Path:
    """The kernel's, but where a test of a restarted machine has put another into the folder that only tests make."""
    planted = data.faults_dir / ".boot_id"
    return planted if planted.exists() else recovery.BOOT_ID_FILE


def _log_to_stderr() -> None:
    """JSON lines, from structlog and the standard library alike."""
    stages: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*stages, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
