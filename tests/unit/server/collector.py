"""A collector of events for tests: real HTTP on loopback, that can be told to be away, slow, full or wrong."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector:
    """`answers`: statuses of the next requests, after which it is 200. A request is kept in `taken` only with 200;
    `tried` counts all. `hold` is waited for before an answer."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.heads: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.tried = 0
        self.answers: list[int] = []
        self.reply = b"{}"
        self.most_bytes = 10**9
        self.lose_answers = 0
        self.hold = threading.Event()
        self.hold.set()
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def records(self) -> list[dict[str, Any]]:
        """JSON lines that were taken, in order, repeats and all."""
        return [json.loads(line) for body in self.taken for line in body.splitlines()]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.tried += 1
                collector.paths.append(self.path)
                collector.heads.append({name.lower(): value for name, value in self.headers.items()})
                assert collector.hold.wait(30)
                status = collector.answers.pop(0) if collector.answers else 200
                if len(body) > collector.most_bytes:
                    status = 413
                if status == 200:
                    collector.taken.append(body)
                    if collector.lose_answers:
                        collector.lose_answers -= 1
                        self.close_connection = True
                        return
                self.send_response(status)
                self.send_header("content-length", str(len(collector.reply)))
                self.end_headers()
                self.wfile.write(collector.reply)

            def log_message(self, *arguments: Any) -> None:
                pass

        return Handler
