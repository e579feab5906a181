"""The one door for programs that the helper starts: argv, its own environment, nothing inherited, a deadline."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import tempfile
from typing import IO

from bellglass.errors import InternalError
from bellglass.node.helper import launch

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_TAIL_BYTES = 2000


def run(*argv: str, timeout_s: float, capture: bool = True, env: dict[str, str] | None = None, stdin: str = "") -> str:
    """What it wrote. With `capture=False` its output goes to /dev/null: for programs that leave children behind, which
    would hold a pipe or file of ours. Raises InternalError with the end of its output when it fails, is missing or
    takes too long; then its whole process group is killed."""
    path = shutil.which(argv[0], path=ENVIRONMENT["PATH"])
    if path is None:
        raise InternalError(f"{argv[0]} is not installed", hint="make setup")
    with _file(capture) as output, _file(bool(stdin)) as given:
        given.write(stdin.encode())
        given.seek(0)
        streams = launch.Streams(given.fileno(), output.fileno())
        pid = launch.program(path, argv[1:], streams, env=ENVIRONMENT | (env or {}))
        ended = _ends(pid, timeout_s)
        if not ended:
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not ended:
            raise InternalError(f"no end after {timeout_s:g} s: {shlex.join(argv)}")
        text = ""
        if capture:
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code:
            raise InternalError(
                f"exit {code}: {shlex.join(argv)}" + (f": {text[-_TAIL_BYTES:].strip()}" if text.strip() else ""),
            )
        return text


def _file(real: bool) -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0) if real else open(os.devnull, "r+b", buffering=0)


def _ends(pid: int, timeout_s: float) -> bool:
    """By poll(2): Popen.wait with a timeout looks at growing intervals, which made a start 25 ms slower."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(pidfd)
