"""Tokens of a sandbox: one for its envd, one for its other ports. Nothing is stored: each is an HMAC over the sandbox's
id and the purpose, so that it lives as long as its sandbox, outlives restarts, and opens nothing of another."""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum

_DOMAIN = b"bellglass e2b token\0"


class Purpose(StrEnum):
    ENVD = "envd"
    TRAFFIC = "traffic"


class Tokens:
    def __init__(self, server_secret: str) -> None:
        self._key = hmac.digest(server_secret.encode(), _DOMAIN, hashlib.sha256)

    def envd(self, sandbox_id: str) -> str:
        """What `envdAccessToken` of an answer holds."""
        return self._make(sandbox_id, Purpose.ENVD)

    def traffic(self, sandbox_id: str) -> str:
        """What `trafficAccessToken` of an answer holds."""
        return self._make(sandbox_id, Purpose.TRAFFIC)

    def opens_envd(self, sandbox_id: str, given: str | None) -> bool:
        return _same(self.envd(sandbox_id), given)

    def opens_ports(self, sandbox_id: str, given: str | None) -> bool:
        return _same(self.traffic(sandbox_id), given)

    def _make(self, sandbox_id: str, purpose: Purpose) -> str:
        # The SDKs take it as it is; 256 bits in hex go through every header and URL.
        return hmac.new(self._key, f"{purpose}\0{sandbox_id}".encode(), hashlib.sha256).hexdigest()


def _same(expected: str, given: str | None) -> bool:
    return given is not None and hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogateescape"))
