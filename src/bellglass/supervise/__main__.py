"""`python -m bellglass.supervise`: the supervisor that `bellglass up --detach` leaves behind."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from bellglass.datadir import DataDir
from bellglass.errors import BellglassError, InternalError
from bellglass.supervise import up


def main() -> int:
    parser = argparse.ArgumentParser(prog="bellglass.supervise", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--report-fd", type=int, required=True, help="pipe that takes steps and outcome as JSON lines")
    parser.add_argument("--listen")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    data, report = DataDir(options.data_dir), options.report_fd
    os.set_inheritable(report, False)

    def tell(message: dict[str, Any]) -> None:
        os.write(report, (json.dumps(message) + "\n").encode())

    def say(step: str, seconds: float) -> None:
        tell({"step": step, "seconds": seconds})

    try:
        supervisor, found = up.start(data, listen=options.listen, port=options.port, say=say)
    except BellglassError as error:
        tell(error.to_dict())
        return 1
    except BaseException as error:
        tell(InternalError(f"{type(error).__name__}: {error}").to_dict())
        raise
    _leave_terminal(data)
    tell({"profile": {"api_url": found.api_url, "api_key": found.api_key, "data_dir": found.data_dir}})
    os.close(report)
    supervisor.run()
    return 0


def _leave_terminal(data: DataDir) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(data.logs_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main())
