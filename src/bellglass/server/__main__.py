"""`python -m bellglass.server --data-dir D [--listen HOST] [--port N]`: the API as one process.

Prints one line of JSON on stdout once it is bound: {"ready": true, "api_url": ...}; port 0 takes a free port. SIGTERM
and SIGINT stop it: streams under way are cut after a second, sandboxes and their executions go on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path

from bellglass import faultpoints
from bellglass import settings as settings_table
from bellglass.datadir import DataDir
from bellglass.errors import BellglassError
from bellglass.server import logs
from bellglass.server.db.migrate import MigrationFailed
from bellglass.server.http.sockets import bind
from bellglass.spare_memory import without


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bellglass.server", description="The API of a Bellglass installation."
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--listen", help="address; by default the setting server.listen")
    parser.add_argument("--port", type=int, help="0 takes a free one; by default the setting server.port")
    options = parser.parse_args(arguments)
    logs.set_up()
    data = DataDir(options.data_dir.resolve())
    faultpoints.watch(data.faults_dir)
    overrides = {
        name: value
        for name, value in (("server.listen", options.listen), ("server.port", options.port))
        if value is not None
    }
    try:
        settings = settings_table.load(data.settings_file, overrides=overrides)
        listener = bind(settings["server.listen"], settings["server.port"], stall_s=settings["server.stall_timeout"])
        previews = None
        if settings["previews.listen"]:
            previews = _bind_previews(settings)
        _run(data, settings, listener, previews)
    except (BellglassError, MigrationFailed, OSError) as error:
        print(f"bellglass.server: {error}", file=sys.stderr)
        return 1
    return 0


def api_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind_previews(settings: settings_table.Settings) -> socket.socket:
    host, port = settings["previews.listen"], settings["previews.port"]
    try:
        return bind(host, port, stall_s=settings["server.stall_timeout"])
    except OSError as error:
        raise OSError(
            error.errno, f"{error.strerror}; it is for published ports: previews.port sets another"
        ) from error


def _run(
    data: DataDir, settings: settings_table.Settings, listener: socket.socket, previews: socket.socket | None
) -> None:
    import uvloop

    with without("pydantic.v1"):  # FastAPI would ask of every parameter whether it is a model of that
        from bellglass.server.serving import serve

    def ready() -> None:
        print(json.dumps({"ready": True, "api_url": api_url(listener)}), flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(data, settings, listener, ready, previews))


if __name__ == "__main__":
    sys.exit(main())
