"""The node as a process: ready line, clean stop, a restart that finds its sandbox, and why it can't start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import INSTALLATION, SECRET, Box, make_template

from bellglass.datadir import DataDir
from bellglass.link import LinkClient


@pytest.fixture
def data(tmp_path_factory) -> DataDir:
    root = tmp_path_factory.mktemp("n")
    data = DataDir(root)
    data.node_dir.mkdir(mode=0o700)
    data.installation_file.write_text(json.dumps({"id": INSTALLATION}))
    data.node_secret_file.write_text(SECRET + "\n")
    make_template(root / "templates")
    data.settings_file.write_text(f'[node]\ndriver = "fake"\ntemplates_dir = "{root}/templates"\n')
    return data


def start(data: DataDir, **environment: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "bellglass.node", "--data-dir", str(data.root)]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}, cwd="/"
    )


def ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"ready": True}


def stop(process: subprocess.Popen[bytes]) -> str:
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0, log.decode()
    for line in log.decode().splitlines():
        json.loads(line)
    return log.decode()


class Bench:
    def __init__(self, data: DataDir, link: LinkClient) -> None:
        self.data, self.link = data, link


def test_stop_and_start_with_a_running_sandbox(run, data: DataDir) -> None:
    async def connect() -> LinkClient:
        return await LinkClient.connect(data.node_socket, secret=SECRET, installation=INSTALLATION)

    sandbox = {"sandbox_id": "sb" + "a" * 20, "generation": 1}
    work = str(data.root / "work")
    spec = {
        "template": "base", "template_digest": "0" * 64, "env": {}, "user": str(os.geteuid()), "workdir": work,
        "cpus": 1, "memory_bytes": 2**28, "disk_bytes": 2**28, "inodes": 1000, "pids": 64, "lifetime_s": 300,
        "idle_timeout_s": None, "tier": "process", "network": "deny",
    }  # fmt: skip

    async def first() -> str:
        link = await connect()
        await link.call("sandbox.create", sandbox | {"project_id": "p", "spec": spec})
        box = Box(Bench(data, link), sandbox["sandbox_id"], work)  # type: ignore[arg-type]
        started = await box.start("for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done")
        await link.close()
        return str(started["id"])

    async def second(execution_id: str) -> None:
        link = await connect()
        box = Box(Bench(data, link), sandbox["sandbox_id"], work)  # type: ignore[arg-type]
        raw = await box.body("execution.output", execution_id=execution_id, follow=True, accept="json")
        result = json.loads(raw)
        assert result["stdout"] == "1\n2\n3\n4\n5\n6\n" and result["execution"]["exit_code"] == 0
        await link.call("sandbox.delete", sandbox)
        await link.call("node.wait_reclaimed", {"timeout_s": 10})
        await link.close()

    node = start(data)
    ready(node)
    execution_id = run(first())
    assert "sandboxes go on" in stop(node)
    node = start(data)
    ready(node)
    run(second(execution_id))
    stop(node)


def test_a_wrong_secret_is_turned_away(run, data: DataDir) -> None:
    from bellglass.errors import NodeUnavailable

    node = start(data)
    ready(node)

    async def scenario() -> None:
        good = await LinkClient.connect(data.node_socket, secret=SECRET, installation=INSTALLATION)
        await good.call("sandbox.list", {})
        await good.close()
        with pytest.raises(NodeUnavailable):
            await LinkClient.connect(data.node_socket, secret="wrong", installation=INSTALLATION)

    run(scenario())
    stop(node)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda data: data.installation_file.unlink(), "bellglass up"),
        (lambda data: data.settings_file.write_text('[node]\ndriver = "docker"\n'), "docker"),
        (lambda data: data.settings_file.write_text("[node]\nspeed = 9\n"), "unknown setting"),
    ],
)
def test_it_says_why_it_cannot_start(data: DataDir, break_it, said) -> None:
    break_it(data)
    _, log = (process := start(data)).communicate(timeout=20)
    assert process.returncode == 1 and said in log.decode()


def test_without_the_agent_it_names_make_agent(monkeypatch, tmp_path: Path) -> None:
    from bellglass.errors import NotSupported
    from bellglass.node import templates

    assert templates.agent_binary().exists()
    monkeypatch.setattr(templates, "AGENT_DIR", tmp_path)
    with pytest.raises(NotSupported, match="make agent"):
        templates.agent_binary()
