"""Root prepares folders that belong to the daemons' users: what one of them planted there leads root nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bellglass.datadir import DataDir
from bellglass.errors import SandboxFailed
from bellglass.supervise.install import Identity, _folder, _secrets, read_link_secret

SELF = Identity(os.getuid(), os.getgid())


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    for folder in (data.root, data.server_dir, data.node_dir):
        _folder(folder, 0o700, SELF)
    _secrets(data, SELF, SELF)
    return data


def test_the_secret_stays_as_it_is(data: DataDir) -> None:
    first = read_link_secret(data)
    assert first is not None
    _secrets(data, SELF, SELF)
    assert data.server_secret_file.read_text() == data.node_secret_file.read_text() == f"{first}\n"


def test_a_link_in_the_secrets_place_is_not_read(data: DataDir) -> None:
    data.node_secret_file.unlink()
    data.node_secret_file.symlink_to(data.admin_key_file)
    assert read_link_secret(data) is None
    _secrets(data, SELF, SELF)
    assert not data.node_secret_file.is_symlink()
    secret = read_link_secret(data)
    assert secret is not None and len(secret) == 64 and secret not in data.admin_key_file.read_text()


@pytest.mark.parametrize("kind", ["fifo", "text"])
def test_nothing_but_a_secret_is_taken_for_one(data: DataDir, kind: str) -> None:
    data.node_secret_file.unlink()
    if kind == "fifo":
        os.mkfifo(data.node_secret_file)  # opening it must not wait for a writer
    else:
        data.node_secret_file.write_text("root:$y$j9T$" + "a" * 80)
    assert read_link_secret(data) is None


def test_a_link_in_a_folders_place_is_left_alone(data: DataDir, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o755)
    data.executions_dir.symlink_to(foreign)
    with pytest.raises(SandboxFailed, match="executions"):
        _folder(data.executions_dir, 0o700, SELF)
    assert foreign.stat().st_mode & 0o777 == 0o755
