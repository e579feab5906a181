"""What a result is shown as: by MIME type, with `chart` and `data` beside, each within a size."""

import base64
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from types import ModuleType
from typing import Any

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

from bellglass_kernels import values

MAX_VALUE_BYTES = 16 * 1024 * 1024
"""Of one representation of one result. A longer one is left out and named in `dropped`."""
MAX_JSON_BYTES = 1024 * 1024
"""Of what lists and dicts are shown as besides their text."""
BACKEND = "module://bellglass_kernels.figures"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """What goes out of a bundle of MIME types, and the sizes of what doesn't: 0 for what JSON doesn't have."""
    found: dict[str, Any] = {}
    dropped: dict[str, int] = {}
    for mime, value in data.items():
        if isinstance(value, values.Dropped):
            dropped[mime] = value.length
            continue
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif isinstance(value, str):
            value = clean(value)
        try:
            length = len(value) if isinstance(value, str) else len(json.dumps(value := values.finite(value)))
        except (TypeError, ValueError, RecursionError):
            dropped[mime] = 0
            continue
        if length > MAX_VALUE_BYTES:
            dropped[mime] = length
        else:
            found[mime] = value
    return found, dropped


def clean(text: str) -> str:
    """Without halves of characters, which no encoding of the world takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(text: str) -> str:
    """Without colours."""
    return clean(_ESCAPES.sub("", text))


def cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


class _Data(BaseFormatter):
    format_type = Unicode("data")
    print_method = ObjectName("_repr_data_")
    _return_type = (dict, values.Dropped)


class _Chart(BaseFormatter):
    format_type = Unicode("chart")
    print_method = ObjectName("_repr_chart_")
    _return_type = dict


def install(shell: Any) -> None:
    """Formatters are named by the module of their type, and load nothing before there is a value of it."""
    formatters = shell.display_formatter.formatters
    for formatter in (_Data, _Chart):
        made = formatter(parent=shell.display_formatter)
        formatters[made.format_type] = made
    formatters["data"].for_type_by_name("pandas.core.frame", "DataFrame", values.frame)
    formatters["data"].for_type_by_name("pandas", "DataFrame", values.frame)
    formatters["chart"].for_type_by_name("matplotlib.figure", "Figure", _chart)
    formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _png)
    formatters["application/json"].for_type(list, _json)
    formatters["application/json"].for_type(dict, _json)
    os.environ["MPLBACKEND"] = BACKEND
    shell.events.register("post_execute", _end_of_cell)
    sys.meta_path.insert(0, _Pictures())


def _json(value: Any) -> Any:
    try:
        return value if len(json.dumps(value, allow_nan=False)) <= MAX_JSON_BYTES else None
    except (TypeError, ValueError, RecursionError):
        return None  # no value of JSON


def _chart(figure: Any) -> Any:
    from bellglass_kernels import charts

    return charts.chart(figure)


def _png(figure: Any) -> Any:
    from bellglass_kernels import figures

    return figures.png(figure)


def _end_of_cell() -> None:
    if figures := sys.modules.get("bellglass_kernels.figures"):
        figures.end_of_cell()


class _Pictures(importlib.abc.MetaPathFinder):
    """Pillow's `image.show()` displays: what it starts otherwise needs a screen. So does a cell's
    `image.save("name")`, as users of other interpreters have it; what libraries save is not shown."""

    def __init__(self) -> None:
        self._left = {"PIL.Image": _display_saved, "PIL.ImageShow": _display_shown}

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        change = self._left.pop(name, None)
        found = importlib.util.find_spec(name) if change is not None else None
        if found is not None and found.loader is not None:
            found.loader = _Changed(found.loader, change)
        return found


class _Changed(importlib.abc.Loader):
    def __init__(self, loader: Any, change: Any) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


def _display_shown(module: Any) -> None:
    class Viewer(module.Viewer):
        def show(self, image: Any, **options: Any) -> int:
            _display(image)
            return 1

    module.register(Viewer(), order=0)


def _display_saved(module: Any) -> None:
    save = module.Image.save

    @functools.wraps(save)
    def and_display(image: Any, fp: Any, *args: Any, **options: Any) -> None:
        save(image, fp, *args, **options)
        is_of_a_cell = sys._getframe(1).f_globals.get("__name__") == "__main__"
        if is_of_a_cell and isinstance(fp, (str, bytes, os.PathLike)):
            _display(image)

    module.Image.save = and_display


def _display(image: Any) -> None:
    from IPython.display import display

    display(image)
