"""What `up`, `down` and `status` say when they can't: the cause of this start, and a command that works as it is."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from bellglass import settings as settings_module
from bellglass.datadir import DataDir, default_data_dir
from bellglass.errors import Conflict, InvalidRequest, NotSupported, SandboxFailed
from bellglass.supervise import launch, up
from bellglass.supervise.control import Lock
from bellglass.supervise.install import Identity, Installation, read_installation_id
from bellglass.supervise.supervisor import Supervisor


def test_without_root_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    data = DataDir(tmp_path / "data")
    with pytest.raises(NotSupported) as refused:
        up.start(data, listen=None, port=None, say=lambda step, seconds: None)
    assert refused.value.hint is not None and f"up --data-dir {data.root}" in refused.value.hint
    assert not data.root.exists()


def test_without_the_servers_packages_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(up, "find_spec", lambda name: None if name == "uvloop" else find_spec(name))
    data = DataDir(tmp_path / "data")
    with pytest.raises(SandboxFailed, match="not installed: uvloop"):
        up.start(data, listen=None, port=None, say=lambda step, seconds: None)
    assert not data.root.exists()


def test_a_node_that_does_not_start_leaves_no_lxcfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def fail(supervisor: Supervisor) -> None:
        raise SandboxFailed("the node did not start")

    monkeypatch.setattr(Supervisor, "_start_lxcfs", lambda supervisor: calls.append("lxcfs"))
    monkeypatch.setattr(Supervisor, "_start_node", fail)
    monkeypatch.setattr(Supervisor, "stop", lambda supervisor: calls.append("stop"))
    data = DataDir(tmp_path)
    installation = Installation("i", data, *[Identity(1, 1)] * 4)
    settings = settings_module.load(None)
    supervisor = Supervisor(installation, settings, None, None, lambda step, seconds: None, Lock(data))
    with pytest.raises(SandboxFailed):
        supervisor.start_node_alone()
    assert calls == ["lxcfs", "stop"]


def test_hints_name_the_data_folder_unless_it_is_the_usual_one(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with pytest.raises(InvalidRequest) as none:
        read_installation_id(data)
    assert none.value.hint == f"`bellglass up --data-dir {tmp_path}` makes one"
    held = Lock(data)
    held.take()
    with pytest.raises(Conflict) as taken:
        Lock(data).take()
    held.release()
    assert f"bellglass down --data-dir {tmp_path}`" in str(taken.value.hint)
    assert DataDir(default_data_dir()).option == ""


def test_a_failed_start_shows_its_own_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert launch._size(log) == 0
    log.write_text("yesterday's error\n")
    begun = launch._size(log)
    with log.open("a") as file:
        file.write("today's error\n")
    assert launch._did_not_start("the server", log, begun).message == "the server did not start:\n  today's error"
