"""What values are shown as: charts of figures, frames as data, pictures and texts of many kinds, what is too big."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.functional.kernel_host import KernelHost, Ran

pytestmark = [pytest.mark.root]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def python(interpreter: Any) -> Iterator[KernelHost]:
    host = KernelHost(interpreter)
    ran = host.run("import matplotlib.pyplot as plt, numpy as np, pandas as pd\nfrom IPython.display import display")
    assert ran.errors == []
    yield host
    host.close()


def figures(ran: Ran) -> list[dict[str, Any]]:
    """The charts of a run, each with its picture and its text."""
    assert ran.errors == [], ran.errors[0]["traceback"]
    found = [result["data"] for result in ran.results if "image/png" in result["data"]]
    for data in found:
        assert base64.b64decode(data["image/png"]).startswith(PNG) and data["text/plain"].startswith("<Figure")
    return [data["chart"] for data in found]


def chart(python: KernelHost, code: str) -> dict[str, Any]:
    [found] = figures(python.run(code))
    return found


def test_line(python: KernelHost) -> None:
    found = chart(
        python,
        "plt.plot([1, 2], [3, np.nan], label='a'); plt.plot([1, 2], [5, 6])\nplt.axhline(4)\nplt.title('T')\n"
        "plt.xlabel('Time (s)'); plt.ylabel('Voltage [mV]'); plt.grid(); plt.legend()\nplt.show()",
    )
    assert [found[key] for key in ("type", "title", "x_label", "y_label")] == ["line", "T", "Time (s)", "Voltage [mV]"]
    assert (found["x_unit"], found["y_unit"]) == ("s", "mV")
    assert (found["x_scale"], found["y_scale"]) == ("linear", "linear")
    assert len(found["x_ticks"]) == len(found["x_tick_labels"]) > 2
    assert found["elements"] == [
        {"label": "a", "points": [[1, 3], [2, None]]},
        {"label": "Line 1", "points": [[1, 5], [2, 6]]},
    ]


def test_scales(python: KernelHost) -> None:
    days = "import datetime\nplt.plot([datetime.date(2023, 9, day) for day in (1, 2)], [1, 2]); plt.show()"
    found = chart(python, days)
    assert (found["x_scale"], found["elements"][0]["points"][1]) == ("datetime", ["2023-09-02", 2])
    assert found["x_ticks"][0].startswith("2023-09-01T")
    stamps = "plt.plot(pd.to_datetime(['2023-09-01', '2023-09-02']), [1, 2]); plt.show()"
    assert chart(python, stamps)["elements"][0]["points"][1][0] == "2023-09-02T00:00:00"
    assert chart(python, "plt.plot([1, 2], ['A', 'B']); plt.show()")["y_scale"] == "categorical"
    assert chart(python, "plt.plot([1, 2], [1, 100]); plt.yscale('log'); plt.show()")["y_scale"] == "log"


def test_scatter(python: KernelHost) -> None:
    found = chart(python, "plt.scatter([1, 2], [3, 4], label='a'); plt.scatter([5], [6]); plt.show()")
    assert found["type"] == "scatter" and "x_ticks" in found
    assert found["elements"] == [
        {"label": "a", "points": [[1.0, 3.0], [2.0, 4.0]]},
        {"label": "Points 1", "points": [[5.0, 6.0]]},
    ]


def test_bars(python: KernelHost) -> None:
    found = chart(python, "plt.bar(['A', 'B'], [10, 20]); plt.xlabel('x'); plt.show()")
    assert (found["type"], found["x_label"]) == ("bar", "x")
    assert found["elements"] == [
        {"label": "A", "group": "Group 0", "value": 10},
        {"label": "B", "group": "Group 0", "value": 20},
    ]
    lying = chart(python, "plt.barh(['A', 'B'], [10, 10]); plt.xlabel('Count (n)'); plt.show()")
    assert (lying["y_label"], lying["y_unit"], lying["elements"][1]["label"]) == ("Count (n)", "n", "B")
    grouped = chart(
        python,
        "fig, ax = plt.subplots()\nax.bar([-.2, .8], [1, 2], width=.4, label='m')\n"
        "ax.bar([.2, 1.2], [3, 4], width=.4, label='w'); ax.set_xticks([0, 1], ['one', 'two'])\nplt.show()",
    )
    told = [(bar["label"], bar["group"], bar["value"]) for bar in grouped["elements"]]
    assert told == [("one", "m", 1), ("two", "m", 2), ("one", "w", 3), ("two", "w", 4)]


def test_pie_and_boxes(python: KernelHost) -> None:
    found = chart(python, "plt.pie([90, 10], labels=['No', 'No, in blue'], autopct='%1.1f%%'); plt.show()")
    assert (found["type"], found["elements"][1]) == ("pie", {"label": "No, in blue", "angle": 36.0, "radius": 1.0})
    # Drawn twice at the same places, as one does for another look.
    found = chart(
        python,
        "data = {'A': [1, 2, 3, 4, 100], 'B': [2, 3]}\nfig, ax = plt.subplots()\n"
        "for patch in (False, True): ax.boxplot(data.values(), labels=data.keys(), patch_artist=patch)\nplt.show()",
    )
    assert found["type"] == "box_and_whisker"
    a, b = found["elements"]
    assert a == {
        "label": "A",
        "min": 1.0,
        "first_quartile": 2.0,
        "median": 3.0,
        "third_quartile": 4.0,
        "max": 4.0,
        "outliers": [100.0],
    }
    assert (b["label"], b["median"]) == ("B", 2.5)
    of_pandas = chart(python, "pd.DataFrame({'c': [1, 2, 3]}).plot.box(); plt.show()")
    assert (of_pandas["elements"][0]["label"], of_pandas["elements"][0]["median"]) == ("c", 2.0)


def test_composed_and_unknown(python: KernelHost) -> None:
    code = "fig, axs = plt.subplots(1, 2)\nfig.suptitle('S')\naxs[0].plot([1]); axs[1].scatter([1], [2]); plt.show()"
    found = chart(python, code)
    assert (found["type"], found["title"]) == ("superchart", "S")
    assert [part["type"] for part in found["elements"]] == ["line", "scatter"]
    code = "fig, ax = plt.subplots(); ax.add_artist(plt.Circle((0, 0), 1)); ax.set_title('C'); plt.show()"
    assert chart(python, code) == {"type": "unknown", "title": "C", "elements": []}


def test_axes_that_a_failed_call_leaves_empty(python: KernelHost) -> None:
    code = "import datetime\nplt.plot([datetime.date(2024, 1, 1)], [1, 2])"
    run = python.run(code)
    assert run.error == "ValueError"
    (found,) = [result["data"]["chart"] for result in run.results]
    assert (found["type"], found["elements"]) == ("line", [])
    assert (found["x_scale"], found["y_scale"]) == ("datetime", "linear")


@pytest.mark.parametrize(
    ("code", "times"),
    [
        ("plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2]); None", 2),
        ("plt.plot([1]); plt.show(); plt.plot([2]); plt.show()", 2),
        ("fig, ax = plt.subplots(); ax.plot([1]); None", 1),
        ("fig, ax = plt.subplots(); ax.plot([1]); fig", 1),
        ("fig, ax = plt.subplots(); ax.plot([1]); display(fig)", 1),
        ("fig, ax = plt.subplots()\nfor i in range(3): ax.plot([i]); display(fig)", 3),
        ("%matplotlib inline\nplt.plot([1]); plt.show()", 1),
        ("plt.plot([1])\nplt.savefig('/tmp/a.png'); plt.close()", 0),
        ("plt.figure(); plt.show()", 0),
        ("plt.plot([1])\n1 / 0", 1),
    ],
)
def test_each_figure_once(python: KernelHost, code: str, times: int) -> None:
    ran = python.run(code)
    assert len([result for result in ran.results if "image/png" in result["data"]]) == times
    assert python.run("1").results[0]["data"] == {"text/plain": "1"}, "nothing of it is left for the next run"


def test_frames(python: KernelHost) -> None:
    [result] = python.run(
        "pd.DataFrame({'a': [1, 2], 'when': pd.to_datetime(['2020-01-01', None]), 'wide': ['é🎉\\u2028' * 9, None],"
        " 'f': [1.5, np.nan], 'deep': [[1], {'k': np.int64(1)}]})"
    ).results
    assert {"text/plain", "text/html", "data"} == set(result["data"])
    data = result["data"]["data"]
    assert (data["a"], data["when"], data["f"]) == ([1, 2], ["2020-01-01T00:00:00", None], [1.5, None])
    assert data["wide"] == ["é🎉\u2028" * 9, None] and len(data["deep"]) == 2
    [big] = python.run("pd.DataFrame(np.zeros((2000, 300)))").results
    assert "text/html" in big["data"] and big["dropped"] == {"data": 600_000}


def test_kinds_of_results(python: KernelHost) -> None:
    ran = python.run(
        "from IPython.display import HTML, Markdown, Latex, SVG, JSON, Javascript\nfrom PIL import Image\n"
        "display(HTML('<b>'), Markdown('# x'), Latex('$x$'), SVG('<svg xmlns=\"s\"></svg>'), JSON({'a': 1}))\n"
        "display({'text/latex': 'x', 'application/pdf': b'%PDF'}, raw=True)\n"
        "Image.new('RGB', (4, 4)).show()\nfor i in range(3): display(i)\n[1, {'a': None}]"
    )
    assert ran.errors == []
    kinds = [set(result["data"]) - {"text/plain"} for result in ran.results]
    assert kinds[:5] == [{"text/html"}, {"text/markdown"}, {"text/latex"}, {"image/svg+xml"}, {"application/json"}]
    assert ran.results[5]["data"] == {"text/latex": "x", "application/pdf": base64.b64encode(b"%PDF").decode()}
    assert {"image/png", "image/jpeg"} <= kinds[6] and [r["data"]["text/plain"] for r in ran.results[7:10]] == list(
        "012"
    )
    assert ran.results[10]["main"] and ran.results[10]["data"]["application/json"] == [1, {"a": None}]
    assert [result["main"] for result in ran.results].count(True) == 1
    assert python.run("float('nan'), float('inf')").value == "(nan, inf)"
    assert python.run("[float('nan')]").results[0]["data"] == {"text/plain": "[nan]"}
    assert python.run("'\\ud800'").value == "'\\ud800'"


def test_a_picture_that_a_cell_saves_is_shown_and_those_of_libraries_are_not(python: KernelHost) -> None:
    python.run("import io, pathlib\nfrom PIL import Image\npicture = Image.new('RGB', (4, 4))")
    for name in ("'/tmp/a.png'", "pathlib.Path('/tmp/b.jpg')"):
        ran = python.run(f"picture.save({name}); Image.open({name}).size")
        assert [set(result["data"]) >= {"image/png"} for result in ran.results] == [True, False], ran.errors
        assert ran.value == "(4, 4)"
    assert python.run("picture.save(io.BytesIO(), 'png')").results == []
    ran = python.run("figure = plt.figure(); plt.plot([1]); figure.savefig('/tmp/c.png'); plt.close(figure)")
    assert (ran.results, ran.errors) == ([], [])
    assert python.run("picture.save('/no/folder.png')").errors[0]["name"] == "FileNotFoundError"


def test_big_results_come_in_parts_or_are_left_out(python: KernelHost) -> None:
    make = (
        "import os\nfrom IPython.display import Image\npicture = lambda n: Image(data=%r + os.urandom(n), format='png')"
    )
    python.run(make % PNG)
    [three] = python.run("picture(3_000_000)").results
    assert len(base64.b64decode(three["data"]["image/png"])) == 3_000_008 and three["last"]
    [fifty] = python.run("picture(50_000_000)").results
    assert set(fifty["data"]) == {"text/plain"} and fifty["dropped"] == {"image/png": 66_666_680}
    assert python.run("print('x'); 1").value == "1"


CELL = """import pandas as pd, matplotlib.pyplot as plt
frame = pd.DataFrame({"x": range(50), "y": [i * %d for i in range(50)]})
frame.plot(x="x", y="y")
print("cell", %d)
int(frame["y"].sum())"""


@pytest.mark.parametrize("runs", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_two_clients_get_every_result(interpreter: Any, runs: int) -> None:
    def client(_: int) -> list[float]:
        host, took = KernelHost(interpreter), []
        host.run(CELL % (0, 0))
        for number in range(runs):
            begun = time.monotonic()
            ran = host.run(CELL % (number, number))
            took.append(time.monotonic() - begun)
            assert (ran.stdout, ran.value) == (f"cell {number}\n", str(1225 * number))
            assert figures(ran)[0]["elements"][0]["points"][-1] == [49, 49 * number]
        host.close()
        return took

    with ThreadPoolExecutor(2) as pool:
        took = sorted(value for found in pool.map(client, range(2)) for value in found)
    assert len(took) == 2 * runs and took[-1] < max(5.0, 20 * took[len(took) // 2])


def test_a_value_that_cannot_be_shown_is_an_error_of_its_cell(python: KernelHost) -> None:
    ran = python.run("class Bad:\n    def __repr__(self): raise ValueError('no text')\nBad()")
    assert ran.error == "ValueError"
    ran = python.run(
        "class Odd:\n    def _repr_mimebundle_(self, **_): return {'text/plain': 'odd', 'x/y': {1, 2}}\nOdd()"
    )
    assert ran.value == "odd" and ran.results[0]["dropped"] == {"x/y": 0}
    assert python.run("1").value == "1"
