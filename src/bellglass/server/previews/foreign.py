"""What another platform's clients expect of published ports, for the listener: told by the package of that platform."""

from __future__ import annotations

from typing import Protocol

from bellglass.errors import BellglassError
from bellglass.http1 import Request
from bellglass.server.previews.origins import Named
from bellglass.server.previews.pages import Parts
from bellglass.server.previews.source import Upstream


class Foreign(Protocol):
    def serves(self, named: Named) -> bool:
        """Whether requests to this port are answered by the server itself."""
        ...

    def inward(self, named: Named, request: Request) -> Request:
        """Such a request, with what tells the server the port."""
        ...

    async def connect(self) -> Upstream:
        """To the server itself."""
        ...

    def opens(self, sandbox_id: str, token: str) -> bool:
        """Whether a token opens all published ports of the sandbox."""
        ...

    def error(self, named: Named, error: BellglassError, request: Request) -> Parts | None:
        """How a refusal is said under this name; None: natively."""
        ...
