"""`bellglass compat e2b`: what programs written for another platform need to be told."""

from __future__ import annotations

import ipaddress
import shlex
from typing import Annotated
from urllib.parse import urlsplit

import typer

from bellglass.cli import _common as c
from bellglass.cli.keys import DataDir, admin_transport, make
from bellglass.sdk._config import resolve
from bellglass.sdk._sync.transport import Transport

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def compat() -> None:
    pass


@app.command("e2b", help="Print the variables that make E2B's SDKs use this installation.")
def e2b(
    project: Annotated[
        str | None, typer.Option(help="Make a key for this project; without it the key in use is told.")
    ] = None,
    data_dir: DataDir = None,
    as_json: c.JsonFlag = False,
) -> None:
    if project is not None:
        transport = admin_transport(data_dir)
        key = None
    else:
        config = resolve()
        transport, key = Transport(config), config.api_key
    try:
        if key is None:
            key = make(transport, str(project), "e2b", "e2b").secret or ""
        told = transport.request("GET", "/v1/compat/e2b", idempotent=True).json()
        variables = variables_for(transport.api_url, key, str(told["path"]), str(told["domain"]))
    finally:
        transport.close()
    if as_json:
        c.print_json(variables)
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    if is_loopback(urlsplit(transport.api_url).hostname or ""):
        print('export NO_PROXY="${NO_PROXY:+$NO_PROXY,}127.0.0.1,localhost"')


def variables_for(api_url: str, key: str, path: str, domain: str) -> dict[str, str]:
    """`path` and `domain` are the server's word. All that would lead to E2B's own hosts is set."""
    found = {
        "E2B_API_URL": api_url + path,
        "E2B_SANDBOX_URL": api_url,
        "E2B_VOLUME_API_URL": api_url + path,
        "E2B_DOMAIN": domain,
        "E2B_API_KEY": key,
    }
    if not key.startswith("e2b_"):
        found["E2B_VALIDATE_API_KEY"] = "false"  # else older clients refuse it
    return found


def is_loopback(host: str) -> bool:
    """Such clients ask a proxy even for these."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
