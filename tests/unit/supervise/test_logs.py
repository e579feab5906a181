"""Logs are cut at their size while a daemon goes on writing to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bellglass.supervise import logs


def test_a_log_is_cut_under_its_writer(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(writer, b"first\n" * 100)
    assert logs.rotate(tmp_path, 600) == [], "it has its size, and no more"
    os.write(writer, b"more\n")
    assert logs.rotate(tmp_path, 600) == ["server.log"]
    os.write(writer, b"later\n")
    os.close(writer)
    assert log.read_bytes() == b"later\n"
    older = tmp_path / "server.log.1"
    assert older.read_bytes() == b"first\n" * 100 + b"more\n"
    log.write_bytes(b"x" * 1000)
    logs.rotate(tmp_path, 600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.log", "server.log.1"], "one older part"


def test_without_room_for_a_copy_it_is_cut_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "node.log").write_bytes(b"x" * 1000)
    (tmp_path / "node.log.1").mkdir()  # so that the copy fails
    with pytest.raises(IsADirectoryError):
        (tmp_path / "node.log.1").open("w")
    assert logs.rotate(tmp_path, 600) == ["node.log"]
    assert (tmp_path / "node.log").read_bytes() == b""
