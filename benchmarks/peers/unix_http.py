"""An HTTP connection over a unix socket, which the standard library has all parts of but the connect."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from pathlib import Path


class UnixConnection(HTTPConnection):
    """Kept alive between requests as any HTTPConnection."""

    def __init__(self, path: Path, timeout_s: float = 60.0) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
