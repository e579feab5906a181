"""Where the build host's own apt fetches packages, so that a template comes from the operator's mirrors.

apt itself is asked (`apt-get indextargets`, `apt-config dump`), because it reads both forms of its sources and every
place an option can stand in. A host that has no source for the recipe's suite gets mmdebstrap's defaults.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

_DEADLINE_S = 60
_CARRIED = re.compile(
    r"Acquire::(?:https?::.*|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)|Dir::Etc::netrc(?:parts)?"
)
_OPTION = re.compile(r'(?P<key>[\w:.\-/]+) "(?P<value>[^"]*)";')
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


def host_sources(suite: str) -> tuple[str, ...]:
    """One-line apt sources of the host for that suite, its updates and its security; empty when it has none."""
    # With release information a line such as `stable` is known by its code name; without, a host whose lists
    # were never fetched still tells what its files say.
    for options in ((), ("--no-release-info",)):
        found = parse_index_targets(_ask(["apt-get", "indextargets", *options, "Created-By: Packages"]), suite)
        if found:
            return found
    return ()


def parse_index_targets(text: str, suite: str) -> tuple[str, ...]:
    """Sources among `apt-get indextargets` paragraphs that are Debian's own for that suite, each once."""
    wanted = {suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates"}
    lines: dict[str, None] = {}
    for paragraph in text.split("\n\n"):
        target = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
        if target.get("Target-Of") != "deb" or target.get("Component") != "main":
            continue
        if target.get("Origin", "Debian") != "Debian":
            continue
        if not wanted & {target.get("Codename"), target.get("Release")}:
            continue
        lines[f"deb {target['Repo-URI']} {target['Release']} main"] = None
    return tuple(lines)


def host_options() -> tuple[str, ...]:
    """apt.conf lines for the host's proxy, certificates, credentials and clock exceptions."""
    return tuple(parse_options(_ask(["apt-config", "dump"])))


def parse_options(dump: str) -> Iterator[str]:
    for line in dump.splitlines():
        match = _OPTION.fullmatch(line)
        if not match or not match["value"] or not _CARRIED.fullmatch(match["key"]):
            continue
        value = match["value"]
        if match["key"].startswith("Dir::Etc::") and not value.startswith("/"):
            value = f"/etc/apt/{value}"  # inside the new root the same relative name would be looked up there
        yield f'{match["key"]} "{value}";'


def without_credentials(sources: str) -> str:
    """The same sources with `user:password@` taken out of every address."""
    return _USERINFO.sub("", sources)


def _ask(argv: list[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=_DEADLINE_S,
        check=True,
    ).stdout
