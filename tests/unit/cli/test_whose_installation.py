"""Commands for an installation of somebody else say whose it is, and the line that works."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from bellglass.cli import _installation, keys, main
from bellglass.errors import ClientError, Forbidden

ANOTHER = 4_000_000_000


@pytest.fixture
def ordinary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody without an installation of his own, whose profile names another one."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"api_url": "http://127.0.0.1:1", "api_key": "bg_x", "data_dir": str(folder)}))
    monkeypatch.setenv("BELLGLASS_PROFILE", str(profile))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    monkeypatch.setattr(sys, "argv", ["bellglass", "down", "--sandboxes"])
    return folder


def test_ones_own_folder_is_taken(tmp_path: Path) -> None:
    assert _installation.own(tmp_path).root == tmp_path


def test_somebody_elses_is_refused_with_the_command(ordinary: Path) -> None:
    with pytest.raises(Forbidden, match=f"{ordinary} is an installation of .*, and you are uid {ANOTHER}") as refused:
        _installation.own(None)
    assert (refused.value.hint or "").endswith(f"bellglass down --sandboxes --data-dir {ordinary}")
    assert (refused.value.hint or "").startswith("run: sudo ")


def test_what_only_looks_looks_there_too(ordinary: Path, tmp_path: Path) -> None:
    assert _installation.meant(None) == ordinary
    assert _installation.meant(tmp_path) == tmp_path


def test_a_folder_that_was_named_is_not_named_twice(ordinary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bellglass", "down", "--data-dir", str(ordinary)])
    with pytest.raises(Forbidden) as refused:
        _installation.own(ordinary)
    assert (refused.value.hint or "").count("--data-dir") == 1


def test_the_usual_folder_comes_before_that_of_the_profile(
    ordinary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", os.getuid)
    monkeypatch.setattr(_installation, "default_data_dir", lambda: tmp_path / "none")
    if os.getuid():
        assert _installation.own(None).root == ordinary
    (tmp_path / "none").mkdir()
    assert _installation.own(None).root == tmp_path / "none"


def test_a_data_folder_that_cannot_be_listed_is_no_bad_option(
    ordinary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--data-dir", str(ordinary)]) == 1
    printed = capsys.readouterr().err
    assert "is an installation of" in printed and "run: sudo " in printed


def test_an_admin_key_for_others_says_who_may_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "admin.key").write_text("bgadmin_x\n")
    assert keys._key_of(tmp_path) == "bgadmin_x"

    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(sys, "argv", ["bellglass", "keys", "ls"])
    with pytest.raises(ClientError) as refused:
        keys._key_of(tmp_path)
    assert "run: sudo " in (refused.value.hint or "") and "bellglass keys ls" in (refused.value.hint or "")
