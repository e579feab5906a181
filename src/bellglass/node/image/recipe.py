"""A recipe: the text from which a template's root file system is built, and the digest that names the result.

A recipe is a folder with `recipe.toml` and the scripts it lists as hooks. Unknown keys are refused, because a
misspelt key that is ignored builds a template that nobody asked for. Two builds of one digest start from the same
recipe but from the package versions of their day; `built_at` in the template tells them apart.

There are two kinds: `Recipe` is made from Debian's packages, `Layered` by steps in a sandbox of another template.
"""

from __future__ import annotations

import hashlib
import platform
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from bellglass.errors import InvalidRequest, NotFound

BUILDER_VERSION = 2
"""Part of every digest: raise it when build.py makes something else of the same recipe."""
LAYERS_VERSION = 1
"""The same of what is made in sandboxes."""
PRESETS = ("pip", "npm", "apt")

VARIANTS = frozenset({"minbase", "apt", "essential", "required", "important", "standard"})
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~-]{0,39}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What every recipe says of its template, and where it was read."""

    name: str
    version: str
    user: str
    workdir: str
    env: Mapping[str, str]
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Defaults):
    """A root file system of Debian's packages; `hooks` are paths inside the folder, run in their order."""

    suite: str
    variant: str
    packages: tuple[str, ...]
    hooks: tuple[str, ...]

    def hook_paths(self) -> tuple[Path, ...]:
        return tuple(self.folder / hook for hook in self.hooks)

    def digest(self, *, extra_ca: bytes = b"") -> str:
        """sha256 in hex over the builder's version, the machine, the operator's CA and the recipe's files.

        Only files that the recipe names count, so an editor's backup beside them changes nothing.
        """
        start = (str(BUILDER_VERSION).encode(), platform.machine().encode(), extra_ca)
        return _digest(start, self.folder, ("recipe.toml", *self.hooks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered(Defaults):
    """What `steps`, scripts run as root in their order in a sandbox of the template `base`, make of it. `files` are
    further files of the folder that they find beside them; `presets` are what the sandbox may reach."""

    base: str
    presets: tuple[str, ...]
    steps: tuple[str, ...]
    files: tuple[str, ...]

    def digest(self, base_digest: str) -> str:
        """As of a `Recipe`, with the digest of the base in the place of what that already counts."""
        start = (str(LAYERS_VERSION).encode(), base_digest.encode())
        return _digest(start, self.folder, ("recipe.toml", *self.steps, *self.files))


def _digest(start: Iterable[bytes], folder: Path, files: Iterable[str]) -> str:
    total = hashlib.sha256()
    for part in start:
        total.update(len(part).to_bytes(8, "big") + part)
    for relative in files:
        for part in (relative.encode(), (folder / relative).read_bytes()):
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


def find(name: str, *, recipes: Path | None = None) -> Recipe | Layered:
    """The shipped recipe of that name. Raises NotFound (unknown name), InvalidRequest (a wrong recipe)."""
    folder = (recipes or recipes_dir()) / name
    if not _NAME.fullmatch(name) or not (folder / "recipe.toml").is_file():
        raise NotFound(f"no recipe named {name!r} in {folder.parent}")
    return load_any(folder)


def base_of(layered: Layered) -> Recipe:
    """What it stands on, beside it. Raises NotFound; InvalidRequest when that is layered itself."""
    found = find(layered.base, recipes=layered.folder.parent)
    if isinstance(found, Layered):
        raise InvalidRequest(f"recipe {layered.name}: its base {found.name} has a base itself, which is not supported")
    return found


def suites(*, recipes: Path | None = None) -> tuple[str, ...]:
    """What the shipped recipes are made of, each suite once."""
    folder = recipes or recipes_dir()
    found = [load_any(path.parent) for path in folder.glob("*/recipe.toml")]
    return tuple(sorted({recipe.suite for recipe in found if isinstance(recipe, Recipe)}))


def load_any(folder: Path) -> Recipe | Layered:
    """Reads and checks `folder/recipe.toml`: with a key `base` it is layered. Raises InvalidRequest naming the key and
    the value."""
    data = _read(folder)
    return _layered(folder, data) if "base" in data else _bootstrapped(folder, data)


def load(folder: Path) -> Recipe:
    """The same of one that is not layered."""
    return _bootstrapped(folder, _read(folder))


def _read(folder: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"{folder / 'recipe.toml'}: {error}") from error


def _bootstrapped(folder: Path, data: Mapping[str, Any]) -> Recipe:
    _only(data, {"name", "version", "suite", "variant", "packages", "hooks", "defaults"}, "recipe")
    return Recipe(
        **_defaults(folder, data),
        suite=_matching(data, "suite", _NAME),
        variant=_matching(data, "variant", re.compile("|".join(sorted(VARIANTS)))),
        packages=_strings(data, "packages", _PACKAGE),
        hooks=_files(folder, data, "hooks"),
    )


def _layered(folder: Path, data: Mapping[str, Any]) -> Layered:
    _only(data, {"name", "version", "base", "presets", "steps", "files", "defaults"}, "recipe")
    return Layered(
        **_defaults(folder, data),
        base=_matching(data, "base", _NAME),
        presets=_strings(data, "presets", re.compile("|".join(PRESETS))),
        steps=_files(folder, data, "steps"),
        files=_files(folder, data, "files"),
    )


def _defaults(folder: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    defaults = _table(data, "defaults")
    _only(defaults, {"user", "workdir", "env"}, "defaults")
    name = _matching(data, "name", _NAME)
    if name != folder.name:
        raise InvalidRequest(f"recipe name {name!r} is not its folder's name {folder.name!r}")
    return {
        "name": name,
        "version": _matching(data, "version", _VERSION),
        "user": _matching(defaults, "user", _USER),
        "workdir": _absolute(defaults, "workdir"),
        "env": _environment(_table(defaults, "env")),
        "folder": folder.resolve(),
    }


def _files(folder: Path, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = _strings(data, key, re.compile(r"[\w.-]+(/[\w.-]+)*"))
    for name in found:
        if ".." in PurePosixPath(name).parts or not (folder / name).is_file():
            raise InvalidRequest(f"{key}: {name!r} is not a file of {folder}", details={"field": key})
    return found


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
