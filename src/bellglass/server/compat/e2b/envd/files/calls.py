"""/files: who may, and which way the bytes go."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from bellglass.server.compat.e2b.actions import services_of
from bellglass.server.compat.e2b.envd import errors
from bellglass.server.compat.e2b.envd.call import Call
from bellglass.server.compat.e2b.envd.files import access
from bellglass.server.compat.e2b.envd.files.download import download
from bellglass.server.compat.e2b.envd.files.upload import Upload
from bellglass.server.compat.e2b.routing import Destination, admit

OPERATIONS = {"GET": "read", "POST": "write"}


async def answer(request: Request, target: Destination) -> Response:
    """Raises BellglassError."""
    operation = OPERATIONS.get(request.method)
    if operation is None:
        message = f"{request.method} is not allowed here"
        return errors.json_answer({"code": 405, "message": message}, 405, {"allow": ", ".join(OPERATIONS)})
    services = services_of(request)
    access.check(request, services.e2b, target.sandbox_id)
    admit(request, target)
    user = access.one(request, "username") or None
    call = Call(request, services, target, user, None)
    key = target.principal.key
    return await download(call, key) if operation == "read" else await Upload(call, key).run()
