"""Listening sockets."""

from __future__ import annotations

import socket

BACKLOG = 1024
KEEPALIVE_IDLE_S = 60
UNSENT_BYTES = 512 * 1024


def bind(host: str, port: int, *, stall_s: float) -> socket.socket:
    """A listening socket. Connections inherit its options: the kernel ends one whose client has vanished, or takes
    nothing of what was sent to it for `stall_s`. Raises OSError with address and reason."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_s * 1000))
        # Else the kernel takes 4 MiB for each client that reads nothing.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{host} port {port}: {error.strerror}") from error
    return listener
