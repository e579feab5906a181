"""The table, three times: on the terminal, as markdown, and as JSON with every sample's summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Bound, Row

HERE = Path(__file__).resolve().parent
RESULTS_PAGE = HERE / "RESULTS.md"
RESULTS_DIR = HERE / "results"
COLUMNS = ("what", "who", "n", "min", "p50", "p95", "p99", "max", "unit", "bound", "")
NUMERIC = range(2, 8)


def cells(row: Row) -> tuple[str, ...]:
    summary = row.summary
    numbers = (summary.min, summary.p50, summary.p95, summary.p99, summary.max)
    verdict = "" if not row.bounds else "missed" if row.missed() else "pass"
    return (
        row.what, row.who, str(summary.n), *map(number, numbers), row.unit,
        ", ".join(bound_text(bound) for bound in row.bounds), verdict,
    )  # fmt: skip


def number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def bound_text(bound: Bound) -> str:
    return f"{bound.value} {'≥' if bound.at_least else '≤'} {number(bound.limit).removesuffix('.00')}"


def print_table(rows: Sequence[Row], console: Console) -> None:
    table = Table(*COLUMNS, title=None, header_style="bold", pad_edge=False)
    for index in NUMERIC:
        table.columns[index].justify = "right"
    previous = ""
    for row in rows:
        if previous and row.case != previous:
            table.add_section()
        previous = row.case
        *texts, verdict = cells(row)
        colour = {"pass": "green", "missed": "red"}.get(verdict)
        table.add_row(*texts, f"[{colour}]{verdict}[/{colour}]" if colour else verdict)
    console.print(table)


def to_json(rows: Sequence[Row], machine: Mapping[str, Any], taken_at: str, *, quick: bool) -> dict[str, Any]:
    return {
        "taken_at": taken_at,
        "quick": quick,
        "machine": dict(machine),
        "rows": [
            {
                "case": row.case, "what": row.what, "who": row.who, "unit": row.unit, "note": row.note,
                "summary": {name: round(value, 4) for name, value in asdict(row.summary).items()},
                "bounds": [asdict(bound) for bound in row.bounds],
                "verdict": cells(row)[-1] or None,
            }
            for row in rows
        ],
    }  # fmt: skip


def to_markdown(rows: Sequence[Row], machine: Mapping[str, Any], taken_at: str, *, quick: bool) -> str:
    lines = [
        "# Results", "",
        "Written by `python -m benchmarks --save`; what each row is, and how to read it: [README.md](README.md).", "",
        f"Taken {taken_at}{', with --quick: few samples' if quick else ''}, on: "
        + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items()) + ".", "",
        "| " + " | ".join(COLUMNS[:-1]) + " | verdict |",
        "|" + "|".join(" ---: " if index in NUMERIC else " --- " for index in range(len(COLUMNS))) + "|",
    ]  # fmt: skip
    for row in rows:
        *texts, verdict = cells(row)
        lines.append("| " + " | ".join([*texts, f"**{verdict}**" if verdict == "missed" else verdict]) + " |")
    return "\n".join(lines) + "\n"


def save(rows: Sequence[Row], machine: Mapping[str, Any], taken_at: str, what: str, *, quick: bool) -> Path:
    """Both files; answers the JSON's."""
    RESULTS_DIR.mkdir(exist_ok=True)
    path = RESULTS_DIR / f"{taken_at[:10]}-{what}.json"
    path.write_text(json.dumps(to_json(rows, machine, taken_at, quick=quick), indent=1, ensure_ascii=False) + "\n")
    RESULTS_PAGE.write_text(to_markdown(rows, machine, taken_at, quick=quick))
    return path
