"""Certificate authorities of a test's own, and servers with certificates of theirs on an address of the host."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ADDRESS = "127.77.0.1"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority(NamedTuple):
    cert: Path
    key: Path

    @classmethod
    def made(cls, folder: Path) -> Authority:
        """In that folder: it has to be a new one."""
        folder.mkdir()
        new = cls(folder / "ca.pem", folder / "ca.key")
        _openssl("-subj", "/CN=Authority of a test", "-days", "3650", "-out", new.cert, "-keyout", new.key)
        return new

    @classmethod
    def kept(cls, folder: Path) -> Authority:
        """The same one as long as the folder is there: templates that know it stay what they are."""
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as new:
                cls.made(Path(new) / "new")
                try:
                    (Path(new) / "new").rename(folder)
                except OSError:  # another run of the tests has made it meanwhile
                    if not folder.exists():
                        raise
        return cls(folder / "ca.pem", folder / "ca.key")

    @contextmanager
    def server(self, name: str, folder: Path) -> Iterator[int]:
        """HTTPS at ADDRESS that has one page, `/`. Its port."""
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        issuer = ("-CA", self.cert, "-CAkey", self.key, "-subj", f"/CN={name}", "-days", "2")
        more = ("-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE")
        _openssl(*issuer, *more, "-out", cert, "-keyout", key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server = http.server.ThreadingHTTPServer((ADDRESS, 0), _Page)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", "req", "-x509", *CURVE, *arguments], check=True, capture_output=True)
