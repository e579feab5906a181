"""Who a request comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class KeyState:
    """The live side of a key, shared by all requests that use it: revoking it ends their streams at once."""

    key_id: str
    digest: str
    revoked: bool = False
    used: bool = False
    requests: int = 0
    """Under way."""
    cuts: set[Callable[[], None]] = field(default_factory=set)
    """Called at revocation; a streaming answer adds itself for as long as it runs."""

    def revoke(self) -> None:
        self.revoked = True
        for cut in list(self.cuts):
            cut()


@dataclass(frozen=True, slots=True)
class Principal:
    """`project_id` and `project_name` are None for the admin key. `sandbox_id`: it is a sandbox that calls, whose id
    stands for a key's."""

    key_id: str
    project_id: str | None
    project_name: str | None
    key: KeyState
    sandbox_id: str | None = None

    @property
    def project(self) -> str:
        """The project's id, for routes that only project keys reach."""
        assert self.project_id is not None
        return self.project_id
