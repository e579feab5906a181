"""An index of one package, as pip reads it, for the servers of a `World`."""

from __future__ import annotations

import io
import socket
import zipfile


def wheel(name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{name}.py", "VERSION = '1.0'\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return made.getvalue()


def index(client: socket.socket) -> None:
    """An index of one package."""
    file = "requests-1.0-py3-none-any.whl"
    pages = {"/simple/requests/": f'<a href="/files/{file}">{file}</a>'.encode(), f"/files/{file}": wheel("requests")}
    head = b""
    while b"\r\n\r\n" not in head:
        piece = client.recv(4096)
        if not piece:
            return
        head += piece
    found = pages.get(head.split()[1].decode())
    status, body = ("200 OK", found) if found is not None else ("404 Not Found", b"")
    kind = "application/octet-stream" if head.split()[1].endswith(b".whl") else "text/html"
    lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.sendall(lines.encode() + body)
