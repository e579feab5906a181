"""A service manager that waits is told that the API answers."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import pytest

from bellglass.supervise import service


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_is_one_datagram(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"bellglass-test-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        service.ready("http://127.0.0.1:7300")
        assert manager.recv(4096) == b"READY=1\nSTATUS=up at http://127.0.0.1:7300\n"


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    service.ready("http://127.0.0.1:7300")
