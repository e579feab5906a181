"""Other names of templates, from the operator's settings: what programs ask for that came from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from bellglass.server.cluster.base import NodeInfo


class Aliases:
    def __init__(self, template_of: Mapping[str, str]) -> None:
        self._template_of = dict(template_of)

    def resolve(self, name: str, info: NodeInfo) -> str:
        """The template's own name. One that is built goes before an alias; what is neither stays as it is."""
        if any(template.name == name for template in info.templates):
            return name
        return self._template_of.get(name, name)

    def of(self, template: str) -> list[str]:
        return sorted(alias for alias, name in self._template_of.items() if name == template)
