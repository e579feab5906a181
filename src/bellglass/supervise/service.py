"""What `bellglass up` in the foreground tells the service manager that started it: sd_notify(3), one datagram."""

from __future__ import annotations

import os
import socket


def ready(api_url: str) -> None:
    """The API answers. Nothing where no service manager waits for it (`Type=notify`). Raises OSError."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        if address.startswith("@"):  # the abstract name space
            address = "\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(f"READY=1\nSTATUS=up at {api_url}\n".encode(), address)
