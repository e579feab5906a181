"""The generated reference pages are what the code says: settings and errors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from bellglass.errors import BY_CODE, BellglassError
from bellglass.settings import SETTINGS


@pytest.fixture(scope="module")
def generator(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_docs", checkout / "scripts" / "reference_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_fresh(generator: ModuleType) -> None:
    assert generator.stale() == [], "run: python scripts/reference_docs.py"


def test_every_setting_is_documented(generator: ModuleType) -> None:
    page = generator.settings_page()
    for setting in SETTINGS:
        assert setting.help and f"`{setting.name}`" in page and f"`{setting.env_name}`" in page


def test_every_error_is_documented(generator: ModuleType) -> None:
    page = generator.errors_page()
    for code, cls in BY_CODE.items():
        assert f"`{code}`" in page and f"`{cls.__name__}`" in page


def test_every_error_stands_in_the_drawn_tree() -> None:
    drawing = __import__("bellglass.errors", fromlist=["errors"]).__doc__
    for code, cls in BY_CODE.items():
        if cls is not BellglassError and code not in ("error", "bad_request"):
            assert cls.__name__ in drawing
            if cls.status and not cls.__name__.endswith(("RequestError", "ServiceError")):
                assert f"{cls.status} {code}" in drawing, f"the drawing has another status or code for {cls.__name__}"
