"""What E2B's API has and Bellglass has not: each is refused by name, with what to do instead.

Of a sandbox that the key's project has not, only that is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from bellglass.server.compat.e2b.actions import Routes
from bellglass.server.compat.e2b.control.sandboxes import running
from bellglass.server.compat.e2b.errors import not_supported

routes = Routes()
_BUILD = "templates are built from recipes: `make template`"
_TAGS = "a template has one build that is in use"
_VOLUMES = "move files with `files`, or bring them in at the create"
_SECRETS = "give values as envs of a sandbox or of a command"
OF_SANDBOXES = {
    ("POST", "/sandboxes/{sandbox_id}/pause"): ("pausing a sandbox", "extend its timeout"),
    ("POST", "/sandboxes/{sandbox_id}/resume"): ("resuming a sandbox", "connect to one that runs"),
    ("POST", "/sandboxes/{sandbox_id}/fork"): ("forking a sandbox", "create another one"),
    ("POST", "/sandboxes/{sandbox_id}/snapshots"): ("taking a snapshot", "copy what matters out of the sandbox"),
}
OF_PROJECTS = {
    ("GET", "/snapshots"): ("snapshots", None),
    ("POST", "/v3/templates"): ("building templates", _BUILD),
    ("POST", "/v2/templates"): ("building templates", _BUILD),
    ("POST", "/templates"): ("building templates", _BUILD),
    ("GET", "/templates"): ("listing templates", "`bellglass templates ls` lists them"),
    ("GET", "/v2/templates"): ("listing templates", "`bellglass templates ls` lists them"),
    ("GET", "/default-templates"): ("listing templates", "`bellglass templates ls` lists them"),
    ("POST", "/templates/tags"): ("tags of templates", _TAGS),
    ("DELETE", "/templates/tags"): ("tags of templates", _TAGS),
    ("GET", "/teams"): ("teams", "`bellglass keys ls` lists projects and their keys"),
    ("GET", "/volumes"): ("volumes", _VOLUMES),
    ("POST", "/volumes"): ("volumes", _VOLUMES),
    ("GET", "/volumes/{rest:path}"): ("volumes", _VOLUMES),
    ("DELETE", "/volumes/{rest:path}"): ("volumes", _VOLUMES),
    **{(method, "/volumecontent/{rest:path}"): ("volumes", _VOLUMES)
       for method in ("GET", "POST", "PUT", "PATCH", "DELETE")},
    ("GET", "/secrets"): ("secrets", _SECRETS),
    ("POST", "/secrets"): ("secrets", _SECRETS),
    **{(method, "/secrets/{rest:path}"): ("secrets", _SECRETS) for method in ("GET", "POST", "DELETE")},
}  # fmt: skip
# Names of templates may hold "/" (`namespace/name`), so these come last.
OF_TEMPLATES = {
    ("GET", "/templates/{rest:path}"): ("reading a template's builds, tags and files", _BUILD),
    ("POST", "/templates/{rest:path}"): ("building templates", _BUILD),
    ("POST", "/v2/templates/{rest:path}"): ("building templates", _BUILD),
    ("PATCH", "/templates/{rest:path}"): ("changing templates", _BUILD),
    ("PATCH", "/v2/templates/{rest:path}"): ("changing templates", _BUILD),
    ("DELETE", "/templates/{rest:path}"): ("deleting templates and snapshots", "delete its folder on the node"),
}


def _refusal(what: str, hint: str | None, *, of_sandbox: bool) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        if of_sandbox:
            running(request)
        raise not_supported(what, hint)

    return refuse


for table in (OF_SANDBOXES, OF_PROJECTS, OF_TEMPLATES):
    for (method, path), (what, hint) in table.items():
        # The content of volumes is asked for with their own tokens, of which there are none.
        needs_key = not path.startswith("/volumecontent/")
        refuse = _refusal(what, hint, of_sandbox=table is OF_SANDBOXES)
        routes.action(method, path, "e2b.refused", needs_key=needs_key)(refuse)
