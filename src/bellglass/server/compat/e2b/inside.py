"""What programs inside are told of their sandbox in E2B's names: variables of what is run, and files."""

from __future__ import annotations

import asyncio

from bellglass.model import Sandbox
from bellglass.server.services import Services

FOLDER = "/run/e2b"


def variables(sandbox_id: str, template: str, project_id: str) -> dict[str, str]:
    """The template as the API names it; a team of E2B's is a project here."""
    return {
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": sandbox_id,
        "E2B_TEMPLATE_ID": template,
        "E2B_TEAM_ID": project_id,
    }


async def write(services: Services, sandbox: Sandbox, project_id: str, request_id: str) -> None:
    """The same as files, for programs whose environment is not inherited. Raises as a write of a file does."""

    async def one(name: str, value: str) -> None:
        params = {
            "path": f"{FOLDER}/.{name}", "user": "root", "in_place": True, "truncate": True, "offset": 0,
            "parents": True, "expected_bytes": len(value), "max_bytes": len(value),
        }  # fmt: skip
        stream = await services.files.open(project_id, sandbox.id, "file.write", params, request_id, body=True)
        async with stream:
            await stream.send(value.encode())
            await stream.end()
            await stream.head()

    found = variables(sandbox.id, sandbox.template, project_id)
    await asyncio.gather(*(one(name, value) for name, value in found.items()))
