"""A server that plays the API on this machine: sandboxes are scratch folders, executions are real processes in them.

It isolates nothing. It exists to misbehave on order: `cuts` breaks the next output streams after so many bytes,
`refuse` answers the next requests with an error, `drop_answers` does the work and then hangs up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bellglass import errors
from bellglass.model import now
from tests.unit.fake_api.fake_executions import Executions
from tests.unit.fake_api.fake_files import Files
from tests.unit.fake_api.fake_sandboxes import Sandboxes
from tests.unit.fake_api.fake_state import State

KEY = "bg_" + "k" * 40


class FakeApi(State):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._executions = Executions(self)
        self._app = Starlette(
            routes=[
                *Sandboxes(self).routes,
                *self._executions.routes,
                *Files(self).routes,
                Route("/v1/keys", self.keys, methods=["GET", "POST"]),
                Route("/v1/keys/{id}", self.keys, methods=["DELETE"]),
                Route("/v1/templates", self.templates),
            ],
            exception_handlers={errors.BellglassError: self._refusal},  # type: ignore[dict-item]
        )

    async def end(self) -> None:
        """The processes of its executions."""
        await self._executions.end()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self.requests.append((scope["method"], scope["path"]))
        headers = dict(scope["headers"])
        error: errors.BellglassError | None = None
        if headers.get(b"authorization") not in (f"Bearer {KEY}".encode(), b"Bearer admin"):
            error = errors.Unauthorized("this key is not known")
        elif self.refuse:
            error = self.refuse.pop(0)
        if error is not None:
            answer = JSONResponse(error.to_dict(), error.status, headers={"x-request-id": "rqtest"})
            await answer(scope, receive, send)
            return
        if self.drop_answers:
            self.drop_answers -= 1

            async def swallow(message: Any) -> None:
                pass

            await self._app(scope, receive, swallow)
            self.hang_up()
            return
        await self._app(scope, receive, send)

    async def _refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.BellglassError)
        return JSONResponse(error.to_dict(), error.status)

    async def keys(self, request: Request) -> Response:
        key = {
            "id": "ky" + "a" * 16,
            "project_id": "pj" + "a" * 16,
            "project_name": "one",
            "label": None,
            "created_at": now(),
            "last_used_at": None,
            "revoked_at": None,
            "secret": None,
        }
        if request.method == "DELETE":
            return Response(status_code=204)
        if request.method == "GET":
            return JSONResponse({"items": [key], "cursor": None})
        if request.headers["authorization"] != "Bearer admin":
            raise errors.Forbidden("that needs the admin key")
        body = await request.json()
        return JSONResponse({**key, "project_name": body["project"], "secret": KEY}, 201)

    async def templates(self, request: Request) -> Response:
        template = {
            "name": "base",
            "digest": "0" * 64,
            "env": {},
            "user": "user",
            "workdir": "/home/user",
            "size_bytes": 300 << 20,
            "built_at": now(),
        }
        return JSONResponse({"items": [template]})
