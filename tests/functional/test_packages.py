"""`pip`, `npm` and `apt` from inside, under the presets, against the index, registry and mirrors that this host uses.

What is private of those is the operator's to allow: here, whatever the host resolves their names to. The templates are
built with the CAs that the host's operator has added to its own and with one of the tests, and kept in the cache.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from bellglass import Network
from bellglass.datadir import cache_dir
from bellglass.egress.floor import Floor
from bellglass.node.image import build, recipe
from bellglass.testing.stack import Stack
from tests.functional import authorities
from tests.functional.authorities import Authority
from tests.functional.own import own_installation

pytestmark = [pytest.mark.root]
TEMPLATES = cache_dir() / "templates-packages"
OPERATORS = Path("/usr/local/share/ca-certificates")
SMALL: dict[str, Any] = {"cpus": 2, "memory": "1GiB", "disk": "2GiB", "lifetime": "15m"}
NPM = "npm@10"
HAS_NPM = shutil.which("npm") is not None
"""The newest that runs on Debian's Node."""
NPM_HOOK = """#!/bin/sh
# npm as its own archive: Debian's package of it needs four hundred others.
set -eu
folder=$1/usr/local/lib/node_modules/npm
mkdir -p "$folder"
tar -xzf "$(dirname "$0")/npm.tgz" --strip-components=1 -C "$folder"
ln -s ../lib/node_modules/npm/bin/npm-cli.js "$1/usr/local/bin/npm"
"""


class Host(NamedTuple):
    """What this host's tools are set up with."""

    urls: dict[str, list[str]]
    exceptions: list[str]


@pytest.fixture(scope="module")
def host() -> Host:
    urls = {}
    for name in ("pip", "apt", *(("npm",) if HAS_NPM else ())):
        argv = [sys.executable, "-m", "bellglass.node.net.discover", name]
        told = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        assert "urls" in told, told
        urls[name] = told["urls"]
    closed = {address for found in urls.values() for url in found for address in closed_addresses(url)}
    return Host(urls, sorted(closed))


def closed_addresses(url: str) -> list[str]:
    parts = urlsplit(url)
    found = socket.getaddrinfo(parts.hostname, parts.port, socket.AF_INET, socket.SOCK_STREAM)
    return [f"{place[0]}/32" for *_, place in found if Floor().holds(ip_address(place[0]))]


@pytest.fixture(scope="module")
def authority() -> Authority:
    """As an operator's own one, which public stores don't know."""
    return Authority.kept(cache_dir() / "authority-packages")


