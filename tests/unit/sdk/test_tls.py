"""Servers behind TLS: the certificate is checked, and everything works as without."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass import AsyncSandbox, ConnectionFailed, Sandbox
from tests.unit.fake_api.fake_api import KEY, FakeApi
from tests.unit.fake_api.fake_server import Server

FOLDER = Path(__file__).parent / "tls"
"""A certificate for 127.0.0.1 that signs itself, good for a hundred years, for these tests alone."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = Server(ssl_certfile=FOLDER / "cert.pem", ssl_keyfile=FOLDER / "key.pem")
    server.play(FakeApi(tmp_path))
    yield server.url.replace("http:", "https:")
    server.close()


def test_an_unknown_certificate_is_refused(url: str) -> None:
    async def check() -> None:
        with pytest.raises(ConnectionFailed, match="certificate"):
            await AsyncSandbox(api_url=url, api_key=KEY)

    with pytest.raises(ConnectionFailed, match="certificate"):
        Sandbox(api_url=url, api_key=KEY)
    asyncio.run(check())


def test_both_faces_work(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(FOLDER / "cert.pem"))
    data = os.urandom(3_000_000)

    async def check() -> None:
        async with AsyncSandbox(api_url=url, api_key=KEY) as box:
            await box.files.write_bytes("f", data)
            assert await box.files.read_bytes("f") == data
            assert (await box.exec(["cat"], stdin=data)).stdout_raw == data

    with Sandbox(api_url=url, api_key=KEY) as box:
        box.files.write_bytes("f", data)
        assert box.files.read_bytes("f") == data
        assert box.exec(["cat"], stdin=data).stdout_raw == data
    asyncio.run(check())
