"""What `up`, `down` and `status` say when they can't: the cause of this start, and a command that works as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bellglass.datadir import DataDir, default_data_dir
from bellglass.errors import Conflict, InvalidRequest, NotSupported
from bellglass.supervise import launch, up
from bellglass.supervise.control import Lock
from bellglass.supervise.install import read_installation_id


def test_without_root_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    data = DataDir(tmp_path / "data")
    with pytest.raises(NotSupported) as refused:
        up.start(data, listen=None, port=None, say=lambda step, seconds: None)
    assert refused.value.hint is not None and f"up --data-dir {data.root}" in refused.value.hint
    assert not data.root.exists()


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
