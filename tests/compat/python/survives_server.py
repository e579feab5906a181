"""A server that is killed under E2B's client, and is there again: what goes on, and what has to be made anew."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2b import CommandExitException, NotFoundException
from e2b.sandbox.commands.command_handle import PtySize
from e2b_code_interpreter import Sandbox

BUSY = """
import os, time
open("busy", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
y = 5
"""
RECORD = Path(os.environ["SUPERVISOR_FILE"])


class Before(NamedTuple):
    """Made before the server died. `broke`: by what was read from, what the reader was told of that."""

    box: Sandbox
    job: Any
    terminal: Any
    watcher: Any
    context: Any
    broke: dict[str, Exception]


def server() -> int:
    return int(json.loads(RECORD.read_text())["processes"]["server"]["pid"])


def kill_server() -> None:
    """And wait until the supervisor says that another one serves."""
    before = server()
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while server() == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def failure(read: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        read()
    return caught.value


@pytest.fixture(scope="module")
def before() -> Iterator[Before]:
    box = Sandbox.create(timeout=600)
    job = box.commands.run("while read line; do echo got $line; done; exit 7", background=True, stdin=True, timeout=0)
    terminal = box.pty.create(PtySize(rows=24, cols=80), timeout=0)
    box.commands.send_stdin(job.pid, "before\n")
    assert next(iter(job))[0] == "got before\n"
    box.pty.send_stdin(terminal.pid, b"mine=kept; echo re''ady\n")
    said = b""
    for _, _, piece in terminal:
        said += piece or b""
        if b"ready\r\n" in said:
            break
    box.files.make_dir("watched")
    watcher = box.files.watch_dir("watched")
    box.files.write("watched/file", "x")
    assert "file" in [event.name for event in watcher.get_new_events()]
    context = box.create_code_context()
    assert box.run_code("x = 41; x", context=context).text == "41"
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(box.run_code, BUSY, context=context)
        while not box.files.exists("busy"):
            time.sleep(0.02)
        kill_server()
        reading = {"job": job.wait, "terminal": terminal.wait, "busy": busy.result}
        broke = {name: failure(read) for name, read in reading.items()}
    yield Before(box, job, terminal, watcher, context, broke)
    box.kill()


def test_a_stream_that_broke_is_no_end_of_its_process(before: Before) -> None:
    for name, error in before.broke.items():
        assert not isinstance(error, (CommandExitException, NotFoundException)), name
    running = {process.pid for process in before.box.commands.list()}
    assert {before.job.pid, before.terminal.pid} <= running


def test_a_command_goes_on(before: Before) -> None:
    again = before.box.commands.connect(before.job.pid, timeout=0)
    before.box.commands.send_stdin(before.job.pid, "after\n")
    before.box.commands.close_stdin(before.job.pid)
    said: list[str] = []
    with pytest.raises(CommandExitException) as caught:
        again.wait(on_stdout=said.append)
    assert (caught.value.exit_code, "".join(said)) == (7, "got after\n")


def test_a_terminal_goes_on(before: Before) -> None:
    again = before.box.pty.connect(before.terminal.pid, timeout=0)
    before.box.pty.resize(before.terminal.pid, PtySize(rows=50, cols=132))
    before.box.pty.send_stdin(before.terminal.pid, b"echo $mine $(stty size); exit 0\n")
    said: list[bytes] = []
    assert again.wait(on_pty=said.append).exit_code == 0
    assert b"kept 50 132\r\n" in b"".join(said)


def test_a_context_keeps_its_variables_and_what_ran_in_it_goes_on(before: Before) -> None:
    assert before.context.id in [context.id for context in before.box.list_code_contexts()]
    before.box.files.write("go", "")
    assert before.box.run_code("(x + 1, y)", context=before.context).text == "(42, 5)"


def test_a_watcher_that_is_asked_is_unknown_and_a_new_one_works(before: Before) -> None:
    with pytest.raises(NotFoundException):
        before.watcher.get_new_events()
    again = before.box.files.watch_dir("watched")
    before.box.files.write("watched/other", "x")
    assert "other" in [event.name for event in again.get_new_events()]
    again.stop()


def test_the_sandbox_is_the_same(before: Before) -> None:
    again = Sandbox.connect(before.box.sandbox_id)
    assert again.files.read("watched/file") == "x" and again.is_running()
