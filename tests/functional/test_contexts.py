"""Code in contexts of the interpreter template, through the SDK: state, results, kernels that die, and who leaves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bellglass import (
    AsyncSandbox,
    InvalidCommand,
    InvalidRequest,
    KernelDied,
    NotFound,
    NotSupported,
    RunResult,
    Sandbox,
    SandboxGone,
)
from bellglass.server.app import make_fastapi
from bellglass.server.system.openapi import describe
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack
from tests.conftest import end
from tests.functional.own import own_installation
from tests.functional.waiting import wait_until

pytestmark = pytest.mark.root
OPTIONS: dict[str, Any] = {"cpus": 2, "memory": "1GiB", "disk": "1GiB", "lifetime": "15m"}
BUSY = "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.05)"


@pytest.fixture(scope="module")
def lab(stack: Stack) -> Iterator[Sandbox]:
    made = stack.sandbox("interpreter", **OPTIONS)
    made.run_code("1")
    yield made
    end(made)


class Background:
    """A run beside the test. `on` is set when its code has written something."""

    def __init__(self, run: Callable[..., RunResult], code: str = BUSY, **options: Any) -> None:
        self.on = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(run, code, on_stdout=lambda text: self.on.set(), **options)
        assert self.on.wait(30)

    def result(self) -> RunResult:
        try:
            return self._future.result(60)
        finally:
            self._pool.shutdown()


def test_state_output_results_and_what_the_code_raises(lab: Sandbox) -> None:
    heard: list[str] = []
    first = lab.run_code("x = 41\nimport sys\nprint('out')\nprint('err', file=sys.stderr)", on_stdout=heard.append)
    assert (first.ok, first.stdout, first.stderr, "".join(heard)) == (True, "out\n", "err\n", "out\n")
    second = lab.run_code("x + 1")
    assert (second.text, second.main.text if second.main else None) == ("42", "42")
    assert second.execution_count == (first.execution_count or 0) + 1
    failed = lab.run_code("1/0")
    assert failed.error and failed.error.name == "ZeroDivisionError" and not failed.ok
    assert "ZeroDivisionError" in failed.error.traceback and lab.run_code("x").text == "41"


def test_pictures_charts_and_frames(lab: Sandbox) -> None:
    shown: list[Any] = []
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='a')\nplt.title('T')\nplt.show()"
    plot = lab.run_code(code, on_result=shown.append)
    assert plot.png is not None and plot.png.startswith(b"\x89PNG") and len(shown) == len(plot.results) == 1
    assert plot.chart is not None and (plot.chart["type"], plot.chart["title"]) == ("line", "T")
    frame = lab.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})").results[0]
    assert frame.frame == {"a": [1, 2]} and "<table" in (frame.html or "") and "a" in (frame.text or "")


def test_a_long_result_comes_whole_over_its_pieces(lab: Sandbox) -> None:
    code = "from IPython.display import HTML\nHTML('<p>' + 'x' * 3_000_000 + '</p>')"
    assert lab.run_code(code).results[0].html == "<p>" + "x" * 3_000_000 + "</p>"


def test_env_is_there_for_its_run_alone_and_the_sandboxs_own_in_all(stack: Stack, new_box: Callable[..., Any]) -> None:
    box = new_box("interpreter", **{**OPTIONS, "env": {"OWN": "o"}})
    ask = "import os; (os.environ.get('OWN'), os.environ.get('MINE'))"
    assert box.run_code(ask, env={"MINE": "m"}).text == "('o', 'm')"
    assert box.run_code(ask).text == "('o', None)"


def test_contexts_share_nothing_but_their_files(lab: Sandbox) -> None:
    lab.files.mkdir("data", exist_ok=True)
    one, other = lab.contexts.create("python"), lab.contexts.create("python", cwd="data")
    one.run("secret = 1; open('/home/user/data/note', 'w').write('hi')")
    error = other.run("secret").error
    assert error and error.name == "NameError"
    assert other.run("open('note').read()").text == "'hi'" and other.cwd == "/home/user/data"
    assert {one.id, other.id} <= {context.id for context in lab.contexts.list()}
    one.restart()
    assert one.run("secret").error and one.run("1").text == "1"
    one.delete(), other.delete()
    with pytest.raises(NotFound):
        one.run("1")
    assert not {one.id, other.id} & {context.id for context in lab.contexts.list()}


def test_async_contexts_start_side_by_side(stack: Stack, lab: Sandbox) -> None:
    async def scenario() -> None:
        box = await AsyncSandbox.connect(lab.id, api_url=stack.api_url, api_key=stack.api_key)
        contexts = await asyncio.gather(*[box.contexts.create() for _ in range(4)])
        texts = await asyncio.gather(*[context.run(f"x = {n}; x") for n, context in enumerate(contexts)])
        assert [result.text for result in texts] == ["0", "1", "2", "3"]
        await asyncio.gather(*[context.delete() for context in contexts])
        await box.aclose()

    asyncio.run(scenario())


def test_what_is_wrong_is_refused_by_name(lab: Sandbox, shared_box: Sandbox) -> None:
    assert lab.contexts.create("python", cwd="/tmp").delete() is None
    for wrong in ({"language": "cobol"}, {"language": "js"}):
        with pytest.raises(InvalidRequest, match="language"):
            lab.contexts.create(**wrong)
    with pytest.raises(InvalidCommand, match="nowhere"):
        lab.contexts.create("python", cwd="/nowhere")
    with pytest.raises(InvalidRequest, match="timeout"):
        lab.run_code("1", timeout="2d")
    with pytest.raises(NotFound):
        lab.run_code("1", context="cx" + "a" * 20)
    with pytest.raises(NotSupported, match="interpreter"):
        shared_box.run_code("1")


def test_the_documents_examples_work(lab: Sandbox, api: httpx2.Client) -> None:
    paths = describe(make_fastapi())["paths"]
    base = "/v1/sandboxes/{sandbox_id}/contexts"
    for path, context_id in ((base, None), (base + "/{context_id}/run", "python")):
        example = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
        answer = api.post(path.format(sandbox_id=lab.id, context_id=context_id), json=example)
        assert answer.status_code < 300, answer.text
        if context_id is None:
            assert api.delete(f"/v1/sandboxes/{lab.id}/contexts/{answer.json()['id']}").status_code == 204


def test_the_same_key_is_the_same_context_and_the_same_run_id_runs_once(lab: Sandbox, api: httpx2.Client) -> None:
    url = f"/v1/sandboxes/{lab.id}/contexts"
    twice = [api.post(url, json={}, headers={"idempotency-key": "k1"}).json() for _ in range(2)]
    assert twice[0]["id"] == twice[1]["id"] != api.post(url, json={}, headers={"idempotency-key": "k2"}).json()["id"]
    body = {"code": "n = globals().get('n', 0) + 1; n", "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
    answers = [api.post(f"{url}/{twice[0]['id']}/run", json=body) for _ in range(3)]
    assert [answer.json()["results"][0]["data"]["text/plain"] for answer in answers] == ["1", "1", "1"]
    assert api.post(f"{url}/{twice[0]['id']}/run", json=body | {"code": "2"}).status_code == 409
    for context in lab.contexts.list():
        if context.id != "python":
            context.delete()


@pytest.mark.parametrize(
    ("code", "reason", "more"),
    [
        ("import os; os._exit(3)", "exited", {"code": 3}),
        ("import ctypes; ctypes.string_at(0)", "signal", {"signal": "SIGSEGV"}),
        ("held = [b'x' * 2**20 for _ in range(4000)]", "oom", {"signal": "SIGKILL"}),
    ],
)
def test_a_kernel_that_dies_is_told_with_its_reason_and_the_next_run_works(
    lab: Sandbox, code: str, reason: str, more: dict[str, Any]
) -> None:
    context = lab.contexts.create()
    assert context.run("x = 1; x").text == "1"
    with pytest.raises(KernelDied) as caught:
        context.run(f"print('before', flush=True)\n{code}")
    assert caught.value.details.items() >= {"reason": reason, "state_lost": True, **more}.items()
    assert caught.value.result.stdout == "before\n" and caught.value.result.state_lost
    error = context.run("x").error
    assert error is not None and error.name == "NameError" and context.run("1 + 1").text == "2"
    context.delete()


def test_input_fails_at_once(lab: Sandbox) -> None:
    error = lab.run_code("input('name? ')", timeout=20).error
    assert error is not None and "input" in error.value


def test_an_interrupt_and_a_timeout_stop_the_code_and_keep_its_state(lab: Sandbox) -> None:
    context = lab.contexts.create()
    context.run("x = 7")
    busy = Background(context.run)
    assert context.interrupt()
    stopped = busy.result()
    assert stopped.interrupted and stopped.error and stopped.error.name == "KeyboardInterrupt"
    late = context.run(BUSY, timeout=0.5)
    assert late.timed_out and not late.interrupted and context.run("x").text == "7"
    assert not context.interrupt(), "nothing runs"
    context.delete()


def test_code_that_ignores_interrupts_is_killed_and_says_so(lab: Sandbox) -> None:
    context = lab.contexts.create()
    deaf = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nwhile True: time.sleep(1)"
    with pytest.raises(KernelDied) as caught:
        context.run(deaf, timeout=0.5)
    assert caught.value.details["timed_out"] and caught.value.details["state_lost"]
    assert "did not stop when it was interrupted" in caught.value.message
    assert context.run("1").text == "1"
    with pytest.raises(KernelDied) as caught:
        context.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "killed by SIGKILL" in caught.value.message, "nobody had interrupted it"
    context.delete()


def test_a_client_that_is_killed_interrupts_its_run(stack: Stack, lab: Sandbox) -> None:
    lab.run_code("x = 7")
    program = f"from bellglass import Sandbox\nSandbox.connect({lab.id!r}).run_code({BUSY!r}, on_stdout=print)"
    client = subprocess.Popen(
        [sys.executable, "-u", "-c", program], env=stack.environment, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None and client.stdout.readline() == "on\n"
    client.kill()
    client.wait()
    client.stdout.close()
    assert lab.run_code("x", timeout=30).text == "7"


def test_two_clients_of_one_context_wait_for_each_other(stack: Stack, lab: Sandbox) -> None:
    other = Sandbox.connect(lab.id, api_url=stack.api_url, api_key=stack.api_key)
    lab.run_code("log = []")
    code = "import time; log.append('in'); time.sleep(0.02); log.append('out')"

    def ten(box: Sandbox) -> list[RunResult]:
        return [box.run_code(code) for _ in range(10)]

    with ThreadPoolExecutor(2) as pool:
        results = [result for part in pool.map(ten, (lab, other)) for result in part]
    assert all(result.ok for result in results) and len({result.execution_count for result in results}) == 20
    assert lab.run_code("''.join(log) == 'inout' * 20").text == "True"
    other.close()


def test_a_sandbox_that_is_deleted_ends_its_run(stack: Stack, new_box: Callable[..., Any]) -> None:
    box = new_box("interpreter", **OPTIONS)
    other = Sandbox.connect(box.id, api_url=stack.api_url, api_key=stack.api_key)
    busy = Background(other.run_code)
    box.delete()
    with pytest.raises(SandboxGone) as caught:
        busy.result()
    assert caught.value.details["reason"] == "user"
    with pytest.raises(NotFound):
        other.run_code("1")  # to a call that comes later it is unknown
    other.close()


def test_a_context_at_rest_keeps_no_sandbox_from_being_idle(new_box: Callable[..., Any]) -> None:
    box = new_box("interpreter", **{**OPTIONS, "idle_timeout": 2})
    busy = Background(box.run_code, "import time\nprint('on', flush=True)\ntime.sleep(4)\n5")
    assert busy.result().text == "5", "while code runs it is not idle"

    def reason() -> str | None:
        return box.info().termination_reason

    wait_until(lambda: reason() == "idle", 30, lambda: f"it ended by {reason()}")


@pytest.mark.timeout(180)
def test_runs_and_state_outlive_server_and_node_that_are_killed() -> None:
    waits = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)"
    code = f"print('on', flush=True)\n{waits}\nran = 1\n'there'"
    with own_installation() as own, own.sandbox("interpreter", **OPTIONS) as box:
        box.run_code("x = 'kept'")
        for daemon in ("server", "node"):
            box.exec(["rm", "-f", "/tmp/go"])
            busy = Background(box.run_code, code)
            end_and_await(own, daemon)
            box.exec(["touch", "/tmp/go"], check=True)
            result = busy.result()
            assert (result.text, result.stdout) == ("'there'", "on\n"), daemon
            assert box.run_code("x").text == "'kept'", daemon
