"""Whose profile `bellglass up` writes."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from bellglass.supervise import profile
from bellglass.supervise.install import Identity
from bellglass.supervise.profile import Profile

FOUND = Profile("http://127.0.0.1:7300", "bg_x", "/var/lib/bellglass")


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root's and ada's; the files are to be those of whoever runs the test."""
    for name in ("BELLGLASS_PROFILE", "XDG_CONFIG_HOME", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    people = {"root": (0, tmp_path / "root"), "ada": (1000, tmp_path / "ada")}
    entries = {n: SimpleNamespace(pw_uid=u, pw_gid=u, pw_dir=str(home)) for n, (u, home) in people.items()}
    monkeypatch.setattr(pwd, "getpwnam", entries.__getitem__)
    monkeypatch.setattr(pwd, "getpwuid", {entry.pw_uid: entry for entry in entries.values()}.__getitem__)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "root")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "getgid", lambda: 0)
    return tmp_path


def test_without_sudo_it_is_the_callers(homes: Path) -> None:
    assert profile.profile_files() == [(homes / "root/.config/bellglass/profile.json", Identity(0, 0))]


def test_under_sudo_it_is_that_of_who_called_and_of_the_shell_of_root(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    assert profile.profile_files() == [
        (homes / "ada/.config/bellglass/profile.json", Identity(1000, 1000)),
        (homes / "root/.config/bellglass/profile.json", Identity(0, 0)),
    ]


def test_sudo_by_root_and_a_user_that_is_gone(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("root", "nobody-any-more"):
        monkeypatch.setenv("SUDO_USER", name)
        assert [file for file, _ in profile.profile_files()] == [homes / "root/.config/bellglass/profile.json"]


def test_both_are_written_for_their_owners_alone(tmp_path: Path) -> None:
    mine = Identity(os.getuid(), os.getgid())
    files = [(tmp_path / name / ".config/bellglass/profile.json", mine) for name in ("ada", "root")]
    profile.publish(FOUND, files)
    for file, _ in files:
        assert '"api_key": "bg_x"' in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
