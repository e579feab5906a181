"""Any recipe into a template; one that is layered after its base."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bellglass.builder import installation, layer, trust
from bellglass.errors import NotSupported
from bellglass.node.image import build as image
from bellglass.node.image import recipe, template
from bellglass.node.image.build import Progress
from bellglass.node.image.progress import BuildProgress
from bellglass.node.image.recipe import Layered, Recipe
from bellglass.node.image.template import BuiltTemplate


def build(
    found: Recipe | Layered,
    templates_dir: Path,
    *,
    progress: Progress,
    extra_ca: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> BuiltTemplate:
    """The template of that recipe, built unless it is there already.

    `settings`: those of the operator's installation by their dotted names, for what a layered recipe reaches through
    its presets. Raises what `node.image.build.build` does, and InternalError with the last lines of a step that failed.
    """
    if isinstance(found, Recipe):
        return image.build(found, templates_dir, progress=progress, extra_ca=extra_ca)
    if os.geteuid() != 0:
        raise NotSupported(
            "building a template needs root", hint=f"run as root: bellglass templates build {found.name}"
        )
    base = image.build(recipe.base_of(found), templates_dir, progress=progress, extra_ca=extra_ca)
    digest = found.digest(base.digest)
    final = templates_dir / template.folder_name(found.name, digest)
    if (final / template.META).exists():
        return template.read(final)
    given = {**(settings or {}), "node.templates_dir": str(templates_dir.absolute())}
    if extra_ca is not None:
        given["node.extra_ca"] = str(extra_ca.absolute())

    def make(rootfs: Path) -> None:
        opened = trust.exceptions(found.presets, given)
        progress(f"starting a sandbox of {base.name}")
        with installation.running(templates_dir, given | {"egress.exceptions": opened}) as api:
            layer.make(found, base, api, rootfs, progress=progress)

    # What the base's defaults add for the operator's CA holds here too.
    added = {name: value for name, value in base.env.items() if name in image.CA_ENV}
    return image.place(found, digest, templates_dir, make, progress=progress, env=added)


def build_shown(
    name: str, templates_dir: Path, *, extra_ca: Path | None = None, settings: Mapping[str, Any] | None = None
) -> BuiltTemplate:
    """The same by a shipped recipe's name, with its phases on standard output: a bar where that is a terminal."""
    with BuildProgress(name) as bar:
        progress = bar.show if sys.stdout.isatty() else _print
        return build(recipe.find(name), templates_dir, progress=progress, extra_ca=extra_ca, settings=settings)


def _print(line: str) -> None:
    print(f"  {line}", flush=True)
