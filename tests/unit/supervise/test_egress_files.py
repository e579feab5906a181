"""What the supervisor prepares for proxy and resolver: copies of two of the host's files, and their configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bellglass import settings as settings_module
from bellglass.datadir import DataDir
from bellglass.supervise import egress, launch
from bellglass.supervise.install import Identity, Installation


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    data = DataDir(tmp_path / "data")
    (data.egress_dir / "etc").mkdir(parents=True)
    (tmp_path / "hosts").write_text("192.0.2.1 one.test\n")
    (tmp_path / "resolv.conf").write_text("nameserver 192.0.2.53\n")
    monkeypatch.setattr(egress, "RESOLV_CONF", tmp_path / "resolv.conf")
    return data


def settings(tmp_path: Path, **more: object) -> settings_module.Settings:
    values = {"egress.hosts_file": str(tmp_path / "hosts")} | {f"egress.{key}": value for key, value in more.items()}
    return settings_module.load(None, {}, values)


def test_copies_follow_the_hosts_files(data: DataDir, tmp_path: Path) -> None:
    hosts, resolv_conf = data.egress_dir / "etc/hosts", data.egress_dir / "etc/resolv.conf"
    assert egress.copy_host_files(data, settings(tmp_path)) == ["hosts", "resolv.conf"]
    assert hosts.read_text() == "192.0.2.1 one.test\n" and resolv_conf.read_text() == "nameserver 192.0.2.53\n"
    assert hosts.stat().st_mode & 0o777 == 0o644
    before = hosts.stat()
    assert egress.copy_host_files(data, settings(tmp_path)) == []
    assert hosts.stat().st_ino == before.st_ino, "left alone: the proxy reads it anew when it has changed"
    (tmp_path / "new").write_text("192.0.2.2 two.test\n")
    (tmp_path / "new").rename(tmp_path / "hosts")
    assert egress.copy_host_files(data, settings(tmp_path)) == ["hosts"]
    assert hosts.read_text() == "192.0.2.2 two.test\n" and hosts.stat().st_ino != before.st_ino
    (tmp_path / "resolv.conf").unlink()
    assert egress.copy_host_files(data, settings(tmp_path)) == ["resolv.conf"] and resolv_conf.read_text() == ""
    assert {path.name for path in (data.egress_dir / "etc").iterdir()} == {"hosts", "resolv.conf"}


def test_a_copy_that_was_cut_off_by_a_crash_is_made_anew(data: DataDir, tmp_path: Path) -> None:
    (data.egress_dir / "etc/.hosts").write_text("half")
    assert "hosts" in egress.copy_host_files(data, settings(tmp_path))
    assert (data.egress_dir / "etc/hosts").read_text() == "192.0.2.1 one.test\n"


def test_each_daemon_is_told_what_it_needs_and_no_more(data: DataDir, tmp_path: Path) -> None:
    installation = Installation("i", data, *[Identity(number, number + 100) for number in range(1, 5)])
    found = settings(tmp_path, exceptions=["10.1.0.0/16"], upstream_dns=["192.0.2.53"], max_connections=7)
    proxy = egress.configuration(installation, found, "proxy")
    assert proxy == {
        "uid": 3,
        "gid": 103,
        "node_uid": 2,
        "exceptions": ["10.1.0.0/16"],
        "upstream_dns": ["192.0.2.53"],
        "max_connections": 7,
    }
    resolver = egress.configuration(installation, found, "resolver")
    assert resolver == {"uid": 4, "gid": 104, "node_uid": 2, "proxy_uid": 3}
    argv = launch.egress_argv(installation, "proxy", proxy)
    assert argv[2:4] == ["-m", "bellglass.egress.proxy"] and json.loads(argv[-1]) == proxy
    assert "the secret" not in " ".join(argv), "every user of the host reads it in ps"
    assert os.fspath(data.root) == argv[argv.index("--data-dir") + 1], "by which daemons of a dead supervisor are found"
