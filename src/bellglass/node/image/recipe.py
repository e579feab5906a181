"""A recipe: the text from which a template's root file system is built, and the digest that names the result.

A recipe is a folder with `recipe.toml` and the scripts it lists as hooks. Unknown keys are refused, because a
misspelt key that is ignored builds a template that nobody asked for. Two builds of one digest start from the same
recipe but from the package versions of their day; `built_at` in the template tells them apart.

    python -m bellglass.node.image.recipe build base --templates-dir DIR

prints one line per phase and does nothing when the template is there already.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from bellglass.errors import BellglassError, InvalidRequest, NotFound

BUILDER_VERSION = 2
"""Part of every digest: raise it when build.py makes something else of the same recipe."""

VARIANTS = frozenset({"minbase", "apt", "essential", "required", "important", "standard"})
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~-]{0,39}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe as read from its folder; `hooks` are paths inside the folder, run in their order."""

    name: str
    version: str
    suite: str
    variant: str
    packages: tuple[str, ...]
    hooks: tuple[str, ...]
    user: str
    workdir: str
    env: Mapping[str, str]
    folder: Path

    def hook_paths(self) -> tuple[Path, ...]:
        return tuple(self.folder / hook for hook in self.hooks)

    def digest(self, *, extra_ca: bytes = b"") -> str:
        """sha256 in hex over the builder's version, the machine, the operator's CA and the recipe's files.

        Only files that the recipe names count, so an editor's backup beside them changes nothing.
        """
        total = hashlib.sha256()
        for part in (str(BUILDER_VERSION).encode(), platform.machine().encode(), extra_ca):
            total.update(len(part).to_bytes(8, "big") + part)
        for relative in ("recipe.toml", *self.hooks):
            data = (self.folder / relative).read_bytes()
            for part in (relative.encode(), data):
                total.update(len(part).to_bytes(8, "big") + part)
        return total.hexdigest()


def recipes_dir() -> Path:
    """The folder of the shipped recipes: inside an installed package, or `templates/` of a checkout.

    Raises NotFound when there is neither.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_recipes", package.parents[1] / "templates"):
        if folder.is_dir():
            return folder
    raise NotFound("no template recipes are installed", hint="reinstall with: pip install 'bellglass[server]'")


def find(name: str, *, recipes: Path | None = None) -> Recipe:
    """The shipped recipe of that name. Raises NotFound (unknown name), InvalidRequest (a wrong recipe)."""
    folder = (recipes or recipes_dir()) / name
    if not _NAME.fullmatch(name) or not (folder / "recipe.toml").is_file():
        raise NotFound(f"no recipe named {name!r} in {folder.parent}")
    return load(folder)


def suites(*, recipes: Path | None = None) -> tuple[str, ...]:
    """What the shipped recipes are made of, each suite once."""
    folder = recipes or recipes_dir()
    return tuple(sorted({load(path.parent).suite for path in folder.glob("*/recipe.toml")}))


def load(folder: Path) -> Recipe:
    """Reads and checks `folder/recipe.toml`. Raises InvalidRequest naming the key and the value."""
    try:
        data = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"{folder / 'recipe.toml'}: {error}") from error
    fields = {"name", "version", "suite", "variant", "packages", "hooks", "defaults"}
    _only(data, fields, "recipe")
    defaults = _table(data, "defaults")
    _only(defaults, {"user", "workdir", "env"}, "defaults")
    recipe = Recipe(
        name=_matching(data, "name", _NAME),
        version=_matching(data, "version", _VERSION),
        suite=_matching(data, "suite", _NAME),
        variant=_matching(data, "variant", re.compile("|".join(sorted(VARIANTS)))),
        packages=_strings(data, "packages", _PACKAGE),
        hooks=_strings(data, "hooks", re.compile(r"[\w.-]+(/[\w.-]+)*")),
        user=_matching(defaults, "user", _USER),
        workdir=_absolute(defaults, "workdir"),
        env=_environment(_table(defaults, "env")),
        folder=folder.resolve(),
    )
    if recipe.name != folder.name:
        raise InvalidRequest(f"recipe name {recipe.name!r} is not its folder's name {folder.name!r}")
    for hook, path in zip(recipe.hooks, recipe.hook_paths(), strict=True):
        if ".." in PurePosixPath(hook).parts or not path.is_file():
            raise InvalidRequest(f"hook {hook!r} is not a file of {folder}", details={"field": "hooks"})
    return recipe


def _refuse(key: str, value: object, expected: str) -> InvalidRequest:
    return InvalidRequest(f"recipe: {key} is {value!r}, expected {expected}", details={"field": key})


def _only(data: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise _refuse(f"{where}.{key}", data[key], f"one of the keys {', '.join(sorted(known))}")


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise _refuse(key, value, "a table")
    return value


def _matching(data: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _refuse(key, value, f"text like {pattern.pattern}")
    return value


def _strings(data: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    value = data.get(key)
    if not isinstance(value, list) or len(set(map(str, value))) != len(value):
        raise _refuse(key, value, "a list without repeats")
    for item in value:
        if not isinstance(item, str) or not pattern.fullmatch(item):
            raise _refuse(key, item, f"text like {pattern.pattern}")
    return tuple(value)


def _absolute(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.startswith("/") or ".." in PurePosixPath(value).parts:
        raise _refuse(key, value, "an absolute path")
    return value


def _environment(data: Mapping[str, Any]) -> Mapping[str, str]:
    for key, value in data.items():
        if not _ENV_KEY.fullmatch(key) or not isinstance(value, str) or "\0" in value:
            raise _refuse(f"env.{key}", value, "text without NUL under a plain variable name")
    return MappingProxyType(dict(data))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bellglass.node.image.recipe", description="Builds templates.")
    commands = parser.add_subparsers(dest="command", required=True)
    build_command = commands.add_parser("build", help="build a template unless it is there already")
    build_command.add_argument("name")
    build_command.add_argument("--templates-dir", type=Path, required=True)
    build_command.add_argument("--extra-ca", type=Path, help="a PEM file that sandboxes trust as well")
    options = parser.parse_args(argv)

    # Imported here: build.py needs this module's types.
    from bellglass.node.image.build import build
    from bellglass.node.image.progress import BuildProgress

    try:
        with BuildProgress(options.name) as bar:
            progress = bar.show if sys.stdout.isatty() else _print
            template = build(find(options.name), options.templates_dir, extra_ca=options.extra_ca, progress=progress)
    except BellglassError as error:
        print(f"template {options.name}: {error}", file=sys.stderr)
        return 1
    print(f"template {template.name}: {template.folder}", flush=True)
    return 0


def _print(line: str) -> None:
    print(f"  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
