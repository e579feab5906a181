"""A built template on disk: `<templates_dir>/<name>-<first 16 of digest>/` with `rootfs/` and `template.json`.

The folder appears by one rename, so a folder with a `template.json` is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bellglass.errors import InternalError

META = "template.json"


@dataclass(frozen=True, slots=True)
class BuiltTemplate:
    """`size_bytes`: disk space, `files`: entries, both of `rootfs`; `built_at`: RFC 3339 in UTC."""

    name: str
    digest: str
    version: str
    size_bytes: int
    files: int
    built_at: str
    env: Mapping[str, str]
    user: str
    workdir: str
    folder: Path

    @property
    def rootfs(self) -> Path:
        return self.folder / "rootfs"

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "folder"}


def folder_name(name: str, digest: str) -> str:
    return f"{name}-{digest[:16]}"


def read(folder: Path) -> BuiltTemplate:
    """Raises FileNotFoundError when nothing is built there, InternalError when it can't be read."""
    text = (folder / META).read_text("utf-8")
    try:
        data = json.loads(text)
        fields = {key: data[key] for key in BuiltTemplate.__dataclass_fields__ if key != "folder"}
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(
            f"{folder / META} is damaged: {error!r}", hint=f"remove {folder} and build the template again"
        ) from error
    return BuiltTemplate(**fields, folder=folder)


def installed(templates_dir: Path) -> list[BuiltTemplate]:
    """Every whole template, the newest first."""
    found = [read(meta.parent) for meta in templates_dir.glob(f"[!.]*/{META}")]
    return sorted(found, key=lambda template: template.built_at, reverse=True)
