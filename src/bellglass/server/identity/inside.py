"""The API as sandboxes reach it: the same routes, behind a check of the node's credential in place of a key's."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.datastructures import Headers

from bellglass.errors import Unauthorized
from bellglass.server.http.context import KEY, Context, Receive, Scope, Send
from bellglass.server.http.errors import error_response


class Inside:
    """Lies between a Gateway and the application. Nothing is routed before it is known who calls."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        context: Context = scope[KEY]
        try:
            context.principal = self._app.state.services.callers.principal(Headers(scope=scope))
        except Unauthorized as error:
            context.error_code = error.code
            await error_response(error, context.request_id)(scope, receive, send)
            return
        await self._app(scope, receive, send)
