"""Connections that the API serves though uvicorn's own listener has not taken them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState


class Hosted:
    """`config`: uvicorn's, of the application that answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        config.load()
        self._config = config
        self._state = ServerState()
        self._state.default_headers = config.encoded_headers

    def protocol(self) -> asyncio.Protocol:
        """For one connection."""
        make: Any = self._config.http_protocol_class
        return cast(asyncio.Protocol, make(config=self._config, server_state=self._state, app_state={}))

    async def close(self, grace_s: float) -> None:
        """What is under way may take so long to end."""
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            _, late = await asyncio.wait(self._state.tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
