"""The bar of a template's build."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bellglass.node.image.progress import SHARES, BuildProgress, share_before


def test_phases_only_move_forward() -> None:
    shares = [share for _, share in SHARES]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1


@pytest.mark.parametrize(
    ("phase", "share"), [("Debian bookworm with 16 packages", 0.0), ("hook 20-python.sh", 0.85), ("done", None)]
)
def test_a_phase_tells_how_far_it_is_or_nothing(phase: str, share: float | None) -> None:
    assert share_before(phase) == share


def test_the_bar_shows_the_phase_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=100)
    monkeypatch.setattr("bellglass.node.image.progress.Console", lambda **_: terminal)
    with BuildProgress("base") as bar:
        bar.show("downloading packages with apt")
        assert "template base" in drawn.getvalue() and "downloading packages with apt" in drawn.getvalue()
        before = len(drawn.getvalue())
    assert len(drawn.getvalue()) > before, "the bar was not taken away"
    bar.stop()
