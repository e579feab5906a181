"""`python -m bellglass.server` as a process: ready line, a stop, its memory, and what its log may not hold."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_harness import ADMIN, error_of, make_data_dir

IDLE_PSS_MIB = 80


class Daemon:
    def __init__(self, root: Path, *arguments: str) -> None:
        self.log = root.parent / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bellglass.server", "--data-dir", str(root), *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    make_data_dir(tmp_path / "data")
    daemon = Daemon(tmp_path / "data", "--port", "0")
    yield daemon
    if daemon.process.poll() is None:
        daemon.stop()


def test_ready_serve_stop(daemon: Daemon) -> None:
    ready: dict[str, Any] = json.loads(daemon.ready)
    assert ready["ready"] is True
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", ready["api_url"])
    with httpx2.Client(base_url=ready["api_url"]) as client:
        assert client.get("/v1/health").json()["node"] == "down"
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 2, "a connection that is kept alive holds it up"


def test_idle_memory(daemon: Daemon) -> None:
    daemon_maps = Path(f"/proc/{daemon.process.pid}/smaps_rollup").read_text()
    pss_kib = int(re.search(r"^Pss:\s+(\d+)", daemon_maps, re.MULTILINE)[1])  # type: ignore[index]
    assert pss_kib < IDLE_PSS_MIB * 1024


def test_nothing_secret_is_logged(daemon: Daemon) -> None:
    canary = "canary-0b5e"
    url = json.loads(daemon.ready)["api_url"]
    headers = {"authorization": f"Bearer {ADMIN}"}
    with httpx2.Client(base_url=url, headers=headers) as client:
        secret = client.post("/v1/keys", json={"project": "p", "label": canary}).json()["secret"]
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {secret}"}) as client:
        for body in ({"env": {"T": canary}}, {"env": {"T": canary, "=": "x"}}, {canary: canary}):
            assert client.post("/v1/sandboxes", json=body).status_code in (422, 503)
        url = "/v1/sandboxes/sb" + "a" * 20
        error_of(client.post(url + "/executions", json={"command": ["echo", canary]}), 404)
        error_of(client.get(url + "/files", params={"path": canary}), 404)
        error_of(client.get(f"/v1/{canary}"), 404)
        error_of(client.get("/v1/me", headers={"authorization": f"Bearer {canary}"}), 401)
    assert daemon.stop() == 0
    log = daemon.log.read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["action"] for line in lines if line["event"] == "request"].count("exec.create") == 1
    for hidden in (secret, ADMIN, secret.removeprefix("bg_")):
        assert hidden not in log
    # A path that no route has is the caller's own choice of words; all else is not.
    assert [line for line in lines if canary in json.dumps(line) and line.get("path") != f"/v1/{canary}"] == []


def test_what_is_wrong_at_start_is_told(daemon: Daemon, tmp_path: Path) -> None:
    port = json.loads(daemon.ready)["api_url"].rpartition(":")[2]
    make_data_dir(tmp_path / "b" / "data")
    second = Daemon(tmp_path / "b" / "data", "--port", port)
    assert second.process.wait(10) == 1
    assert f"port {port}: Address already in use" in second.log.read_text()
    second.process.stdout.close()  # type: ignore[union-attr]
    (tmp_path / "b" / "data" / "bellglass.toml").write_text('[server]\nporrt = "x"\n')
    third = Daemon(tmp_path / "b" / "data")
    assert third.process.wait(10) == 1
    assert "unknown setting 'server.porrt'" in third.log.read_text()
    third.process.stdout.close()  # type: ignore[union-attr]
