"""The templates that this node has, and the guest agent's binary for its machine."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bellglass.datadir import cache_dir
from bellglass.errors import InternalError, NotFound, NotSupported
from bellglass.model import TemplateInfo
from bellglass.node.drivers.base import Template
from bellglass.node.image.template import META, BuiltTemplate, folder_name, read

log = logging.getLogger("bellglass.templates")
AGENT_DIR = Path(__file__).resolve().parents[1] / "_agent"


def agent_binary() -> Path:
    """Raises NotSupported with `make agent` as the next step when it was not built."""
    path = AGENT_DIR / f"bellglass-agent-{platform.machine()}"
    if not path.is_file() or not os.access(path, os.X_OK):
        raise NotSupported(f"the guest agent is not built: there is no {path}", hint="run: make agent")
    return path


class Templates:
    """Read from the disk on each look: a template that was built a moment ago is there."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        named = settings["node.templates_dir"]
        self.folder = Path(named) if named else cache_dir() / "templates"

    def installed(self) -> list[BuiltTemplate]:
        """The newest first. One that is damaged is left out, and told in the log."""
        read_all = [_read(meta.parent) for meta in sorted(self.folder.glob(f"[!.]*/{META}"))]
        found = [template for template in read_all if template is not None]
        return sorted(found, key=lambda template: template.built_at, reverse=True)

    def find(self, name: str, digest: str) -> BuiltTemplate:
        """Raises NotFound."""
        if {"/", "\0"}.isdisjoint(name + digest):
            template = _read(self.folder / folder_name(name, digest))
            if template is not None and (template.name, template.digest) == (name, digest):
                return template
        raise NotFound(
            f"this node has no template {name!r} with digest {digest[:16]!r}",
            hint="build it with: make template",
            details={"field": "template"},
        )


def _read(folder: Path) -> BuiltTemplate | None:
    try:
        return read(folder)
    except FileNotFoundError:
        return None
    except (OSError, InternalError) as error:
        log.error("template left out: %s", error)
        return None


def for_driver(template: BuiltTemplate) -> Template:
    return Template(template.name, template.digest, template.folder)


def shell_of(template: BuiltTemplate) -> str:
    """What runs a command given as one string: bash where the template has it."""
    return "/bin/bash" if os.path.lexists(template.rootfs / "bin/bash") else "/bin/sh"


def info(template: BuiltTemplate) -> TemplateInfo:
    return TemplateInfo(
        name=template.name,
        digest=template.digest,
        env=dict(template.env),
        user=template.user,
        workdir=template.workdir,
        size_bytes=template.size_bytes,
        built_at=template.built_at,
    )
