"""`bellglass previews ca`: TLS for published ports without a public CA."""

from __future__ import annotations

from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.cli._installation import Folder, own

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def previews() -> None:
    pass


@app.command("ca", help="Make or renew a certificate for published ports, of a CA for this domain alone.")
def ca(
    domain: Annotated[str | None, typer.Option(help="Names are below it.", show_default="previews.domain")] = None,
    data_dir: Folder = None,
    as_json: c.JsonFlag = False,
) -> None:
    from bellglass import settings
    from bellglass.supervise import preview_ca

    data = own(data_dir)
    chosen = domain or settings.load(data.settings_file)["previews.domain"]
    made = preview_ca.make(data, chosen)
    if as_json:
        c.print_json(
            {"ca": str(made.ca), "tls_cert": str(made.cert), "tls_key": str(made.key), "domain": chosen}
            | {"expires_at": made.expires_at.isoformat(), "new_ca": made.new_ca}
        )
        return
    print(f"trust this CA where you browse: {made.ca}")
    print(f"and let {data.settings_file} say, then run `bellglass down` and `bellglass up`:")
    print(f'\n[previews]\ndomain = "{chosen}"\ntls_cert = "{made.cert}"\ntls_key = "{made.key}"')
