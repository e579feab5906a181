"""/v1/sandboxes/{id}/files/sign and /signed: URLs of a file for those who have no key.

What is read may be anything a sandbox wrote, and comes from the API's own origin: so it is always a download, and no
browser takes it for a page.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Query, Request
from starlette.responses import Response

from bellglass.errors import Forbidden, RangeNotSatisfiable, Unauthorized
from bellglass.model import FileInfo, SignedUrl, format_time
from bellglass.server.files.bodies import SignFile
from bellglass.server.files.paths import check_path
from bellglass.server.files.routes import FILES, OCTETS, READING, WRITING, Path, User, answer_head, answer_read
from bellglass.server.files.signing import Grant, check_operation, lifetime
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer
from bellglass.server.http.bodies import check_length, read_record, send_body
from bellglass.server.http.context import context_of
from bellglass.server.sandboxes import guard
from bellglass.server.sandboxes.validate import check_user
from bellglass.server.services import principal_of, project_of, services_of

routes = Routes("files")
SIGNED = FILES + "/signed"
Expires = Annotated[int, Query(ge=0, le=2**53, description="unix seconds")]
Key = Annotated[str, Query(max_length=64, description="the id of the key that signed")]
Signature = Annotated[str, Query(max_length=128)]


@routes.action(
    "POST", FILES + "/sign", "file.sign", body=SignFile, answer=SignedUrl, errors=READING,
    example={"path": "out/report.pdf", "operation": "read", "expires_in": "15m"},
)  # fmt: skip
async def sign(request: Request, sandbox_id: str) -> Response:
    """A URL that reads or writes one file without a key, until it expires or the key that asked is revoked. The file
    need not be there yet. `target` is the URL's path and query, for those who know the server by another address."""
    services, principal = services_of(request), principal_of(request)
    body = await read_record(request, SignFile, services.settings["server.max_body"])
    check_path(body.path)
    check_user(body.user)
    find = guard.on_disk if check_operation(body.operation) == "read" else guard.running
    find(services.reader, principal.project, sandbox_id)
    expires = int(time.time() + lifetime(body.expires_in))
    grant = Grant(sandbox_id, body.operation, body.path, body.user, principal.key_id, expires)
    query = {
        "path": body.path, "user": body.user, "expires": expires, "key": principal.key_id,
        "signature": services.signing.sign(grant),
    }  # fmt: skip
    said = urlencode([pair for pair in query.items() if pair[1] is not None], quote_via=quote)
    target = f"{SIGNED.format(sandbox_id=sandbox_id)}?{said}"
    url = f"{request.url.scheme}://{request.url.netloc}{target}"
    expires_at = format_time(datetime.fromtimestamp(expires, UTC))
    return answer(SignedUrl(url=url, target=target, expires_at=expires_at))


@routes.action(
    "GET", SIGNED, "file.read_signed", access="public", answer=OCTETS, audited=True,
    errors=(*READING, RangeNotSatisfiable, Forbidden, Unauthorized),
)  # fmt: skip
async def read(
    request: Request, sandbox_id: str, path: Path, expires: Expires, key: Key, signature: Signature, user: User = None
) -> Response:
    """The bytes of a file, by a URL that was signed for reading."""
    _admit(request, Grant(sandbox_id, "read", path, user, key, expires), signature)
    return await answer_read(request, sandbox_id, path, user, headers=_download(path))


@routes.action(
    "HEAD", SIGNED, "file.head_signed", access="public", answer=OCTETS, errors=(*READING, Forbidden, Unauthorized)
)
async def head(
    request: Request, sandbox_id: str, path: Path, expires: Expires, key: Key, signature: Signature, user: User = None
) -> Response:
    """The headers that GET would have."""
    _admit(request, Grant(sandbox_id, "read", path, user, key, expires), signature)
    return await answer_head(request, sandbox_id, path, user, headers=_download(path))


@routes.action(
    "PUT", SIGNED, "file.write_signed", access="public", body=OCTETS, body_required=False, answer=FileInfo,
    errors=(*WRITING, Forbidden, Unauthorized),
)  # fmt: skip
async def write(
    request: Request, sandbox_id: str, path: Path, expires: Expires, key: Key, signature: Signature, user: User = None
) -> Response:
    """Write a file as a whole, with the folders above it, by a URL that was signed for writing: 201 new, 200
    replaced."""
    _admit(request, Grant(sandbox_id, "write", path, user, key, expires), signature)
    services = services_of(request)
    limit = services.settings["server.max_file"]
    params: dict[str, Any] = {
        "path": path, "user": user, "parents": True, "expected_bytes": check_length(request, limit),
        "max_bytes": limit,
    }  # fmt: skip
    stream = await services.files.open(
        project_of(request), sandbox_id, "file.write", params, context_of(request).request_id, body=True
    )
    result = await send_body(request, stream, principal_of(request).key, limit, whole_frames=True)
    return answer(result["info"], 201 if result.get("created") else 200)


def _admit(request: Request, grant: Grant, signature: str) -> None:
    """From here on it is a request of the key that signed."""
    services, context = services_of(request), context_of(request)
    principal = services.signing.check(grant, signature)
    context.count(principal.key, services.settings["server.max_key_requests"])
    context.principal = principal


def _download(path: str) -> dict[str, str]:
    name = path.rstrip("/").rpartition("/")[2] or "file"
    return {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "private, no-store",
        "referrer-policy": "no-referrer",
    }
