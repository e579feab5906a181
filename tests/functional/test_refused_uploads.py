"""Uploads into real sandboxes that are refused, by a client that reads no answer before it has sent all."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from bellglass.testing.stack import Stack

pytestmark = pytest.mark.root
LONG = 24 * 2**20
PROGRAM = """
import socket
listener = socket.create_server(("127.0.0.1", 8000))
while True:
    with listener.accept()[0] as connection:
        head = connection.recv(65536)
        left = int(head.split(b"Content-Length: ")[1].split(b"\\r\\n")[0]) if b"PUT /take " in head else 0
        left -= len(head.partition(b"\\r\\n\\r\\n")[2]) if left else 0
        while left:
            left -= len(connection.recv(min(left, 1 << 20)))
        answer = b"200 OK" if b"PUT /take " in head else b"413 Too Large"
        connection.sendall(b"HTTP/1.1 " + answer + b"\\r\\nContent-Length: 5\\r\\n\\r\\nheard")
"""


def put(url: str, target: str, **headers: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    client = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=60)
    try:
        client.request("PUT", target, bytes(LONG), {"Host": parts.netloc, **headers})
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def test_refused_by_the_api(stack: Stack, new_box: Callable[..., Any]) -> None:
    box = new_box(disk="256MiB")
    target = f"/v1/sandboxes/{box.id}/files?path="
    key = f"Bearer {stack.api_key}"
    assert put(stack.api_url, target + "good", Authorization=key)[0] == 201
    status, body = put(stack.api_url, target + "other", Authorization=key + "x")
    assert (status, b'"unauthorized"' in body) == (401, True)
    box.exec(["sh", "-c", "cat /dev/zero >fill"])
    status, body = put(stack.api_url, target + "more", Authorization=key)
    assert (status, b'"disk_full"' in body) == (507, True)
    assert box.exec(["rm", "fill"]).ok and put(stack.api_url, target + "more", Authorization=key)[0] == 201
    box.delete()
    assert put(stack.api_url, target + "good", Authorization=key)[0] in (404, 410)


def test_refused_by_a_program_that_closes_at_once(new_box: Callable[..., Any]) -> None:
    box = new_box()
    url = box.publish(8000, visibility="public").url
    box.start(["python3", "-c", PROGRAM])
    assert put(url, "/take") == (200, b"heard")
    assert put(url, "/") == (413, b"heard")
    box.publish(8000)
    assert put(url, "/take")[0] == 401
