"""What the node sends in the place of a sandbox's token: its word that a request comes out of that sandbox.

`<sandbox>.<generation>.<unix time of its end>.<HMAC-SHA256>`, signed with the secret that node and server share. The
server takes it on the socket of its own that only the node can reach, nowhere else, and for minutes.
"""

from __future__ import annotations

import hmac
import re
from typing import NamedTuple

from bellglass.ids import SANDBOX_ID

LIFETIME_S = 60
MAX_LIFETIME_S = 900
"""One that would last longer is refused, whoever has signed it."""
_FORM = re.compile(r"([a-z0-9]{1,64})\.([0-9]{1,12})\.([0-9]{1,12})\.([0-9a-f]{64})")


class Caller(NamedTuple):
    sandbox_id: str
    generation: int


def make(secret: str, installation: str, caller: Caller, now_unix: float) -> str:
    text = f"{caller.sandbox_id}.{caller.generation}.{int(now_unix) + LIFETIME_S}"
    return f"{text}.{_signature(secret, installation, text)}"


def read(secret: str, installation: str, credential: str, now_unix: float) -> Caller | None:
    """Who calls; None for one that is not signed with the secret, is over, or was to last too long."""
    match = _FORM.fullmatch(credential)
    if match is None or not SANDBOX_ID.fullmatch(match[1]):
        return None
    text = credential.rpartition(".")[0]
    if not hmac.compare_digest(match[4], _signature(secret, installation, text)):
        return None
    if not now_unix < int(match[3]) <= now_unix + MAX_LIFETIME_S:
        return None
    return Caller(match[1], int(match[2]))


def _signature(secret: str, installation: str, text: str) -> str:
    # The handshake of the link signs with the same secret: so what is signed here says what it is.
    message = f"bellglass sandbox identity\0{installation}\0{text}"
    return hmac.digest(secret.encode(), message.encode(), "sha256").hex()
