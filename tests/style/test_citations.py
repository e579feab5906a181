"""What the documents name is there: files, folders, tests, settings."""

from __future__ import annotations

import fnmatch
import re

import pytest

from bellglass.settings import SETTINGS

PAGES = ("SPECIFICATION.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
SHORT_FOR = ("", "src/bellglass/", "src/bellglass/server/compat/e2b/", "tests/", "docs/guides/", "docs/reference/")
"""A path may be told from any of these folders."""
NOT_OF_THE_TREE = {"faults/"}
"""Of an installation's data folder."""
QUOTED = re.compile(r"`([^`\n]+)`")
A_PATH = re.compile(r"[\w.*<>-]*/[\w./*<>-]*|[\w-]+\.(?:py|c|h|sh|toml|md)")


def paths_in(page: str) -> list[str]:
    """What stands in backticks and is a path: words of it that have a slash, or the ending of a source file."""
    words = [word for quoted in QUOTED.findall(page) for word in quoted.split()]
    return [word for word in words if A_PATH.fullmatch(word) and not word.startswith("/")]


def places(texts: dict[str, str]) -> set[str]:
    """Every file and folder, folders with a slash behind them too."""
    found = set(texts)
    for name in texts:
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            found |= {folder, folder + "/"}
    return found


def missing(page: str, known: set[str]) -> list[str]:
    bases = {word for word in paths_in(page) if word.endswith("/")}
    lost = []
    for word in paths_in(page):
        pattern = re.sub(r"<\w+>", "*", word)
        candidates = [base + pattern for base in SHORT_FOR]
        # `proxy/`, below a folder that the page names as well.
        candidates += [f"*/{pattern}"] if word in bases or "/" not in word else []
        if word not in NOT_OF_THE_TREE and not any(fnmatch.filter(known, one) for one in candidates):
            lost.append(word)
    return lost


def test_a_path_that_is_not_there_is_seen() -> None:
    known = places({"tests/unit/test_a.py": "", "src/bellglass/node/app.py": ""})
    assert missing("`unit/test_a.py`, `node/`, `unit/test_*.py`, `app.py`, `cat /etc/passwd`", known) == []
    for lost in ("unit/test_b.py", "nodes/", "unit/b_*.py", "gone.py"):
        assert missing(f"`{lost}`", known) == [lost]


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_pages_exist(page: str, texts: dict[str, str]) -> None:
    assert paths_in(texts[page])
    assert missing(texts[page], places(texts)) == []


def rows_without_a_test(page: str) -> list[str]:
    """First cells of the rows of tables `| promise | test |` whose last cell names nothing that can be run."""
    found, inside = [], False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[-1] == "test":
            inside = True
        elif inside and not set(line) <= set("|-") and not re.search(r"`[^`]*(/|\.py|-m )|the same", cells[-1]):
            found.append(cells[0])
    return found


@pytest.mark.parametrize("page", ["SPECIFICATION.md", "SECURITY.md"])
def test_every_promise_names_its_test(page: str, texts: dict[str, str]) -> None:
    table = "| promise | test |\n|---|---|\n| it holds | `unit/` |\n| it does not | later |\n"
    assert rows_without_a_test(table) == ["it does not"]
    assert rows_without_a_test(texts[page]) == []


def unknown_settings(texts: dict[str, str], sources: dict[str, str]) -> list[str]:
    """Words of pages that look like settings and are none, nor another name of the code's (event types, actions)."""
    sections = "|".join(sorted({setting.name.partition(".")[0] for setting in SETTINGS}))
    word = re.compile(rf"(?<![\w./-])(?:{sections})\.[a-z_]+(?![\w./(*-])")
    code = "\n".join(sources.values())
    return [
        f"{name}: {found}"
        for name, text in texts.items()
        if name.endswith(".md")
        for quoted in QUOTED.findall(text)
        for found in word.findall(quoted)
        if f'"{found}"' not in code
    ]


def test_settings_in_pages_exist(texts: dict[str, str], sources: dict[str, str]) -> None:
    assert unknown_settings({"a.md": "`node.gone` and `node.driver`"}, sources) == ["a.md: node.gone"]
    assert unknown_settings(texts, sources) == []
