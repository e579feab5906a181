"""`bellglass keys create|ls|rm`: the API keys of projects, with the admin key of the installation.

The admin key is BELLGLASS_ADMIN_KEY, or in `admin.key` of the data folder: `--data-dir`, BELLGLASS_DATA_DIR, the one
that the profile names, or the usual one of this machine.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from bellglass.cli import _common as c
from bellglass.cli._installation import with_sudo
from bellglass.datadir import default_data_dir
from bellglass.errors import ClientError
from bellglass.model import ApiKey
from bellglass.sdk._config import NEXT_STEP, parse, read_profile
from bellglass.sdk._http import target
from bellglass.sdk._sync.transport import Transport

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="The installation's data folder.", readable=False)]


def admin_transport(data_dir: Path | None) -> Transport:
    """To the installation's API, with its admin key. Raises ClientError where one of them is not known."""
    profile = read_profile()
    named = data_dir or os.environ.get("BELLGLASS_DATA_DIR") or (profile.data_dir if profile else None)
    folder = Path(named) if named else default_data_dir()
    # A folder that was named says itself where its server listens.
    url = _url_of(folder) if data_dir is not None else None
    url = url or os.environ.get("BELLGLASS_API_URL") or (profile.api_url if profile else None) or _url_of(folder)
    if not url:
        raise ClientError("no Bellglass server is known", hint=NEXT_STEP)
    return Transport(parse(url, os.environ.get("BELLGLASS_ADMIN_KEY") or _key_of(folder)))


def _key_of(folder: Path) -> str:
    file = folder / "admin.key"
    try:
        return file.read_text(encoding="ascii").strip()
    except PermissionError as error:
        raise ClientError(
            f"the admin key can't be read: {file}: {error.strerror}",
            hint=f"it is for whoever ran `bellglass up`; run: {with_sudo()} (or set BELLGLASS_ADMIN_KEY)",
        ) from error
    except OSError as error:
        raise ClientError(
            f"the admin key can't be read: {file}: {error.strerror}",
            hint="name the installation's folder with --data-dir, or set BELLGLASS_ADMIN_KEY",
        ) from error


def _url_of(data_dir: Path) -> str | None:
    """The address of the installation that runs in a folder, as its supervisor wrote it down."""
    try:
        found = json.loads((data_dir / "run" / "supervisor.json").read_text()).get("api_url")
    except (OSError, ValueError, AttributeError):
        return None
    return str(found) if found else None


def make(transport: Transport, project: str, label: str | None, format: str | None) -> ApiKey:
    wanted = {"project": project, "label": label, "format": format}
    body = {name: value for name, value in wanted.items() if value is not None}
    return ApiKey.from_json(transport.request("POST", "/v1/keys", json=body).json())


@app.command("create", help="Make a key for a project; it is shown this once.")
def create(
    project: Annotated[str, typer.Option(help="The project; it is made if it is new.")],
    label: Annotated[str | None, typer.Option(help="What the key is for.")] = None,
    format: Annotated[str | None, typer.Option(help='"e2b": of the form that E2B\'s clients take.')] = None,
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    with closing(admin_transport(data_dir)) as transport:
        key = make(transport, project, label, format)
    if as_json:
        c.print_json(key)
    else:
        print(key.secret)


@app.command("ls", help="List the keys.")
def ls(
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    with closing(admin_transport(data_dir)) as transport:
        keys: list[ApiKey] = []
        cursor: str | None = None
        while True:
            query = target("/v1/keys", {"cursor": cursor})
            page = transport.request("GET", query, idempotent=True).json()
            keys += [ApiKey.from_json(item) for item in page["items"]]
            cursor = page.get("cursor")
            if not cursor:
                break
    keys = [key for key in keys if project in (None, key.project_name)]
    if as_json:
        for key in keys:
            c.print_json(key)
        return
    rows = [
        (key.id, key.project_name, key.label, c.age(key.created_at), c.age(key.last_used_at), c.age(key.revoked_at))
        for key in keys
    ]
    c.print_table(["id", "project", "label", "age", "last used", "revoked"], rows)


@app.command("rm", help="Revoke keys, at once.")
def rm(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The keys' ids.")],
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    with closing(admin_transport(data_dir)) as transport:
        for id in ids:
            transport.request("DELETE", f"/v1/keys/{quote(id, safe='')}", idempotent=True)
            if as_json:
                c.print_json({"id": id, "revoked": True})
            else:
                print(id)
