"""What a figure of matplotlib shows, as data: lines, points, bars, pies, boxes, and figures of several of these."""

import math
import re
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.category import StrCategoryLocator
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.dates import DateConverter, _SwitchableDateConverter, num2date
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Wedge
from matplotlib.ticker import FixedLocator

from bellglass_kernels import figures, values

Chart = dict[str, Any]
_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


def chart(figure: Figure) -> Chart | None:
    """None for a figure without axes; of one axes its chart, of more a superchart."""
    found = [of_axes(axes) for axes in figure.axes if axes.get_label() != "<colorbar>"]
    if len(found) <= 1:
        return found[0] if found else None
    return {"type": "superchart", "title": figure.get_suptitle() or None, "elements": found}


def of_axes(axes: Axes) -> Chart:
    base = {"title": axes.get_title() or None}
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    points = [found for found in axes.collections if isinstance(found, PathCollection)]
    lines = [line for line in axes.lines if _is_data(axes, line)]
    if drawn := figures.boxes.get(axes):
        turned = all(box.turned for box in drawn.values())
        return {"type": "box_and_whisker", **base, **_labels(axes, turned=turned), "elements": _boxes(axes, drawn)}
    if wedges:
        return {"type": "pie", **base, "elements": [_wedge(wedge) for wedge in wedges]}
    if bars:
        turned = all(container.orientation == "horizontal" for container in bars)
        return {"type": "bar", **base, **_labels(axes, turned=turned), "elements": _bars(axes, bars)}
    if points and not lines:
        return {"type": "scatter", **base, **_labels(axes), **_scales(axes), "elements": _points(points)}
    if (lines and not points) or not _is_drawn_on(axes):
        return {"type": "line", **base, **_labels(axes), **_scales(axes), "elements": _lines(lines)}
    return {"type": "unknown", **base, "elements": []}


def _is_drawn_on(axes: Axes) -> bool:
    """Axes alone are taken for lines that are still to come: a call that failed has left its scales in them."""
    return any((axes.lines, axes.patches, axes.collections, axes.images, axes.tables, axes.artists))


def _is_data(axes: Axes, line: Line2D) -> bool:
    """Lines across the whole axes are marks in it."""
    return line.get_transform() not in (axes.get_xaxis_transform(), axes.get_yaxis_transform())


def _labels(axes: Axes, *, turned: bool = False) -> Chart:
    """`turned`: values go to the right; they are told as if they went up."""
    x, y = axes.get_xlabel() or None, axes.get_ylabel() or None
    if turned:
        x, y = y, x
    return {"x_label": x, "y_label": y, "x_unit": _unit(x), "y_unit": _unit(y)}


def _unit(label: str | None) -> str | None:
    """`Speed (km/h)`, `Speed [km/h]`."""
    found = _UNIT.search(label or "")
    return (found[1] or found[2] or None) if found else None


def _scales(axes: Axes) -> Chart:
    found: Chart = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        ticks = list(axis.get_ticklocs())
        labels = [label.get_text() for label in axis.get_ticklabels()]
        scale = axis.get_scale()
        if isinstance(axis.get_converter(), (DateConverter, _SwitchableDateConverter)):
            scale, ticks = "datetime", [num2date(tick).isoformat() for tick in ticks]
        elif scale == "linear" and _is_categorical(ticks, labels):
            scale = "categorical"
        found |= {f"{name}_ticks": [values.plain(tick) for tick in ticks]}
        found |= {f"{name}_tick_labels": labels, f"{name}_scale": scale}
    return found


def _is_categorical(ticks: list[Any], labels: list[str]) -> bool:
    """Ticks at 0, 1, 2 ... that are called something else."""
    pairs = list(zip(ticks, labels, strict=False))
    return bool(pairs) and all(tick == index and label != str(index) for index, (tick, label) in enumerate(pairs))


def _lines(lines: list[Line2D]) -> list[Chart]:
    found = []
    for number, line in enumerate(lines):
        points = zip(line.get_xdata(orig=True), line.get_ydata(orig=True), strict=False)
        found.append({"label": _named(line, f"Line {number}"), "points": [_point(x, y) for x, y in points]})
    return found


def _points(collections: list[PathCollection]) -> list[Chart]:
    return [
        {
            "label": _named(collection, f"Points {number}"),
            "points": [_point(x, y) for x, y in collection.get_offsets().tolist()],
        }
        for number, collection in enumerate(collections)
    ]


def _point(x: Any, y: Any) -> list[Any]:
    return [values.plain(x), values.plain(y)]


def _bars(axes: Axes, containers: list[BarContainer]) -> list[Chart]:
    found = []
    for number, container in enumerate(containers):
        upright = container.orientation != "horizontal"
        names = _tick_names(axes.xaxis if upright else axes.yaxis)
        group = _named(container, f"Group {number}")
        for bar in container.patches:
            start, width = (bar.get_x(), bar.get_width()) if upright else (bar.get_y(), bar.get_height())
            value = bar.get_height() if upright else bar.get_width()
            found.append({"label": _nearest(names, start + width / 2), "group": group, "value": values.plain(value)})
    return found


def _tick_names(axis: Axis) -> list[tuple[float, str]]:
    """Only where somebody gave them: ticks that matplotlib chose name no bar."""
    if not isinstance(axis.get_major_locator(), (FixedLocator, StrCategoryLocator)):
        return []
    labels = [label.get_text() for label in axis.get_ticklabels()]
    return list(zip(axis.get_ticklocs(), labels, strict=False))


def _nearest(names: list[tuple[float, str]], place: float) -> str:
    """The name under a place; bars of groups stand beside it. Where none is near, the place itself."""
    if names:
        distance, name = min((abs(tick - place), label) for tick, label in names)
        if name and distance <= 0.5:
            return name
    return f"{place:g}"


def _wedge(wedge: Wedge) -> Chart:
    angle = round(float(abs(wedge.theta2 - wedge.theta1)), 4)
    return {"label": _named(wedge, ""), "angle": angle, "radius": float(wedge.r)}


def _boxes(axes: Axes, drawn: dict[float, figures.Box]) -> list[Chart]:
    found = []
    for place, box in sorted(drawn.items()):
        stats, names = box.stats, _tick_names(axes.yaxis if box.turned else axes.xaxis)
        found.append(
            {
                "label": str(stats.get("label") or _nearest(names, place)),
                "min": float(stats["whislo"]),
                "first_quartile": float(stats["q1"]),
                "median": float(stats["med"]),
                "third_quartile": float(stats["q3"]),
                "max": float(stats["whishi"]),
                "outliers": [float(value) for value in stats.get("fliers", ()) if math.isfinite(value)],
            }
        )
    return found


def _named(artist: Any, otherwise: str) -> str:
    label = str(artist.get_label() or "")
    return otherwise if not label or label.startswith("_") else label
