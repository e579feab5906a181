"""Whose page it was that had a browser send a request: a cookie counts for the port's own pages, not for a sibling's.

Pages of sandboxes below one registrable domain are the same site to a browser, which sends their cookies along whoever
asks. Origin says who, where a browser sends it: with all that writes, with WebSockets, with what can be read across
origins. For the rest there are Sec-Fetch-Site and Referer, which a page can leave out but not forge; a redirect by a
third site makes the first say `cross-site`.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from bellglass.http1 import Request
from bellglass.server.previews.origins import Named, Origins

SandboxOf = Callable[[Named], str | None]
"""Whose sandbox serves there, None where nothing is published."""


def may_show_cookie(request: Request, sandbox_id: str, origins: Origins, sandbox_of: SandboxOf) -> bool:
    """Whether the cookie of a port of this sandbox counts in this request."""

    def is_friend(url: bytes) -> bool:
        """No page of another sandbox: one of its own, or of a site outside."""
        try:
            host = urlsplit(url.decode("latin-1")).hostname
        except ValueError:
            return False
        if host is None:
            return False
        host = host.rstrip(".")
        named = origins.parse(host)
        if named is not None and (named.address is None or sandbox_of(named) is not None):
            return sandbox_of(named) == sandbox_id
        return not host.endswith("." + origins.domain)

    site, mode, dest, referer = (
        request.get(name) for name in (b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"referer")
    )
    said = [value for name, value in request.headers if name.lower() == b"origin"]
    if said:
        if said == [b"null"]:  # of a sandboxed frame, or the form of a page that sends no Referer
            return site in (b"same-origin", b"none")
        return len(said) == 1 and is_friend(said[0])
    if site is None:  # a program, or a browser of before 2023
        return referer is None or is_friend(referer)
    if site in (b"same-origin", b"none"):
        return True
    if mode == b"navigate" and dest == b"document":
        return request.method in (b"GET", b"HEAD")  # a link was followed: the page that has it sees nothing of this
    if referer is not None:
        return is_friend(referer)
    return mode == b"navigate" and dest in (b"iframe", b"frame") and site == b"cross-site"
