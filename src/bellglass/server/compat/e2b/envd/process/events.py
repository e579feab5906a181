"""What happens to a process, as enveloped messages."""

from __future__ import annotations

import binascii
import json
import signal as signals
from typing import Any

from bellglass.server.compat.e2b.envd.connect import envelope
from bellglass.wire.output import OutputType

KEEPALIVE = envelope(b'{"event":{"keepalive":{}}}')
STDOUT, STDERR, PTY = "stdout", "stderr", "pty"


def start(pid: int) -> bytes:
    return envelope(b'{"event":{"start":{"pid":%d}}}' % pid)


def data(channel: str, output: bytes) -> bytes:
    encoded = binascii.b2a_base64(output, newline=False)
    return envelope(b'{"event":{"data":{"%b":"%b"}}}' % (channel.encode("ascii"), encoded))


def channel_of(kind: OutputType, *, terminal: bool) -> str:
    if kind is OutputType.STDERR:
        return STDERR
    return PTY if terminal else STDOUT


def end(record: dict[str, Any]) -> bytes:
    """Of an execution that has ended."""
    name = record.get("signal")
    if name:
        status = f"signal: {_words(str(name))}"
        fields: dict[str, Any] = {"exitCode": -1, "exited": False, "status": status, "error": status}
        if record.get("oom_killed"):
            fields["error"] = f"{status} (out of memory)"
    else:
        code = int(record.get("exit_code") or 0)
        status = f"exit status {code}"
        fields = {"exitCode": code, "exited": True, "status": status}
        if code:
            fields["error"] = status
    return envelope(json.dumps({"event": {"end": fields}}, separators=(",", ":")).encode("ascii"))


def _words(name: str) -> str:
    """`killed` for SIGKILL."""
    try:
        return (signals.strsignal(signals.Signals[name]) or name).lower()
    except KeyError:
        return name
