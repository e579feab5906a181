"""Where Python 2.7 can't be had, its script tells a mirror without that release from a mirror that can't be reached."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/python27.sh"
NOT_SERVED = 3


@pytest.fixture
def empty_mirror() -> Iterator[int]:
    """Everything asked of it is 404. Its port."""

    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def made_with(sources: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script where these are the host's apt sources."""
    (folder / "sources.list").write_text(sources)
    (folder / "apt.conf").write_text(
        f'Dir::Etc::SourceList "{folder}/sources.list"; Dir::Etc::SourceParts "/dev/null"; Acquire::Retries "0";'
        f'Dir::State::Lists "{folder}/lists";'
    )
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf"), "BELLGLASS_CACHE": str(folder / "cache")}
    return subprocess.run(
        [SCRIPT, folder / "made"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def own_release() -> str:
    told = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return told["VERSION_CODENAME"].strip('"')


def test_a_mirror_without_the_release(tmp_path: Path, empty_mirror: int) -> None:
    done = made_with(f"deb http://127.0.0.1:{empty_mirror}/debian {own_release()} main\n", tmp_path)
    assert (done.returncode, "has no Debian 11" in done.stderr) == (NOT_SERVED, True), done.stderr


def test_a_host_without_debian(tmp_path: Path) -> None:
    done = made_with("", tmp_path)
    assert (done.returncode, "has no Debian 11" in done.stderr) == (NOT_SERVED, True), done.stderr


def test_a_mirror_that_is_down_is_a_failure(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        done = made_with(f"deb http://127.0.0.1:{closed.getsockname()[1]}/debian {own_release()} main\n", tmp_path)
    assert done.returncode == 1 and "connect" in done.stderr, done.stderr
