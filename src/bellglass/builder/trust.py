"""What the build's sandbox may reach and whom it believes: what the tools of this host do.

A host may fetch packages from an index of its own network, and believe a CA that templates know nothing of. Building
goes the same way, as it does for Debian's packages. The installation of a build has no sandbox but that of the recipe,
which is the operator's; nothing of this is in the result.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bellglass.egress.floor import Floor
from bellglass.node.net import discover

FOLDER = "/.bellglass-build"
"""In the sandbox of the build; never in the template."""
BUNDLE = f"{FOLDER}/ca.pem"
APT_CONF = f"{FOLDER}/apt.conf"
ENV = {
    "APT_CONFIG": APT_CONF,
    "CURL_CA_BUNDLE": BUNDLE,
    "NODE_EXTRA_CA_CERTS": BUNDLE,
    "PIP_CERT": BUNDLE,
    "REQUESTS_CA_BUNDLE": BUNDLE,
    "SSL_CERT_FILE": BUNDLE,
}


def bundle() -> bytes:
    """The certificates that this host believes."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file and Path(file).is_file() else b""


def apt_conf() -> str:
    return f'Acquire::https::CaInfo "{BUNDLE}";\n'


def exceptions(presets: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The operator's own, and the private addresses of the hosts that the presets open, as CIDRs."""
    found = dict.fromkeys(settings.get("egress.exceptions", ()))
    for name in presets:
        for url in settings.get(f"egress.presets_{name}") or _discovered(name):
            found |= dict.fromkeys(_private(url))
    return list(found)


def _discovered(name: str) -> Sequence[str]:
    try:
        return discover.TOOLS[name]()["urls"]
    except discover.NotConfigured:
        return ()  # the sandbox's preset says so in its own words, and a step that needs it fails with them


def _private(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    try:
        places = socket.getaddrinfo(parts.hostname, parts.port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return
    for *_, (address, *_rest) in places:
        if Floor().holds(ip_address(address)):
            yield f"{address}/32"
