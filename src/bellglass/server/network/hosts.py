"""Names of hosts in rules: into the one form in which they are compared, or a refusal.

A wildcard must lie below a name that somebody can own: the public-suffix list says which names anybody can have names
under (`com`, `co.uk`, `github.io`).
"""

from __future__ import annotations

import bisect
import functools
import ipaddress
from pathlib import Path

import publicsuffixlist

from bellglass.egress.policy import is_name
from bellglass.server.http.validation import refuse

WILDCARD = "*."
MAX_TEXT = 512
"""Before a name is made ASCII, which costs time by its length."""


def normal_host(text: str, field: str) -> str:
    """Lower case, ASCII (punycode), no dot at the end; `*.` stays in front. Raises InvalidRequest."""
    if len(text) > MAX_TEXT:
        raise refuse(field, text, "is not the name of a host: it is too long")
    wildcard = text.startswith(WILDCARD)
    name = text.removeprefix(WILDCARD).removesuffix(".")
    if "*" in name:
        raise refuse(field, text, "has a wildcard that is not its first label", 'such as "*.example.com"')
    if _is_address(name):
        raise refuse(field, text, "is an address, not a name", f'give it as `cidr`: "{name.strip("[]")}"')
    name = _ascii(name, text, field)
    if not is_name(name):
        raise refuse(field, text, "is not the name of a host", 'such as "api.example.com" or "*.example.com"')
    if wildcard:
        _check_wildcard(name, text, field)
    return (WILDCARD if wildcard else "") + name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _ascii(name: str, text: str, field: str) -> str:
    if name.isascii():
        return name.lower()
    import idna  # two megabytes, for those who name such hosts

    try:
        return idna.encode(name, uts46=True).decode().lower()
    except idna.IDNAError as error:
        raise refuse(field, text, f"is not the name of a host: {error}") from None


def _check_wildcard(name: str, text: str, field: str) -> None:
    if _suffixes().is_public(name):
        raise refuse(
            field,
            text,
            f"is too wide: anybody can have a name under {name!r}",
            f'name the owner too, such as "*.example.{name}"',
        )
    if (below := _suffix_below(name)) is not None:
        raise refuse(
            field, text, f"is too wide: anybody can have a name under {below!r}", "name the hosts, or a longer suffix"
        )


def load() -> None:
    """Read the list, which the first wildcard would wait for: it takes a tenth of a second, and some megabytes."""
    _suffixes()
    _from_the_top()


@functools.cache
def _suffixes() -> publicsuffixlist.PublicSuffixList:
    return publicsuffixlist.PublicSuffixList()


def _suffix_below(name: str) -> str | None:
    """A public suffix that `*.name` would span."""
    start = _reversed(name) + "."
    known = _from_the_top()
    place = bisect.bisect_left(known, start)
    return _reversed(known[place]) if place < len(known) and known[place].startswith(start) else None


@functools.cache
def _from_the_top() -> list[str]:
    """The rules of the list as `uk.co`, sorted: what lies below a name stands behind it."""
    rules = []
    with Path(publicsuffixlist.PSLFILE).open(encoding="utf-8") as lines:
        for line in lines:
            rule = line.strip().removeprefix(WILDCARD)
            if rule and not rule.startswith(("//", "!")):
                rules.append(_reversed(rule if rule.isascii() else publicsuffixlist.encode_idn(rule)))
    return sorted(rules)


def _reversed(name: str) -> str:
    return ".".join(reversed(name.split(".")))
