"""What a sandbox may reach, while it runs."""

from __future__ import annotations

from bellglass.model import NetworkPolicy, SandboxNetwork
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._http import sandbox_path
from bellglass.sdk._network import Network, network_body


class AsyncBoxNetwork:
    """`box.network.set("deny")` closes all of it, `Network(presets=["pip"], allow=["api.example.com:443"])` opens just
    that, `Network(mode="open", deny=["203.0.114.0/24"])` all but that."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._path = sandbox_path(sandbox_id) + "/network"

    async def get(self) -> SandboxNetwork:
        """What was set, and in `resolved` the rules that are in force, those of its presets among them (None once it
        has ended). Raises NotFound."""
        answer = await self._transport.request("GET", self._path, idempotent=True)
        return SandboxNetwork.from_json(answer.json())

    async def set(self, network: str | Network | NetworkPolicy) -> SandboxNetwork:
        """Replace it; returns once it is in force: open connections that it refuses are closed by then. Raises
        InvalidRequest (naming the rule), NotFound, SandboxGone, NodeUnavailable (it is stored, and comes into force
        when the node is back)."""
        body = {"network": network_body(network)}
        answer = await self._transport.request("PUT", self._path, json=body, idempotent=True)
        return SandboxNetwork.from_json(answer.json())
