"""What no file of the tree may hold, and what each must: openings, lengths, hosts, places."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

MAX_LINES = 400
LONGER_BY_NEED: dict[str, str] = {}
"""Path to the reason."""
MAX_MEDIAN_LINES = 250

SLEEPS_BY_NEED = {
    "src/bellglass/supervise/launch.py": "FUSE gives no event for a file system that has begun to answer",
    "src/bellglass/egress/loop.py": "it waits for nothing: others are to get the processor",
    "src/bellglass/node/helper/wait.py": "the kernel tells nobody when a mount or loop device is gone",
    "src/bellglass/testing/leaks.py": "no one event says that mounts, cgroups and namespaces are all gone",
    "src/bellglass/testing/machine_restart.py": "as in leaks.py",
    "src/bellglass/testing/hostile.py": "nothing tells a client that a restarted node has an agent again",
}
"""Files that may call time.sleep, with the reason."""

# `docker.io` alone is the name of a Debian package; as a host it stands before a / or a port.
REGISTRY_HOST = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|yarnpkg\.com|deb\.debian\.org|security\.debian\.org"
    r"|ftp\.[a-z.]*debian\.org|archive\.ubuntu\.com|proxy\.golang\.org|crates\.io|rubygems\.org|ghcr\.io|quay\.io"
    r"|registry-1\.docker\.io|docker\.io(?=[/:]))\b"
)


def test_modules_open_with_their_purpose(sources: dict[str, str]) -> None:
    silent = [name for name, text in sources.items() if not (ast.get_docstring(ast.parse(text)) or "").strip()]
    assert not silent, f"no module docstring: {silent}"


def test_tests_and_scripts_open_with_their_purpose(texts: dict[str, str]) -> None:
    silent = []
    for name, text in texts.items():
        if (
            name.startswith(("tests/", "scripts/", "examples/", "benchmarks/"))
            and name.endswith(".py")
            and text.strip()
        ):
            if not ast.get_docstring(ast.parse(text)):
                silent.append(name)
        elif name.endswith((".sh", ".c", ".h")) and not re.search(r"^\s*(#[^!]|/\*|//)", text[:400], re.MULTILINE):
            silent.append(name)
    assert not silent, f"no opening comment: {silent}"


def test_files_are_short(sources: dict[str, str], texts: dict[str, str]) -> None:
    code = sources | {name: text for name, text in texts.items() if name.startswith("guest/src/")}
    assert statistics.median(text.count("\n") for text in code.values()) <= MAX_MEDIAN_LINES
    tests = {name: text for name, text in texts.items() if re.fullmatch(r"(tests|guest/tests)/.*\.(py|mts|c|h)", name)}
    assert len(tests) > 100
    lengths = {name: text.count("\n") for name, text in (code | tests).items()}
    too_long = {name: n for name, n in lengths.items() if n > MAX_LINES and name not in LONGER_BY_NEED}
    assert not too_long, f"over {MAX_LINES} lines: {too_long}"
    stale = [name for name in LONGER_BY_NEED if lengths.get(name, 0) <= MAX_LINES]
    assert not stale, f"no longer long: {stale}"


def sleeps(text: str) -> list[int]:
    """Lines that call time.sleep, under whatever name it was imported."""
    tree = ast.parse(text)
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
        if alias.name == "sleep"
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("time.sleep", *names):
            found.append(node.lineno)
    return found


def test_nothing_sleeps_instead_of_waiting(sources: dict[str, str]) -> None:
    assert sleeps("import time\ntime.sleep(1)") == [2]
    assert sleeps("from time import sleep as nap\nnap(1)") == [2]
    assert sleeps("import asyncio\nawait_ = asyncio.sleep(0)") == []
    found = {name: lines for name, text in sources.items() if (lines := sleeps(text))}
    unexpected = {name: lines for name, lines in found.items() if name not in SLEEPS_BY_NEED}
    assert not unexpected, f"time.sleep without a reason in the list: {unexpected}"
    assert set(SLEEPS_BY_NEED) <= set(found), "a reason for a sleep that is gone"


def registry_hosts(texts: dict[str, str]) -> list[str]:
    return [
        f"{name}:{number}: {match[0]}"
        for name, text in texts.items()
        if name != "tests/style/test_texts.py"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := REGISTRY_HOST.search(line))
    ]


def test_no_registry_is_named(texts: dict[str, str]) -> None:
    """Where packages come from is the host's own configuration, never a name in the tree."""
    planted = "deb." + "debian.org"
    assert registry_hosts({"a.sh": f"curl https://{planted}/debian"}) == [f"a.sh:1: {planted}"]
    assert registry_hosts(texts) == []


def test_the_place_of_the_checkout_is_not_named(texts: dict[str, str], checkout: Path) -> None:
    place = str(checkout)
    assert [name for name, text in texts.items() if place in text] == []


def missing_pages(texts: dict[str, str]) -> list[str]:
    """Markdown files that some text names and that the tree doesn't have."""
    have = {Path(name).name for name in texts} | {"SKILL.md"}
    pattern = re.compile(r"(?<![\w*{}<>/-])(?:[\w./-]*/)?([\w-]+\.md)\b")
    return [
        f"{name}: {match[1]}"
        for name, text in texts.items()
        if not name.startswith(("tests/", "benchmarks/"))
        for match in pattern.finditer(text)
        if match[1] not in have
    ]


def test_named_pages_exist(texts: dict[str, str]) -> None:
    assert missing_pages({"a.py": '"""See GONE.md."""'}) == ["a.py: GONE.md"]
    assert missing_pages({"a.py": "see docs/reference/b.md", "docs/reference/b.md": ""}) == []
    assert missing_pages(texts) == []


LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s#]+)(?:#[^)]*)?\)")


def test_links_in_pages_lead_somewhere(texts: dict[str, str], checkout: Path) -> None:
    broken = []
    for name, text in texts.items():
        if not name.endswith(".md"):
            continue
        for match in LINK.finditer(text):
            if "://" not in match[1] and not (checkout / name).parent.joinpath(match[1]).exists():
                broken.append(f"{name}: {match[1]}")
    assert broken == []


@pytest.mark.parametrize("word", ["except:", "except Exception:\n        pass", "except BaseException:\n        pass"])
def test_no_exception_is_swallowed(sources: dict[str, str], word: str) -> None:
    assert [name for name, text in sources.items() if word in text] == []
