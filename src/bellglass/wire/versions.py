"""Which protocol two peers speak: each HELLO says the newest and the oldest version that its side knows.

A side that says only one version knows no other. The newest that both know is spoken; where there is none, the peers
can't work together, and the error names what each of them knows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bellglass.errors import VersionMismatch


class Versions(NamedTuple):
    """Protocol versions from `oldest` to `newest`, both included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


def told(newest: Any, oldest: Any = None) -> Versions | None:
    """What a HELLO says, or None if these are no versions."""
    oldest = newest if oldest is None else oldest
    if type(newest) is not int or type(oldest) is not int or not 0 < oldest <= newest:
        return None
    return Versions(oldest, newest)


def agree(ours: Versions, theirs: Versions, peer: str, *, hint: str) -> int:
    """The version to speak. `peer` and `hint` are for people. Raises VersionMismatch."""
    spoken = min(ours.newest, theirs.newest)
    if spoken < max(ours.oldest, theirs.oldest):
        raise VersionMismatch(
            f"{peer} speaks protocol {theirs}, this side speaks {ours}",
            hint=hint,
            details={"ours": list(ours), "theirs": list(theirs)},
        )
    return spoken
