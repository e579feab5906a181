"""What the style tests look at: the files of the checkout, as git would list them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def _listed(checkout: Path) -> list[Path]:
    """Tracked files and new ones that aren't ignored; without git (an unpacked archive) everything that is text."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        names = [name for name in done.stdout.decode().split("\0") if name]
        paths = [checkout / name for name in names]
    else:
        paths = list(checkout.rglob("*"))
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="session")
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def texts(checkout: Path) -> dict[str, str]:
    """Every text file of the tree by its path in it."""
    found = {}
    for path in _listed(checkout):
        raw = path.read_bytes()
        if b"\0" not in raw[:8192]:
            found[str(path.relative_to(checkout))] = raw.decode("utf-8", "replace")
    assert "pyproject.toml" in found
    return found


@pytest.fixture(scope="session")
def sources(texts: dict[str, str]) -> dict[str, str]:
    """The package's own Python files, generated ones left out."""
    found = {
        name: text
        for name, text in texts.items()
        if name.startswith("src/bellglass/") and name.endswith(".py") and "/_sync/" not in name
    }
    assert len(found) > 10
    return found
