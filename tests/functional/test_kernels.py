"""Kernels of the interpreter template: output, values, state, errors, interrupts, and what dies and comes back.

What a result is shown as has a file of its own: test_kernel_results.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.functional.kernel_host import HOST, KernelHost

pytestmark = [pytest.mark.root]
LANGUAGES = ("python", "javascript", "bash")


@pytest.fixture(scope="module")
def python(interpreter: Any) -> Iterator[KernelHost]:
    host = KernelHost(interpreter)
    assert host.ready == {"event": "ready", "language": "python"}
    yield host
    host.close()


@pytest.fixture(scope="module")
def javascript(interpreter: Any) -> Iterator[KernelHost]:
    host = KernelHost(interpreter, "javascript")
    yield host
    host.close()


@pytest.fixture(scope="module")
def bash(interpreter: Any) -> Iterator[KernelHost]:
    host = KernelHost(interpreter, "bash")
    yield host
    host.close()


def test_python_output_values_and_state(python: KernelHost) -> None:
    ran = python.run("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert (ran.stdout, ran.stderr, ran.value) == ("out\n", "err\n", "21")
    assert [event["event"] for event in ran.events].count("stdout") == 1, "one print is one event"
    assert python.run("x * 2").value == "40"
    counts = [python.run("None").events[0]["count"] for _ in range(2)]
    assert counts[1] == counts[0] + 1


def test_javascript_output_values_and_state(javascript: KernelHost) -> None:
    ran = javascript.run("const z = 20; console.log('out'); console.error('err'); z + 1")
    assert (ran.stdout, ran.stderr, ran.value) == ("out\n", "err\n", "21")
    assert javascript.run("const z = 30; z").value == "30", "a cell can be run again"
    assert javascript.run("await new Promise(done => setTimeout(() => done(z), 5))").value == "30"
    ran = javascript.run('import fs, { EOL as eol } from "node:os"\n[typeof fs.cpus, eol]')
    assert ran.results[0]["data"]["application/json"] == ["function", "\n"]
    assert javascript.run('(await import("node:path")).sep').value == "'/'"
    assert javascript.run("function minus(x: number, y: number): number { return x - y }\nminus(1, 2)").value == "-1"
    assert (javascript.run("{a: 1}").value, javascript.run("undefined").value) == ("{ a: 1 }", None)
    failed = javascript.run("throw new TypeError('bad')").errors[0]
    assert (failed["name"], failed["value"]) == ("TypeError", "bad")
    assert javascript.run("let = ;").error == "SyntaxError"
    shown = javascript.run("display({[Symbol.for('Jupyter.display')]: () => ({'text/html': '<b>'})})").results
    assert [(result["main"], result["data"]) for result in shown] == [(False, {"text/html": "<b>"})]


def test_packages_of_the_template_are_there_for_javascript(interpreter: Any, javascript: KernelHost) -> None:
    assert javascript.run("require('lodash').sum([1, 2])").value == "3"
    assert javascript.run("import { parse } from 'csv-parse/sync'\nparse('a,b')[0].length").value == "2"
    code = "import { max } from 'd3-array'\nimport { z } from 'zod'\nz.number().parse(max([3, 7]))"
    assert javascript.run(code).value == "7"
    interpreter.files.write_text("types/a.ts", "const n: number = 'no'\n")
    checked = interpreter.exec("tsc --noEmit a.ts", cwd="types")
    assert not checked.ok and "TS2322" in checked.stdout
    interpreter.files.write_text("types/node_modules/lodash/index.js", "exports.own = 1\n")
    own = interpreter.exec(["node", "-p", "require('lodash').own"], cwd="types")
    assert own.stdout == "1\n", "what is beside the program comes first"
    interpreter.files.remove("types", recursive=True)


def test_bash_output_and_state(bash: KernelHost) -> None:
    ran = bash.run('x=5; cd /tmp\nf() { echo "f $1"; }\necho out; echo err >&2')
    assert (ran.stdout, ran.stderr, ran.errors) == ("out\n", "err\n", [])
    assert bash.run("f $x; pwd").stdout == "f 5\n/tmp\n"
    assert bash.run('cat; read v; echo "<$v>"').stdout == "<>\n", "there is no input"
    failed = bash.run("echo before; (exit 7)")
    assert (failed.stdout, failed.errors[0]["name"]) == ("before\n", "ExitStatus") and "7" in failed.errors[0]["value"]
    assert bash.run("if true; then").error == "ExitStatus"
    assert bash.run("cat <<'X'\nit's !! $here\nX").stdout == "it's !! $here\n"


def test_shell_magics_and_await_in_python(python: KernelHost) -> None:
    assert python.run("!echo hi; pwd").stdout == "hi\n/home/user\n"
    assert python.run("import os; os.system('echo from a program')").stdout == "from a program\n"
    assert python.run("print(1); os.system('echo 2'); print(3)").stdout == "1\n2\n3\n", "in the order of writing"
    assert python.run("import asyncio\nawait asyncio.sleep(0.01, 7)").value == "7"
    assert python.run("    y = 1\n    y").value == "1", "an indented cell"
    assert "pip" in python.run("%pip --version").stdout
    assert python.run("!cat").stdout == "", "a program reads end of file"


@pytest.mark.parametrize("call", ["input('name: ')", "import getpass; getpass.getpass()"])
def test_input_fails_at_once(python: KernelHost, call: str) -> None:
    begun = time.monotonic()
    error = python.run(call).errors[0]
    assert error["name"] == "RuntimeError" and "nobody is at the keyboard" in error["value"]
    assert time.monotonic() - begun < 5


def test_errors_leave_the_state(python: KernelHost) -> None:
    ran = python.run("kept = 1\nprint('before')\n1 / 0")
    assert (ran.stdout, ran.error, ran.errors[0]["value"]) == ("before\n", "ZeroDivisionError", "division by zero")
    assert "1 / 0" in ran.errors[0]["traceback"] and "\x1b" not in ran.errors[0]["traceback"]
    assert python.run("kept").value == "1"
    assert python.run("this is no python").error == "SyntaxError"
    assert python.run("import sys; sys.exit(3)").error == "SystemExit"
    assert python.run("exit()").error == "SystemExit"
    class_ = "class Bad(Exception):\n    def __str__(self): raise ValueError\nraise Bad"
    assert python.run(class_).error == "Bad"
    assert len(json.dumps(python.run("raise ValueError('x' * 10**7)").errors)) < 256 * 1024
    assert python.run("kept").value == "1"


def test_environment_of_one_run(python: KernelHost, javascript: KernelHost, bash: KernelHost) -> None:
    value = 'it\'s "quoted"; $HOME\n2'
    for host, code in ((python, "import os; os.environ.get('ONE')"), (javascript, "process.env.ONE")):
        assert host.run(code, env={"ONE": value}).value is not None
        assert host.run(code).value is None
    assert bash.run('printf %s "$ONE"', env={"ONE": value}).stdout == value
    assert bash.run("echo ${ONE-unset}").stdout == "unset\n"
    assert bash.run("export ONE=own").errors == []
    bash.run("echo $ONE", env={"ONE": "other"})
    assert bash.run("echo $ONE").stdout == "own\n"


def test_interrupts_keep_the_state(python: KernelHost, javascript: KernelHost, bash: KernelHost) -> None:
    python.run("n = 7"), javascript.run("n = 7"), bash.run("n=7")
    looping = {
        python: ("while True: pass", "import time; time.sleep(60)", "await asyncio.sleep(60)", "!sleep 60"),
        javascript: ("while (true) {}", "await new Promise(() => {})"),
        bash: ("while :; do :; done; echo after", "sleep 60; echo after"),
    }
    python.run("import asyncio")
    for host, codes in looping.items():
        for code in codes:
            begun = time.monotonic()
            ran = host.run(code, interrupt_s=0.2)
            assert ran.died is None and "after" not in ran.stdout, code
            assert ran.error == "KeyboardInterrupt" or code.startswith("!"), (code, ran.errors)
            assert time.monotonic() - begun < 4, code
    # What an interrupted run awaited is nobody's any more, and collecting it must not hurt.
    collect = "require('v8').setFlagsFromString('--expose-gc'); require('vm').runInNewContext('gc')()"
    assert javascript.run(collect).died is None
    assert (python.run("n").value, javascript.run("n").value) == ("7", "7")
    assert bash.run("echo $n").stdout == "7\n"


def test_interrupts_that_come_too_early_twice_or_for_nothing(python: KernelHost) -> None:
    python.send(op="interrupt")
    assert python.run("1").value == "1", "an interrupt of nothing is none of the next run"
    python.start("while True: pass")
    python.send(op="interrupt")
    python.send(op="interrupt")
    assert [event["event"] for event in python.events()][-2:] == ["error", "end"]
    assert python.run("2").value == "2"


DEATHS = {
    "exit": ("import os; os._exit(3)", {"reason": "exited", "code": 3}),
    "segfault": ("import ctypes; ctypes.string_at(0)", {"reason": "signal", "signal": "SIGSEGV"}),
    "memory": ("x = bytearray(4 * 2**30)\nx[::4096] = b'1' * len(x[::4096])", {"reason": "oom", "signal": "SIGKILL"}),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_kernel_that_dies_is_told_of_and_replaced(python: KernelHost, death: str) -> None:
    code, reason = DEATHS[death]
    python.run("lost = 1")
    ran = python.run(f"print('last words')\n{code}")
    assert ran.died is not None and {"event", "run", *reason} == set(ran.died), ran.events
    assert reason.items() <= ran.died.items()
    assert ran.stdout == "last words\n" and ran.errors == []
    assert python.run("1 + 1").value == "2"
    assert python.run("lost").error == "NameError"


def test_a_kernel_that_ignores_interrupts_is_killed(python: KernelHost, bash: KernelHost) -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    for host, code in ((python, ignoring), (bash, "trap '' INT; sleep 60")):
        begun = time.monotonic()
        died = host.run(code, interrupt_s=0.1).died
        assert died is not None and died["interrupted"] and died["signal"] == "SIGKILL"
        assert 4.5 < time.monotonic() - begun < 30
    assert python.run("1 + 1").value == "2"
    assert bash.run("echo back").stdout == "back\n"


def test_javascript_and_bash_come_back_too(javascript: KernelHost, bash: KernelHost) -> None:
    for host, code, again in ((javascript, "process.exit(3)", "1 + 1"), (bash, "exit 3", "echo 2")):
        died = host.run(code).died
        assert died is not None and (died["reason"], died["code"]) == ("exited", 3)
        ran = host.run(again)
        assert "2" in (ran.value, ran.stdout.strip())


def test_death_between_runs_shows_at_the_next(python: KernelHost) -> None:
    python.run("import os, threading; threading.Timer(0.2, os._exit, (4,)).start()")
    died, ready = next(python.told()), next(python.told())
    assert (died["run"], died["reason"], ready["state_lost"]) == (None, "exited", True)
    started = python.run("1").events[0]
    assert started["state_lost"]
    assert "state_lost" not in python.run("1").events[0]


def test_lines_that_are_none_and_runs_sent_again(python: KernelHost) -> None:
    python.execution.write_stdin('\nhalf of a li\n{"op":"unknown"}\n')
    name = python.start("again = globals().get('again', 0) + 1")
    list(python.events())
    python.send(op="run", run=name, code="again = 100", env={})
    assert python.run("again").value == "1"


def test_contexts_start_in_parallel_and_share_nothing(interpreter: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        hosts = list(pool.map(lambda _: KernelHost(interpreter, cwd="/tmp"), range(4)))
    try:
        for number, host in enumerate(hosts):
            host.run(f"import os; mine = {number}; os.environ['MINE'] = '{number}'")
        found = [host.run("mine, os.environ['MINE'], os.getcwd()").value for host in hosts]
        assert found == [f"({number}, '{number}', '/tmp')" for number in range(4)]
    finally:
        for host in hosts:
            host.close()


def test_the_host_ends_with_its_input(interpreter: Any) -> None:
    before = interpreter.exec(["pgrep", "--full", HOST]).stdout
    for language in LANGUAGES:
        host = KernelHost(interpreter, language)
        host.start({"python": "print(1)", "javascript": "console.log(1)", "bash": "echo 1"}[language])
        host.execution.close_stdin()
        assert "1\n" in "".join(event.get("text", "") for event in host.told())
        assert host.execution.wait().exit_code == 0
    left = interpreter.exec(["pgrep", "--full", HOST]).stdout
    assert set(left.split()) <= set(before.split()), "nothing of a context stays"


def test_much_output_is_whole(python: KernelHost) -> None:
    lines = 200_000
    ran = python.run(f"for i in range({lines}): print(i)\nprint('\\u2028é', end='')")
    assert ran.stdout == "".join(f"{i}\n" for i in range(lines)) + "\u2028é"
    assert python.run("print('x' * 3_000_000)").stdout == "x" * 3_000_000 + "\n"
