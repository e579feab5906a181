"""Reading and setting a project's limits. They are enforced where something is added (`store.check_room`)."""

from __future__ import annotations

from sqlalchemy import Connection

from bellglass.errors import Forbidden, InvalidRequest, NotFound
from bellglass.model import ProjectLimits
from bellglass.server.auth.principal import Principal
from bellglass.server.db.reader import Reader
from bellglass.server.db.writer import Writer
from bellglass.server.http.validation import shown
from bellglass.server.limits import store

HIGHEST = 1_000_000


class Limits:
    """`default` is the setting's, for projects without a limit of their own."""

    def __init__(self, reader: Reader, writer: Writer, default: int) -> None:
        self._reader = reader
        self._writer = writer
        self._default = default

    async def get(self, principal: Principal, project: str | None) -> ProjectLimits:
        """Of the key's own project, or for the admin key of the one it names by id or name. Raises Forbidden,
        InvalidRequest, NotFound."""
        if principal.project_id is None and project is None:
            raise InvalidRequest(
                "project: the admin key has none of its own",
                hint="name one: /v1/limits?project=NAME",
                details={"field": "project"},
            )
        if principal.project_id is not None and project is not None:
            raise Forbidden(
                "only the admin key may ask for a project's limits by name",
                hint="leave `project` out: a key gets its own project's limits",
            )
        wanted = principal.project_id or project
        assert wanted is not None
        found = await self._reader.in_thread(store.find, wanted, self._default)
        if found is None:
            raise _not_found(wanted)
        return found

    async def put(self, project: str, sandboxes: int | None) -> ProjectLimits:
        """What is there already stays, also above a lower limit. Raises InvalidRequest, NotFound."""
        if sandboxes is not None and not 0 <= sandboxes <= HIGHEST:
            raise InvalidRequest(
                f"sandboxes: {sandboxes} is not a number of sandboxes",
                hint=f"0 to {HIGHEST}, or null for the setting server.max_sandboxes",
                details={"field": "sandboxes"},
            )

        def write(connection: Connection) -> ProjectLimits:
            found = store.find(connection, project, self._default)
            if found is None:
                raise _not_found(project)
            store.put(connection, found.project_id, sandboxes)
            changed = store.find(connection, found.project_id, self._default)
            assert changed is not None
            return changed

        return await self._writer.run(write)


def _not_found(project: str) -> NotFound:
    return NotFound(
        f"there is no project {shown(project)}",
        hint="GET /v1/projects lists them; `bellglass keys create --project NAME` makes one",
        details={"kind": "project"},
    )
