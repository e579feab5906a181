"""matplotlib's backend of a kernel: figures become results, each once.

matplotlib loads it by MPLBACKEND when the first figure is made, so cells that draw nothing don't wait for it.
`plt.show()` shows and closes what is open; at the end of a cell the rest follows, but for what the cell itself has
shown.
"""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from IPython.core.pylabtools import print_figure
from IPython.display import display
from matplotlib._pylab_helpers import Gcf
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

FigureCanvas = FigureCanvasAgg
FigureManager = FigureManagerBase


class Box(NamedTuple):
    """What a box was drawn of; `turned`: lying."""

    stats: dict[str, Any]
    turned: bool


boxes: WeakKeyDictionary[Axes, dict[float, Box]] = WeakKeyDictionary()
"""By axes and place: the drawing itself doesn't tell it."""
_shown: set[int] = set()


def show(*_: Any, **__: Any) -> None:
    for manager in sorted(Gcf.get_all_fig_managers(), key=lambda manager: manager.num):
        display(manager.canvas.figure)
    Gcf.destroy_all()


def end_of_cell() -> None:
    managers = sorted(Gcf.get_all_fig_managers(), key=lambda manager: manager.num)
    for manager in managers:
        if id(manager.canvas.figure) not in _shown:
            display(manager.canvas.figure)
    Gcf.destroy_all()
    _shown.clear()


def png(figure: Figure) -> bytes | None:
    _shown.add(id(figure))
    return print_figure(figure, "png")


_draw_boxes = Axes.bxp


def _bxp(axes: Axes, bxpstats: Any, positions: Any = None, *args: Any, **kwargs: Any) -> Any:
    stats = list(bxpstats)
    places = list(positions) if positions is not None else list(range(1, len(stats) + 1))
    drawn = _draw_boxes(axes, stats, positions, *args, **kwargs)
    known = boxes.setdefault(axes, {})
    turned = kwargs.get("orientation") == "horizontal" or kwargs.get("vert") is False
    for place, of_one in zip(places, stats, strict=True):
        known[float(place)] = Box(of_one, turned)
    return drawn


Axes.bxp = _bxp
