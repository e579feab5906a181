"""What programs inside are told of their sandbox in E2B's names: variables of what is run, and files."""

from __future__ import annotations

import asyncio

from bellglass.server.services import Services

FOLDER = "/run/e2b"


def variables(sandbox_id: str) -> dict[str, str]:
    return {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandbox_id}


async def write(services: Services, project_id: str, sandbox_id: str, request_id: str) -> None:
    """The same as files, for programs whose environment is not inherited. Raises as a write of a file does."""

    async def one(name: str, value: str) -> None:
        params = {
            "path": f"{FOLDER}/.{name}", "user": "root", "in_place": True, "truncate": True, "offset": 0,
            "parents": True, "expected_bytes": len(value), "max_bytes": len(value),
        }  # fmt: skip
        stream = await services.files.open(project_id, sandbox_id, "file.write", params, request_id, body=True)
        async with stream:
            await stream.send(value.encode())
            await stream.end()
            await stream.head()

    await asyncio.gather(*(one(name, value) for name, value in variables(sandbox_id).items()))
