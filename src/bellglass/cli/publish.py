"""`bellglass publish`, `ports` and `unpublish`: URLs of a sandbox's ports."""

from __future__ import annotations

from typing import Annotated

import typer

from bellglass.cli import _common as c
from bellglass.sdk._face import Sandbox

Id = Annotated[str, typer.Argument(metavar="ID", help="The sandbox.")]
Port = Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="What the program inside listens on.")]


def command(
    id: Id,
    port: Port,
    public: Annotated[bool, typer.Option("--public", help="Let in who has the URL; else a link with a token.")] = False,
    expires_in: Annotated[str | None, typer.Option(help='How long it is published, such as "2h".')] = None,
    token_expires_in: Annotated[str, typer.Option(help="How long the printed link is good.")] = "1h",
    single_use: Annotated[bool, typer.Option("--single-use", help="The printed link works once.")] = False,
    host_header: Annotated[str | None, typer.Option(help="What the program gets as Host.")] = None,
    frame_ancestor: Annotated[
        list[str] | None, typer.Option(help='Site that may show it in a frame, such as "https://app.example.com".')
    ] = None,
    http2: Annotated[bool, typer.Option("--http2", help="The program speaks HTTP/2, as gRPC servers do.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="The program speaks TLS alone, with any certificate.")] = False,
    own_address: Annotated[
        bool, typer.Option("--own-address", help="A loopback address, where names below localhost don't resolve.")
    ] = False,
    as_json: c.JsonFlag = False,
) -> None:
    box = Sandbox.connect(id)
    try:
        published = box.publish(
            port,
            visibility="public" if public else "private",
            expires_in=expires_in,
            host_header=host_header,
            frame_ancestors=frame_ancestor or None,
            http2=http2,
            tls=tls,
            own_address=own_address,
        )
        token = None if public else published.token(expires_in=token_expires_in, single_use=single_use)
    finally:
        box.close()
    if as_json:
        c.print_json(published.info.to_json() | {"token": token.to_json() if token else None})
    else:
        print(token.url if token is not None else published.url)


def unpublish(id: Id, port: Port, as_json: c.JsonFlag = False) -> None:
    box = Sandbox.connect(id)
    try:
        for published in box.ports():
            if published.port == port:
                published.unpublish()
    finally:
        box.close()
    if as_json:
        c.print_json({"sandbox_id": id, "port": port, "unpublished": True})


def ports(id: Id, as_json: c.JsonFlag = False) -> None:
    box = Sandbox.connect(id)
    try:
        found = box.ports()
    finally:
        box.close()
    if as_json:
        for published in found:
            c.print_json(published.info)
        return
    rows = [
        (p.port, p.visibility, p.url, c.age(p.info.expires_at) if p.info.expires_at else None, p.info.host_header)
        for p in found
    ]
    c.print_table(["port", "visibility", "url", "left", "host"], rows)
