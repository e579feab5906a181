"""One upload, asked by clients of which most read nothing before they have sent it all."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from pathlib import Path

import httpx2
from server_harness import Harness, make

FETCH = """
const [url, authorization, path] = process.argv.slice(1);
const body = require("fs").readFileSync(path);
fetch(url, {method: "PUT", headers: {authorization}, body})
    .then(async answer => process.stdout.write(`${answer.status} ${await answer.text()}`));
"""
WAYS = ("by_hand", "in_chunks", "by_http_client", "by_httpx", "by_curl", "by_fetch")
Told = tuple[int, str | None]
"""Status, and the code of a refusal."""


class Upload:
    def __init__(self, harness: Harness, length: int) -> None:
        self.harness = harness
        self.length = length
        self.key = str(harness.project().headers["authorization"])
        self.sandbox_id = str(make(harness.project())["id"])
        self.query = "path=a"

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.sandbox_id}/files?{self.query}"

    @property
    def url(self) -> str:
        return self.harness.url + self.path

    def dial(self) -> socket.socket:
        host, port = self.harness.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=20)

    def head(self, *headers: str, version: str = "1.1") -> bytes:
        lines = [f"PUT {self.path} HTTP/{version}", "host: x", f"authorization: {self.key}", *headers, "", ""]
        return "\r\n".join(lines).encode()

    # --- ways to ask ------------------------------------------------------------------------------------

    def by_hand(self) -> Told:
        with self.dial() as connection:
            connection.sendall(self.head(f"content-length: {self.length}") + bytes(self.length))
            return read(connection)

    def in_chunks(self) -> Told:
        with self.dial() as connection:
            connection.sendall(self.head("transfer-encoding: chunked"))
            for start in range(0, self.length, 65536):
                piece = bytes(min(65536, self.length - start))
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
            return read(connection)

    def by_http_client(self) -> Told:
        client = http.client.HTTPConnection(self.harness.url.removeprefix("http://"), timeout=20)
        try:
            client.request("PUT", self.path, bytes(self.length), {"authorization": self.key})
            return told(client.getresponse())
        finally:
            client.close()

    def by_httpx(self) -> Told:
        with httpx2.Client(headers={"authorization": self.key}, timeout=20) as client:
            answer = client.put(self.url, content=bytes(self.length))
        return answer.status_code, code_of(answer.content)

    def by_curl(self, body: Path) -> Told:
        options = ["-sS", "-H", f"authorization: {self.key}", "-H", "expect:", "-w", "\n%{http_code}"]
        text, _, status = run(["curl", *options, "-T", str(body), self.url]).rpartition("\n")
        return int(status), code_of(text)

    def by_fetch(self, body: Path) -> Told:
        status, _, text = run(["node", "-e", FETCH, self.url, self.key, str(body)]).partition(" ")
        return int(status), code_of(text)

    def ask(self, way: str, folder: Path) -> Told:
        if way not in ("by_curl", "by_fetch"):
            answer: Told = getattr(self, way)()
            return answer
        body = folder / "body"
        body.write_bytes(bytes(self.length))
        answer = getattr(self, way)(body)
        return answer


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def code_of(body: str | bytes) -> str | None:
    found = json.loads(body)
    return str(found["error"]["code"]) if "error" in found else None


def told(answer: http.client.HTTPResponse) -> Told:
    return answer.status, code_of(answer.read())


def read(connection: socket.socket) -> Told:
    """The next answer, 100 Continue left out."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return told(answer)
