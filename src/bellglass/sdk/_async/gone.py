"""Why bytes out of a sandbox stopped: HTTP has no place for an error behind an answer's head, so it is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from bellglass.errors import BellglassError, ConnectionFailed, NotFound, SandboxGone
from bellglass.sdk._async.transport import AsyncResponse, AsyncTransport
from bellglass.sdk._http import target


async def body_of(response: AsyncResponse, transport: AsyncTransport, files_path: str) -> AsyncIterator[bytes]:
    """The body in pieces. Raises SandboxGone where it ended early because its sandbox did, else ConnectionFailed."""
    try:
        async with aclosing(response.__aiter__()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk
    except ConnectionFailed as error:
        if (gone := await _why(transport, files_path)) is not None:
            raise gone from error
        raise


async def _why(transport: AsyncTransport, files_path: str) -> SandboxGone | None:
    try:
        # Of the sandbox itself and not of its record: that one hears of an end a little later.
        await transport.request("GET", target(f"{files_path}/stat", {"path": "/"}), idempotent=True)
    except SandboxGone as gone:
        return gone
    except NotFound as error:
        found = meanwhile(error)
        return found if isinstance(found, SandboxGone) else None
    except BellglassError:
        return None
    return None


def meanwhile(error: NotFound) -> NotFound | SandboxGone:
    """What to raise for a sandbox in which something was going on: it was there then. What its owner deletes is unknown
    from then on, its time too. `error` itself where it is another thing that is not there."""
    if error.details.get("kind") != "sandbox":
        return error
    return SandboxGone(
        "the sandbox was deleted meanwhile", hint="create a new one", details={"reason": "user", "ended_at": None}
    )
