"""What the node's own package tools are set up with: the index of pip, the registry of npm, the mirrors of apt.

The tools themselves are asked, since each knows all the places that its settings can stand in, and its own default.
An index may link to files on another host, so its page of one package is read too.

A program of its own, so that the node carries neither TLS nor HTTP in its memory for a question asked once:
`python -m bellglass.node.net.discover pip` prints {"urls": [...], ...} or {"problem": "..."}.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from html.parser import HTMLParser

from bellglass.node.image import apt_sources, recipe

ASK_S = 30.0
FETCH_S = 10.0
MAX_PAGE_BYTES = 8 * 2**20
# Packages that every full index or registry has: those of the tools themselves.
PIP_PAGE, NPM_PAGE = "pip/", "npm/latest"
_PIP_DEFAULT = re.compile(r"--index-url <url>.*?\(default\s+(\S+?)\)", re.DOTALL)


class NotConfigured(Exception):
    """In words for the one who named the preset."""


Urls = dict[str, Sequence[str]]
"""`urls`: first the one that a tool is pointed at, then what else it needs. `extra_indexes`: further indexes of pip."""


def pip() -> Urls:
    """The index, and URLs of the hosts that its files are on; the same of further indexes, which need not have the page
    that is read. Raises NotConfigured."""
    index = os.environ.get("PIP_INDEX_URL") or _pip_default()
    _check(index, "the index of pip")
    hosts = _pip_elsewhere(index)
    extra = [url for url in _pip_extra() if url.startswith(("http://", "https://"))]
    for url in extra:
        try:
            hosts += _pip_elsewhere(url)
        except NotConfigured:
            continue
    return {"urls": [index, *dict.fromkeys(hosts)], "extra_indexes": extra}


def _pip_elsewhere(index: str) -> tuple[str, ...]:
    accept = "application/vnd.pypi.simple.v1+html, text/html;q=0.5"
    return _elsewhere(index, f"{index.rstrip('/')}/{PIP_PAGE}", accept, _links)


def npm() -> Urls:
    """The registry, and URLs of the hosts that its packages are on. Raises NotConfigured."""
    if shutil.which("npm") is None:
        raise NotConfigured("npm is not installed there, so nothing names a registry")
    registry = _ask(["npm", "config", "get", "registry"]).strip()
    _check(registry, "the registry of npm")
    page = f"{registry.rstrip('/')}/{NPM_PAGE}"
    return {"urls": [registry, *_elsewhere(registry, page, "application/json", _tarballs)]}


def apt() -> Urls:
    """The mirrors. Raises NotConfigured."""
    if shutil.which("apt-get") is None:
        raise NotConfigured("apt is not installed there, so nothing names a mirror")
    try:
        lines = [line for suite in recipe.suites() for line in apt_sources.host_sources(suite)]
    except (OSError, subprocess.SubprocessError) as error:
        raise NotConfigured(f"apt did not tell its sources: {error}") from error
    # `deb URL SUITE COMPONENT`, the form in which templates are built from them.
    mirrors = tuple(dict.fromkeys(line.split()[1] for line in lines))
    if not mirrors:
        raise NotConfigured("apt has no source there of what templates are made of")
    for mirror in mirrors:
        _check(mirror, "a mirror of apt")
    return {"urls": mirrors}


TOOLS: Mapping[str, Callable[[], Urls]] = {"pip": pip, "npm": npm, "apt": apt}


def main(name: str) -> None:
    try:
        print(json.dumps(TOOLS[name]()))
    except NotConfigured as error:
        print(json.dumps({"problem": str(error)}))


def _pip_default() -> str:
    """`pip install --help` tells the index that it would take, whatever file or default it is from."""
    if found := _PIP_DEFAULT.search(_ask_pip("install", "--help")):
        # The help wraps lines at hyphens of an address too.
        return re.sub(r"\s+", "", found[1])
    raise NotConfigured("pip names no index there")


def _pip_extra() -> list[str]:
    """Of what it lists, the place that counts most."""
    if (given := os.environ.get("PIP_EXTRA_INDEX_URL")) is not None:
        return given.split()
    listed = dict(line.split("=", 1) for line in _ask_pip("config", "list").splitlines() if "=" in line)
    for section in ("install", "global"):
        if (value := listed.get(f"{section}.extra-index-url")) is not None:
            return str(ast.literal_eval(value)).split()
    return []


def _ask_pip(*words: str) -> str:
    for argv in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        if shutil.which(argv[0]) is None:
            continue
        try:
            return _ask([*argv, *words])
        except NotConfigured:
            continue
    raise NotConfigured("pip is not installed there, so nothing names an index")


def _ask(argv: Sequence[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "1000"}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotConfigured(f"`{' '.join(argv)}` failed: {error}") from error
    return done.stdout


def _check(url: str, what: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise NotConfigured(f"{what} is not on a host: {url}")


def _elsewhere(base: str, page: str, accept: str, links: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """`scheme://host[:port]/` of what a page links to on other hosts, each once. Raises NotConfigured if it can't be
    read: the preset would open half of what its tool needs."""
    request = urllib.request.Request(page, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=FETCH_S) as answer:
            text, page = answer.read(MAX_PAGE_BYTES).decode("utf-8", "replace"), answer.geturl()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise NotConfigured(f"{_origin(page)} can't be read from there: {reason}") from error
    # Where it was redirected to, a tool inside will be too.
    found = dict.fromkeys([_origin(page), *(_origin(urllib.parse.urljoin(page, link)) for link in links(text))])
    found.pop(_origin(base), None)
    return tuple(url for url in found if url)


def _origin(url: str) -> str:
    """Without a user and a path; empty for what is not on a host."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _links(page: str) -> list[str]:
    parser = _Anchors()
    parser.feed(page)
    return parser.links


def _tarballs(page: str) -> list[str]:
    try:
        return [json.loads(page)["dist"]["tarball"]]
    except (ValueError, KeyError, TypeError):
        return []


if __name__ == "__main__":
    main(sys.argv[1])
