"""The guide for apps that give each user a machine: its program as it stands."""

from __future__ import annotations

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import run_python

pytestmark = pytest.mark.root


def test_the_guide(stack: Stack, no_leak: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run_python(stack, "app.md", monkeypatch)