@pytest.fixture(scope="module")
def extra_ca(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CAs of this host's operator and ours in one file."""
    file = tmp_path_factory.mktemp("ca") / "operator.pem"
    paths = [*sorted(OPERATORS.glob("*.crt")), authority.cert]
    file.write_bytes(b"".join(path.read_bytes().rstrip() + b"\n" for path in paths))
    return file


class Sites(NamedTuple):
    """Hosts and ports: one under the operator's CA, and one under a CA that nobody knows."""

    known: str
    stranger: str


@pytest.fixture(scope="module")
def sites(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("sites")
    unknown = Authority.made(folder / "unknown")
    with authority.server("known.test", folder) as port, unknown.server("stranger.test", folder) as other:
        yield Sites(f"known.test:{port}", f"stranger.test:{other}")


@pytest.fixture(scope="module")
def installation(host: Host, extra_ca: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    hosts = tmp_path_factory.mktemp("names") / "hosts"
    hosts.write_text(Path("/etc/hosts").read_text() + f"\n{authorities.ADDRESS} known.test stranger.test\n")
    settings: dict[str, Any] = {
        "egress.exceptions": [*host.exceptions, f"{authorities.ADDRESS}/32"],
        "egress.hosts_file": str(hosts),
        "node.extra_ca": str(extra_ca),
        "node.templates_dir": str(TEMPLATES),
    }
    # `up` would build it too, but is to be waited for only so long.
    build.build(recipe.find("base"), TEMPLATES, progress=print, extra_ca=extra_ca)
    with own_installation(settings=settings) as running:
        yield running


@pytest.fixture
def run(installation: Stack, sites: Sites) -> Iterator[Any]:
    """Runs lines of shell in a sandbox with a network, one after the other; answers the output of the last."""
    made: list[Any] = []

    def call(preset: str, *lines: str, template: str = "base") -> str:
        network = Network(presets=[preset], allow=list(sites))
        box = installation.sandbox(template, network=network, **SMALL)
        made.append(box)
        for line in lines:
            done = box.exec(line, timeout=180)
            assert done.ok, f"{line}\n{done.stdout}\n{done.stderr}"
        return str(done.stdout)

    yield call
    for box in made:
        box.delete()


def by(client: str, sites: Sites) -> tuple[str, str]:
    """The client, in which SITE stands for host and port, takes the certificate of the known one alone."""
    known, stranger = (client.replace("SITE", site).replace("NAME", site.partition(":")[0]) for site in sites)
    return known, f"! {{ {stranger}; }}"


def test_pip(run: Any, host: Host, sites: Sites) -> None:
    shown = run(
        "pip",
        "pip install six",
        "python3 -c 'import six'",
        # One that brings its own certificates, and one that root runs.
        "python3 -m venv venv && venv/bin/pip install --upgrade pip requests && venv/bin/pip install six",
        "sudo pip install iniconfig",
        "venv/bin/python -c 'import os, requests; requests.get(os.environ[\"PIP_INDEX_URL\"]).close()'",
        *by("venv/bin/python -c 'import requests; requests.get(\"https://SITE/\").raise_for_status()'", sites),
        "echo $PIP_INDEX_URL",
    )
    assert shown.strip() == host.urls["pip"][0]


def test_other_clients_trust_the_operators_ca(run: Any, sites: Sites) -> None:
    run(
        "pip",
        *by("curl --silent --show-error --fail --output /dev/null https://SITE/", sites),
        *by("openssl s_client -verify_return_error -brief -connect SITE -servername NAME </dev/null", sites),
        *by("python3 -c 'import urllib.request as u; u.urlopen(\"https://SITE/\").close()'", sites),
        # There is no repository, and that it says so shows that the certificate was taken.
        *by("git ls-remote https://SITE/x.git 2>&1 | grep -i 'not found'", sites),
        # What refuses the stranger is its certificate alone.
        f"curl --silent --show-error --fail --insecure --output /dev/null https://{sites.stranger}/",
        "curl --silent --show-error --fail --output /dev/null $PIP_INDEX_URL/six/",
        "git ls-remote $PIP_INDEX_URL/six.git 2>&1 | grep -i 'not found'",
    )


def test_apt(run: Any) -> None:
    shown = run("apt", "sudo apt-get update", "sudo apt-get install --yes --no-install-recommends hello", "hello")
    assert shown == "Hello, world!\n"


@pytest.mark.skipif(not HAS_NPM, reason="this host has no npm: it says which registry, and fetches npm's own archive")
def test_npm(run: Any, host: Host, sites: Sites, extra_ca: Path, tmp_path: Path) -> None:
    node_template(tmp_path, extra_ca)
    get = 'require("https").get("https://SITE/", () => process.exit(0)).on("error", () => process.exit(1))'
    shown = run(
        "npm",
        "npm install is-number",
        "node -e 'require(\"is-number\")'",
        *by(f"node -e '{get}'", sites),
        "npm config get registry",
        template="node",
    )
    assert shown.strip() == host.urls["npm"][0]


def test_a_preset_opens_what_it_names_and_no_more(installation: Stack) -> None:
    with installation.sandbox(network=Network(presets=["pip"]), **SMALL) as box:
        fetch = "pip download --no-cache-dir --retries 0 --timeout 20 --dest new six"
        assert box.exec(fetch, timeout=180).ok
        assert not box.exec("sudo apt-get update 2>&1 | grep --quiet '^Get:'", timeout=180).ok
        box.network.set("deny")
        assert not box.exec(fetch, timeout=180).ok
        box.network.set(Network(presets=["apt"]))
        assert box.exec("sudo apt-get update 2>&1 | grep --quiet '^Get:'", timeout=180).ok
        assert not box.exec(fetch, timeout=180).ok


def node_template(folder: Path, extra_ca: Path) -> None:
    """The base template with Debian's Node and npm's own archive, unless it is in the cache."""
    made = folder / "node"
    shutil.copytree(recipe.find("base").folder, made)
    subprocess.run(["npm", "pack", NPM, "--pack-destination", made / "hooks"], check=True, capture_output=True)
    [archive] = (made / "hooks").glob("npm-*.tgz")
    archive.rename(made / "hooks" / "npm.tgz")
    (made / "hooks" / "30-npm.sh").write_text(NPM_HOOK)
    text = (made / "recipe.toml").read_text().replace('name = "base"', 'name = "node"')
    text = text.replace("packages = [", 'packages = [\n    "nodejs",').replace(
        '"hooks/90', '"hooks/30-npm.sh", "hooks/90'
    )
    (made / "recipe.toml").write_text(text)
    build.build(recipe.load(made), TEMPLATES, progress=print, extra_ca=extra_ca)
