"""Files as the server sees them: ranges, limits, and uploads that break off."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_harness import Harness, error_of

from bellglass.errors import DiskFull, FileTypeMismatch, RangeNotSatisfiable
from bellglass.server.files.ranges import parse, resolve


@pytest.fixture(scope="module")
def url(api: httpx2.Client) -> str:
    return f"/v1/sandboxes/{api.post('/v1/sandboxes', json={}).json()['id']}/files"


def test_write_read_remove(harness: Harness, api: httpx2.Client, url: str) -> None:
    made = api.put(url, params={"path": "a ü.txt", "parents": True, "permissions": "0600"}, content=b"hello world")
    assert made.status_code == 201, made.text
    params = harness.peer.params("file.write")
    assert (params["path"], params["mode_bits"], params["expected_bytes"], params["user"]) == (
        "a ü.txt",
        0o600,
        11,
        "user",
    )
    assert (params["in_place"], params["parents"], params["base"]) == (False, True, "/home/user")
    assert api.put(url, params={"path": "a ü.txt"}, content=b"hello world").status_code == 200
    answer = api.get(url, params={"path": "a ü.txt"})
    assert answer.content == b"hello world"
    assert json.loads(answer.headers["x-bellglass-file-info"])["path"] == "a ü.txt"
    head = api.head(url, params={"path": "a ü.txt"})
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "11", b"")
    assert api.get(url + "/stat", params={"path": "a ü.txt"}).json()["size"] == 11
    assert api.get(url + "/list").json()["truncated"] is False
    assert api.get(url + "/list", params={"recursive": True}).json()["items"][0]["name"] == "a ü.txt"
    assert api.delete(url, params={"path": "a ü.txt"}).status_code == 204
    error_of(api.delete(url, params={"path": "a ü.txt"}), 404, "file_not_found")
    assert api.delete(url, params={"path": "a ü.txt", "missing_ok": True}).status_code == 204
    error_of(api.get(url, params={"path": "a ü.txt"}), 404, "file_not_found")
    assert api.head(url, params={"path": "a ü.txt"}).status_code == 404


def test_write_in_place(harness: Harness, api: httpx2.Client, url: str) -> None:
    api.put(url, params={"path": "p", "mode": "in_place"}, content=b"x")
    assert harness.peer.params("file.write")["truncate"] is True, "no stale tail"
    api.put(url, params={"path": "p", "mode": "in_place", "offset": 5}, content=b"x")
    assert harness.peer.params("file.write")["truncate"] is False
    for params in ({"offset": 1}, {"truncate": True}, {"mode": "append"}, {"mode": "in_place", "offset": -1},
                   {"permissions": "999"}, {"permissions": "rw"}, {"permissions": "77777"}):  # fmt: skip
        error_of(api.put(url, params={"path": "p", **params}, content=b"x"), 422)


@pytest.mark.parametrize("path", ["", "a\0b", "a" * 4097, "ä" * 2049])
def test_paths(api: httpx2.Client, url: str, path: str) -> None:
    assert api.put(url, params={"path": "a" * 4096}, content=b"x").status_code in (200, 201)
    for method, more in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/stat"), ("GET", "/list"),
                         ("GET", "/archive"), ("PUT", "/archive")):  # fmt: skip
        assert error_of(api.request(method, url + more, params={"path": path}), 422)["details"]["field"] == "path"
    error_of(api.post(url + "/mkdir", json={"path": path}), 422)
    error_of(api.post(url + "/move", json={"source": "x", "destination": path}), 422)
    error_of(api.get(url), 422)


def test_mkdir_and_move(harness: Harness, api: httpx2.Client, url: str) -> None:
    assert api.post(url + "/mkdir", json={"path": "d", "permissions": "0750"}).status_code == 200
    assert harness.peer.params("file.mkdir")["mode_bits"] == 0o750
    assert api.post(url + "/move", json={"source": "d", "destination": "e"}).status_code == 204
    error_of(api.post(url + "/move", json={"source": "d", "destination": "e"}), 404)
    error_of(api.post(url + "/mkdir", json={"path": "d", "mode": "0750"}), 422)


def test_archives(harness: Harness, api: httpx2.Client, url: str) -> None:
    assert len(api.get(url + "/archive", params={"path": "."}).content) == 10240
    assert api.put(url + "/archive", params={"path": "."}, content=b"x" * 5000).json()["bytes"] == 5000


def test_ranges(api: httpx2.Client, url: str) -> None:
    api.put(url, params={"path": "r"}, content=b"0123456789")
    for header, content, told in (
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=4-", b"456789", "bytes 4-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=8-100", b"89", "bytes 8-9/10"),
        ("bytes=-100", b"0123456789", "bytes 0-9/10"),
    ):
        answer = api.get(url, params={"path": "r"}, headers={"range": header})
        assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, content, told)
        assert answer.headers["content-length"] == str(len(content))
    for header in ("bytes=10-", "bytes=99-100", "bytes=-0"):
        error = error_of(api.get(url, params={"path": "r"}, headers={"range": header}), 416, "range_not_satisfiable")
        assert error["details"]["size"] == 10
    for header in ("bytes=5-2", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=-", "", "bytes=" + "9" * 30 + "-"):
        assert api.get(url, params={"path": "r"}, headers={"range": header}).status_code == 200, header


@given(header=st.text(max_size=30) | st.from_regex(r"bytes ?= ?\d*-\d*", fullmatch=True), size=st.integers(0, 100))
def test_any_range_header(header: str, size: int) -> None:
    wanted = parse(header)
    if wanted is not None:
        try:
            span = resolve(wanted, size)
        except RangeNotSatisfiable:
            return
        assert span.offset >= 0 < span.length
        assert span.offset + span.length <= size


def test_too_large(tmp_path: Any) -> None:
    harness = Harness(tmp_path / "data", {"server.max_file": 100_000}).start()
    try:
        api = harness.project()
        url = f"/v1/sandboxes/{api.post('/v1/sandboxes', json={}).json()['id']}/files"
        assert api.put(url, params={"path": "a"}, content=b"x" * 100_000).status_code == 201
        error_of(api.put(url, params={"path": "b"}, content=b"x" * 100_001), 413, "too_large")

        def chunks() -> Any:
            for _ in range(11):
                yield b"x" * 10_000

        error_of(api.put(url, params={"path": "b"}, content=chunks()), 413, "too_large")
        assert "b" not in harness.peer.files
    finally:
        harness.stop()


def test_errors_of_the_node_in_mid_upload(harness: Harness, api: httpx2.Client, url: str) -> None:
    harness.peer.fail["file.write"] = DiskFull("the sandbox's disk is full")
    error_of(api.put(url, params={"path": "big"}, content=b"x" * (20 * 2**20)), 507, "disk_full")
    harness.peer.fail.clear()
    harness.peer.fail["file.read"] = FileTypeMismatch("a FIFO", details={"field": "path"})
    error_of(api.get(url, params={"path": "fifo"}), 409, "file_type")
    assert api.get("/v1/health").status_code == 200


def test_a_client_gone_in_mid_upload_leaves_nothing(harness: Harness, api: httpx2.Client, url: str) -> None:
    harness.peer.reset_streams.clear()
    host, port = harness.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    key = api.headers["authorization"]
    connection.sendall(
        f"PUT {url}?path=half HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\ncontent-length: 1000000\r\n\r\n".encode()
        + b"x" * 300_000
    )
    harness.until(lambda: ("file.write", "half") in [(op, params.get("path")) for op, params in harness.peer.calls])
    connection.close()
    harness.until(lambda: harness.peer.reset_streams == ["file.write"])
    assert "half" not in harness.peer.files


def test_expect_100_continue(harness: Harness, api: httpx2.Client, url: str) -> None:
    host, port = harness.url.removeprefix("http://").split(":")
    head = "PUT {} HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.format(url + "?path=c", api.headers["authorization"]).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"12345")
        assert connection.recv(65536).startswith(b"HTTP/1.1 201")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.format(url + "?path=c", "Bearer bg_wrong").encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 401"), "refused before the body is asked for"
