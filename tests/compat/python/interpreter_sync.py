"""The code interpreter's client: runs, contexts, charts, and how kernels and sandboxes end."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator

import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import OutputMessage, Result, Sandbox
from e2b_code_interpreter.charts import ChartType


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=600, envs={"OWN": "o"})  # of its default template
    yield made
    made.kill()


def test_state_output_and_callbacks(box: Sandbox) -> None:
    box.run_code("x = 41")
    assert box.run_code("x + 1").text == "42"
    assert box.run_code("'quoted'").text == "quoted"
    said: list[OutputMessage] = []
    shown: list[Result] = []
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n5"
    done = box.run_code(code, on_stdout=said.append, on_stderr=said.append, on_result=shown.append)
    assert (done.logs.stdout, done.logs.stderr) == (["out\n"], ["err\n"])
    assert sorted((one.line, one.error) for one in said) == [("err\n", True), ("out\n", False)]
    assert all(one.timestamp for one in said) and [one.text for one in shown] == ["5"]


def test_output_comes_while_the_code_runs(box: Sandbox) -> None:
    heard: list[float] = []
    done = box.run_code(
        "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.4)",
        on_stdout=lambda _: heard.append(time.monotonic()),
    )
    assert len(heard) == 3 and heard[2] - heard[0] > 0.5 and "".join(done.logs.stdout) == "0\n1\n2\n"


def test_text_that_line_readers_stumble_over(box: Sandbox) -> None:
    text = "a\u2028b\u2029c\x85d\x0ce\U0001f600"
    assert "".join(box.run_code(f"print({text!r}, end='')").logs.stdout) == text


def test_errors_and_counts(box: Sandbox) -> None:
    first = box.run_code("1/0")
    assert first.error is not None and (first.error.name, first.error.value) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert "ZeroDivisionError" in first.error.traceback
    second = box.run_code("1")
    assert second.error is None and second.execution_count == (first.execution_count or 0) + 1


def test_variables_of_the_sandbox_and_of_one_run(box: Sandbox) -> None:
    ask = "import os; f\"{os.getenv('OWN')} {os.getenv('MINE')}\""
    assert box.run_code(ask, envs={"MINE": "m"}).text == "o m"
    assert box.run_code(ask).text == "o None"


def test_pictures_charts_and_frames(box: Sandbox) -> None:
    done = box.run_code(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.title('T')\nplt.xlabel('X')\nplt.show()"
    )
    (result,) = done.results
    assert result.png is not None and base64.b64decode(result.png).startswith(b"\x89PNG") and not result.extra
    assert result.chart is not None and result.chart.type == ChartType.LINE and result.chart.title == "T"
    assert [tuple(point) for point in result.chart.elements[0].points] == [(1, 3), (2, 4)]
    frame = box.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})").results[0]
    assert frame.data == {"a": [1, 2]} and frame.html is not None and frame.is_main_result
    shown = box.run_code("from IPython.display import display, HTML, Markdown\ndisplay(HTML('<b>'))\nMarkdown('# m')")
    assert [(one.html, one.markdown, one.is_main_result) for one in shown.results] == [
        ("<b>", None, False),
        (None, "# m", True),
    ]


def test_a_long_result_is_whole(box: Sandbox) -> None:
    done = box.run_code("from IPython.display import HTML\nHTML('<p>' + 'x' * 2_000_000)")
    assert done.results[0].html == "<p>" + "x" * 2_000_000


def test_contexts(box: Sandbox) -> None:
    assert {"python", "javascript"} <= {context.language for context in box.list_code_contexts()}
    made = box.create_code_context(cwd="/home/user/made/for/it")
    assert box.list_code_contexts()[-1].id == made.id and made.cwd == "/home/user/made/for/it"
    assert box.run_code("import os; secret = 1; os.getcwd()", context=made).text == "/home/user/made/for/it"
    roots = box.create_code_context(cwd="/root")
    assert box.run_code("import os; os.getcwd()", context=roots).text == "/root"
    error = box.run_code("secret").error
    assert error is not None and error.name == "NameError"
    box.restart_code_context(made.id)
    error = box.run_code("secret", context=made).error
    assert error is not None and error.name == "NameError"
    box.remove_code_context(made)
    assert made.id not in [context.id for context in box.list_code_contexts()]
    with pytest.raises(NotFoundException):
        box.run_code("1", context=made)
    with pytest.raises(SandboxException, match="cobol"):
        box.run_code("1", language="cobol")
    with pytest.raises(SandboxException, match="cobol"):
        box.create_code_context(language="cobol")


def test_other_languages(box: Sandbox) -> None:
    script = box.run_code("console.log('hi'); 40 + 2", language="js")
    assert (script.logs.stdout, script.text) == (["hi\n"], "42")
    assert box.run_code("echo hi", language="bash").logs.stdout == ["hi\n"]
    for name in ("typescript", "ts"):
        assert box.run_code("const n: number = 41; n + 1", language=name).text == "42"


def test_code_of_each_language_is_told_its_sandbox(box: Sandbox) -> None:
    by_language = {
        "python": "import os; print(os.environ['E2B_SANDBOX_ID'])",
        "javascript": "console.log(process.env.E2B_SANDBOX_ID)",
        "bash": "echo $E2B_SANDBOX_ID",
    }
    for language, code in by_language.items():
        assert box.run_code(code, language=language).logs.stdout == [box.sandbox_id + "\n"]


def test_a_client_that_gives_up_interrupts_its_code(box: Sandbox) -> None:
    box.run_code("kept = 7")
    with pytest.raises(TimeoutException):
        box.run_code("import time; time.sleep(60)", timeout=1)
    assert box.run_code("kept", timeout=10).text == "7"


def test_a_kernel_that_ends_is_an_error_and_the_next_run_works(box: Sandbox) -> None:
    done = box.run_code("import os; os._exit(3)")
    assert done.error is not None and done.error.name == "UnexpectedEndOfExecution"
    assert box.run_code("1 + 1").text == "2"


def test_a_restart_ends_the_run_under_way(box: Sandbox) -> None:
    made = box.create_code_context()
    on = threading.Event()
    ended = []
    code = "import time; print('on', flush=True); time.sleep(60)"
    runs = threading.Thread(target=lambda: ended.append(box.run_code(code, context=made, on_stdout=lambda _: on.set())))
    runs.start()
    assert on.wait(30)
    box.restart_code_context(made)
    runs.join(30)
    assert ended[0].error is not None and ended[0].error.name == "ContextRestarting"
    box.remove_code_context(made)


def test_a_killed_sandbox(box: Sandbox) -> None:
    made = Sandbox.create(timeout=60)
    assert made.run_code("1").text == "1"
    made.kill()
    with pytest.raises(TimeoutException):
        made.run_code("1")
