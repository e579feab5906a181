"""Whose page sent a visitor's request: the cookie of a port is not for pages of other sandboxes."""

from __future__ import annotations

import json

import httpx2
import pytest
from preview_rig import Program, Site
from server_harness import Harness

from bellglass.http1 import Request
from bellglass.server.previews.origins import Named, Origins
from bellglass.server.previews.senders import may_show_cookie

OWN, OTHER = "sb" + "a" * 20, "sb" + "b" * 20
DOMAIN = "preview.example.net"
ORIGINS = Origins("https", DOMAIN, 443, 8443)
HERE, SIBLING = f"https://{OWN}-3000.{DOMAIN}", f"https://{OTHER}-3000.{DOMAIN}"
SAME_SANDBOX, OUTSIDE = f"https://{OWN}-8000.{DOMAIN}", "https://app.example.net"
NAVIGATE = {"sec-fetch-mode": "navigate"}
FRAME = NAVIGATE | {"sec-fetch-dest": "iframe"}
LINK = NAVIGATE | {"sec-fetch-dest": "document"}
IMAGE = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}


def counts(headers: dict[str, str], method: bytes = b"GET") -> bool:
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    addresses = {"127.9.9.1": OWN, "127.9.9.2": OTHER}

    def sandbox_of(named: Named) -> str | None:
        return addresses.get(named.address) if named.address is not None else named.sandbox_id

    return may_show_cookie(Request(method, b"/", 1, fields), OWN, ORIGINS, sandbox_of)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": HERE},
        {"origin": HERE + ":8443"},
        {"origin": SAME_SANDBOX, "sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"origin": OUTSIDE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "websocket"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
        {"origin": "http://127.9.9.1:8443"},
        {"origin": "http://127.0.0.1:3000"},
        {"referer": HERE + "/a"},
        {"referer": OUTSIDE + "/"},
        {"sec-fetch-site": "none"} | LINK,
        {"sec-fetch-site": "same-origin"} | IMAGE,
        {"sec-fetch-site": "same-site"} | LINK,
        {"sec-fetch-site": "cross-site"} | FRAME,
        {"sec-fetch-site": "cross-site", "referer": OUTSIDE + "/"} | FRAME,
        {"sec-fetch-site": "same-site", "referer": SAME_SANDBOX + "/"} | FRAME,
        {"sec-fetch-site": "same-site", "referer": OUTSIDE + "/"} | IMAGE,
    ],
)
def test_pages_of_its_own_and_sites_outside(headers: dict[str, str]) -> None:
    assert counts(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": SIBLING},
        {"origin": SIBLING.upper()},
        {"origin": SIBLING + "."},
        {"origin": f"https://{OTHER}-3000.{DOMAIN}:8443", "sec-fetch-site": "same-site"},
        {"origin": f"https://what-ever.{DOMAIN}"},
        {"origin": "null"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "https://[", "sec-fetch-site": "same-origin"},
        {"origin": "nonsense"},
        {"origin": "http://127.9.9.2:8443"},
        {"origin": HERE, "Origin": SIBLING},
        {"referer": SIBLING + "/"},
        {"sec-fetch-site": "same-site"} | IMAGE,
        {"sec-fetch-site": "same-site"} | FRAME,
        {"sec-fetch-site": "same-site", "referer": SIBLING + "/"} | FRAME,
        # By way of a redirect of a third site.
        {"sec-fetch-site": "cross-site"} | IMAGE,
        {"sec-fetch-site": "cross-site", "referer": SIBLING + "/"} | FRAME,
        {"sec-fetch-site": "cross-site"} | NAVIGATE | {"sec-fetch-dest": "object"},
        {"sec-fetch-site": "whatever"} | IMAGE,
    ],
)
def test_pages_of_siblings(headers: dict[str, str]) -> None:
    assert not counts(headers)


def test_a_followed_link_only_reads() -> None:
    followed = {"sec-fetch-site": "same-site"} | LINK
    assert counts(followed, b"HEAD") and not counts(followed, b"POST")


def test_the_program_hears_nothing_of_a_sibling(harness: Harness, api: httpx2.Client, shown: Program) -> None:
    site, sibling = (Site(harness, api, shown.port) for _ in range(2))
    token = site.token()["token"]
    cookie = (site.get(f"/?_bellglass_token={token}").header("set-cookie") or "").partition(";")[0]
    foreign = f"Origin: {sibling.record['url']}"
    shown.heads.clear()
    refused = site.get("/", f"Cookie: {cookie}", foreign)
    assert refused.status == 401 and "another origin" in json.loads(refused.body)["error"]["message"]
    assert shown.heads == []
    for headers in ([f"Cookie: {cookie}", f"Origin: {site.record['url']}"], [f"X-Bellglass-Token: {token}", foreign]):
        assert site.get("/", *headers).status == 200
    # A cookie decides nothing where nobody is asked.
    site.publish(visibility="public")
    assert site.get("/", f"Cookie: {cookie}", foreign).status == 200
