"""Recipes: strict reading, a digest that follows the content, and a command that is a pure function of the recipe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bellglass.errors import BellglassError, InvalidRequest, NotFound, NotSupported
from bellglass.node.image import build, recipe, template
from bellglass.node.image.recipe import Recipe

GOOD = """
name = "tiny"
version = "1"
suite = "bookworm"
variant = "minbase"
packages = ["curl", "python3-pip"]
hooks = ["hooks/10-a.sh"]
[defaults]
user = "user"
workdir = "/home/user"
[defaults.env]
LANG = "C.UTF-8"
"""


def write(folder: Path, text: str = GOOD) -> Path:
    (folder / "hooks").mkdir(parents=True, exist_ok=True)
    (folder / "hooks/10-a.sh").write_text("true\n")
    (folder / "recipe.toml").write_text(text)
    return folder


def loaded(tmp_path: Path, text: str = GOOD) -> Recipe:
    return recipe.load(write(tmp_path / "tiny", text))


def test_reads_every_key(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    assert (found.name, found.version, found.suite, found.variant) == ("tiny", "1", "bookworm", "minbase")
    assert found.packages == ("curl", "python3-pip")
    assert found.hook_paths() == (tmp_path / "tiny/hooks/10-a.sh",)
    assert (found.user, found.workdir, dict(found.env)) == ("user", "/home/user", {"LANG": "C.UTF-8"})


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('suite = "bookworm"', 'suite = "bookworm"\nsuit = "sid"', "recipe.suit"),
        ('user = "user"', 'user = "user"\nshell = "/bin/sh"', "defaults.shell"),
        ('version = "1"', "version = 1", "version"),
        ('variant = "minbase"', 'variant = "everything"', "variant"),
        ('"curl"', '"curl --force"', "packages"),
        ('"curl"', '"python3-pip"', "packages"),
        ('["hooks/10-a.sh"]', '["hooks/11-b.sh"]', "hook"),
        ('["hooks/10-a.sh"]', '["../tiny/hooks/10-a.sh"]', "hook"),
        ('["hooks/10-a.sh"]', '["/bin/true"]', "hook"),
        ('workdir = "/home/user"', 'workdir = "home/user"', "workdir"),
        ('workdir = "/home/user"', 'workdir = "/home/../etc"', "workdir"),
        ('LANG = "C.UTF-8"', "LANG = 1", "env.LANG"),
        ('LANG = "C.UTF-8"', '"A=B" = "x"', "env.A=B"),
        ('LANG = "C.UTF-8"', 'LANG = "a\\u0000b"', "env.LANG"),
        ('name = "tiny"', 'name = "other"', "name"),
        ('name = "tiny"', 'name = "../tiny"', "name"),
        ('name = "tiny"', "name = ", "recipe.toml"),
    ],
)
def test_refuses_and_names_what_is_wrong(tmp_path: Path, old: str, new: str, named: str) -> None:
    loaded(tmp_path)
    assert old in GOOD
    with pytest.raises(InvalidRequest, match=named.replace(".", r"\.")):
        loaded(tmp_path, GOOD.replace(old, new))


def test_digest_follows_content_and_nothing_else(tmp_path: Path) -> None:
    first = loaded(tmp_path).digest()
    assert len(first) == 64
    elsewhere = shutil.copytree(tmp_path / "tiny", tmp_path / "copy/tiny")
    assert recipe.load(elsewhere).digest() == first
    (elsewhere / "hooks/10-a.sh~").write_text("an editor's backup")
    assert recipe.load(elsewhere).digest() == first
    assert recipe.load(elsewhere).digest(extra_ca=b"pem") != first
    (elsewhere / "hooks/10-a.sh").write_text("false\n")
    assert recipe.load(elsewhere).digest() != first


def test_command_is_a_pure_function(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    target, sources, options = tmp_path / "root", tmp_path / "sources.list", tmp_path / "apt.conf"
    argv = build.mmdebstrap_argv(
        found, target, sources=sources, options=options, extra_ca=[tmp_path / "a b.pem", tmp_path / "c.pem"]
    )
    assert argv[0] == "mmdebstrap"
    assert "--variant=minbase" in argv and "--include=curl,python3-pip" in argv
    assert f"--aptopt={options}" in argv
    assert argv[-3:] == ["bookworm", str(target), str(sources)]
    hooks = [part for part in argv if part.startswith("--customize-hook=")]
    assert f"'{tmp_path}/a b.pem' {tmp_path}/c.pem" in hooks[0] and "update-ca-certificates" in hooks[1]
    assert hooks[-1] == f'--customize-hook=sh {tmp_path}/tiny/hooks/10-a.sh "$1"'
    bare = build.mmdebstrap_argv(found, target, sources=None, options=None)
    assert bare[-2:] == ["bookworm", str(target)]
    assert not any(part.startswith("--aptopt") for part in bare)


def test_shipped_base_recipe_is_whole() -> None:
    base = recipe.find("base")
    assert {"python3", "python3-pip", "python3-venv", "curl", "jq", "git", "procps", "sudo"} <= set(base.packages)
    assert (base.user, base.workdir) == ("user", "/home/user")
    assert base.env["LANG"] == "C.UTF-8"
    assert base.env["PATH"].split(":")[0] == "/home/user/.local/bin"


@pytest.mark.parametrize("name", ["nosuch", "../base", "", "base/hooks"])
def test_unknown_recipe_is_not_found(name: str) -> None:
    recipe.find("base")
    with pytest.raises(NotFound):
        recipe.find(name)


def test_build_answers_what_is_there_and_needs_root_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(tmp_path)
    folder = tmp_path / "templates" / template.folder_name("tiny", found.digest())
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotSupported, match="root"):
        build.build(found, tmp_path / "templates", progress=print)
    (folder / "rootfs").mkdir(parents=True)
    (folder / "template.json").write_text(
        f'{{"name": "tiny", "digest": "{found.digest()}", "version": "1", "size_bytes": 5, "files": 2,'
        ' "built_at": "2026-01-02T03:04:05Z", "env": {}, "user": "user", "workdir": "/home/user"}'
    )
    built = build.build(found, tmp_path / "templates", progress=print)
    assert (built.digest, built.rootfs) == (found.digest(), folder / "rootfs")
    assert template.installed(tmp_path / "templates") == [built]


def test_damaged_template_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "template.json").write_text('{"name": "tiny"}')
    with pytest.raises(BellglassError, match=str(tmp_path)):
        template.read(tmp_path)


def test_extra_ca_must_be_a_certificate(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    with pytest.raises(InvalidRequest, match="extra_ca"):
        build.build(found, tmp_path, progress=print, extra_ca=tmp_path / "missing.pem")
    (tmp_path / "ca.pem").write_text("not one")
    with pytest.raises(InvalidRequest, match="no PEM certificate"):
        build.build(found, tmp_path, progress=print, extra_ca=tmp_path / "ca.pem")


def test_phases_are_short() -> None:
    hook = "I: running --customize-hook in shell: sh -c 'sh /r/base/hooks/10-user.sh \"$1\"' exec /t/rootfs\n"
    assert build._phase(hook) == "hook 10-user.sh"
    assert build._phase("I: running apt-get update...\n") == "running apt-get update"
    assert build._phase("I: success in 24.1 seconds\n") is None
    assert build._phase("Selecting previously unselected package\n") is None
