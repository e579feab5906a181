"""The one door for programs that the helper starts: argv, its own environment, nothing inherited, a deadline."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shlex
import signal
import subprocess
import tempfile

from bellglass.errors import InternalError
from bellglass.node.helper import kernel, priority

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_TAIL_BYTES = 2000


def run(*argv: str, timeout_s: float, capture: bool = True, env: dict[str, str] | None = None, stdin: str = "") -> str:
    """What it wrote. With `capture=False` its output goes to /dev/null: for programs that leave children behind, which
    would hold a pipe or file of ours. Raises InternalError with the end of its output when it fails, is missing or
    takes too long; then its whole process group is killed."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile()) if capture else None
        given = None
        if stdin:
            given = stack.enter_context(tempfile.TemporaryFile())
            given.write(stdin.encode())
            given.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=given or subprocess.DEVNULL,
                stdout=output or subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT | (env or {}),
                cwd="/",
                start_new_session=True,
                # A runtime that outlived a killed helper child would go on starting what is being reclaimed.
                preexec_fn=functools.partial(_in_child, os.getpid()),
            )
        except FileNotFoundError:
            raise InternalError(f"{argv[0]} is not installed", hint="make setup") from None
        if not _ends(process.pid, timeout_s):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise InternalError(f"no end after {timeout_s:g} s: {shlex.join(argv)}")
        code = process.wait()
        text = ""
        if output is not None:
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code:
            raise InternalError(
                f"exit {code}: {shlex.join(argv)}" + (f": {text[-_TAIL_BYTES:].strip()}" if text.strip() else ""),
            )
        return text


def _in_child(parent: int) -> None:
    kernel.die_with_parent(parent)
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        priority.follow()


def _ends(pid: int, timeout_s: float) -> bool:
    """By poll(2): Popen.wait with a timeout looks at growing intervals, which made a start 25 ms slower."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(pidfd)
