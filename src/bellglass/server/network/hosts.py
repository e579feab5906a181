"""Names of hosts in rules: into the one form in which they are compared, or a refusal.

A wildcard must lie below a name that somebody can own: the public-suffix list says which names anybody can have names
under (`com`, `co.uk`, `github.io`).
"""

from __future__ import annotations

import functools
import ipaddress
from pathlib import Path

import idna
import publicsuffixlist

from bellglass.egress.policy import is_name
from bellglass.server.http.validation import refuse

WILDCARD = "*."


def normal_host(text: str, field: str) -> str:
    """Lower case, ASCII (punycode), no dot at the end; `*.` stays in front. Raises InvalidRequest."""
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


@functools.cache
def _suffixes() -> publicsuffixlist.PublicSuffixList:
    """Read when the first wildcard comes: it takes some megabytes."""
    return publicsuffixlist.PublicSuffixList()


@functools.lru_cache(maxsize=1024)
def _suffix_below(name: str) -> str | None:
    """A public suffix that `*.name` would span."""
    ending = f".{name}"
    with Path(publicsuffixlist.PSLFILE).open(encoding="utf-8") as lines:
        for line in lines:
            rule = line.strip().removeprefix(WILDCARD)
            if rule.startswith(("//", "!")):
                continue
            if not rule.isascii():
                rule = publicsuffixlist.encode_idn(rule)
            if rule.endswith(ending):
                return rule
    return None
