"""What was answered is on the disk: the order of the daemons' and the agent's own system calls, traced while they run.

Each order is also checked against itself: a trace that lacks one of the steps has to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bellglass.node.helper import cgroup
from tests.conftest import SANDBOX_OPTIONS, end
from tests.functional.strace import (
    Call,
    Match,
    Step,
    Trace,
    check_order,
    check_that_each_step_counts,
    parse,
    traced,
)

HOME = "/home/user"


def calls_of(*names: str, having: str = "") -> Match:
    return lambda call: call.name in names and having in call.arguments


def synced(path: str) -> Match:
    """fsync of exactly this file or folder."""
    return lambda call: call.name in ("fsync", "fdatasync") and f"<{path}>" in call.arguments


def answered(status: int) -> Step:
    return Step(
        f"{status} to the client", calls_of("write", "writev", "sendto", having=f'"HTTP/1.1 {status}'), early=True
    )


def stored(file: Path, what: str) -> list[Step]:
    """A transaction of SQLite in its write-ahead log."""
    log = f"{file}-wal"
    return [Step(f"{what} written", calls_of("pwrite64", having=f"<{log}>")), Step(f"{what} synced", synced(log))]


@pytest.fixture
def trace_agent(stack: Any, shared_box: Any, tmp_path: Path) -> Callable[[], Any]:
    """Server, node, and the agent of the shared sandbox with its workers."""
    group = cgroup.layout().group(cgroup.group_name(stack.scope.installation, shared_box.id))
    # The agent is the machine's first process, and nothing else runs in the sandbox now.
    agent = min(int(pid) for file in group.rglob("cgroup.procs") for pid in file.read_text().split())
    pids = stack.pids()
    return lambda: _traced(stack, [pids["server"], pids["node"], agent], tmp_path)


@pytest.fixture
def trace_daemons(stack: Any, tmp_path: Path) -> Callable[[], Any]:
    pids = stack.pids()
    return lambda: _traced(stack, [pids["server"], pids["node"], pids["helper"]], tmp_path)


@contextmanager
def _traced(stack: Any, pids: list[int], folder: Path) -> Iterator[Trace]:
    """A client can have its answer before the call that sent it has returned: after another one it has."""
    with traced(pids, folder) as trace:
        yield trace
        httpx2.get(f"{stack.api_url}/v1/health", trust_env=False, timeout=60)


def checked(trace: Trace, steps: list[Step]) -> list[Call]:
    check_that_each_step_counts(trace.calls, steps)
    return check_order(trace.calls, steps)


def test_a_written_file_is_on_the_disk_before_the_answer(shared_box: Any, trace_agent: Any) -> None:
    with trace_agent() as trace:
        shared_box.files.write_bytes("atomic", b"0123456789")
    made = next(c for c in trace.calls if c.name == "openat" and "O_CREAT|O_EXCL" in c.arguments)
    temporary = made.arguments.split('"')[1]
    steps = [
        Step("temporary file", calls_of("openat", having=temporary)),
        Step("bytes", calls_of("write", having=f"<{HOME}/{temporary}>")),
        Step("sync of the file", synced(f"{HOME}/{temporary}")),
        Step("rename", calls_of("renameat", "renameat2", having=f'"{temporary}"'), early=True),
        Step("sync of the folder", synced(HOME)),
        answered(201),
    ]
    assert '"atomic"' in checked(trace, steps)[3].arguments


def test_a_file_written_in_place_is_too(shared_box: Any, trace_agent: Any) -> None:
    with trace_agent() as trace:
        shared_box.files.write_bytes("in-place", b"0123456789", in_place=True)
    steps = [
        Step("new file", calls_of("openat", having='"in-place", O_WRONLY|O_CREAT')),
        Step("bytes", calls_of("write", having=f"<{HOME}/in-place>")),
        Step("sync of the file", synced(f"{HOME}/in-place")),
        Step("sync of the folder", synced(HOME)),
        answered(201),
    ]
    checked(trace, steps)


def test_folders_made_on_the_way_are_on_the_disk(shared_box: Any, trace_agent: Any) -> None:
    with trace_agent() as trace:
        shared_box.files.write_bytes("way/to/file", b"x")
    steps = [
        Step("first folder", calls_of("mkdirat", having=f'<{HOME}>, "way"')),
        Step("sync above it", synced(HOME)),
        Step("second folder", calls_of("mkdirat", having=f'<{HOME}/way>, "to"')),
        Step("sync above it", synced(f"{HOME}/way")),
        Step("rename", calls_of("renameat", "renameat2", having='"file"')),
        Step("sync of its folder", synced(f"{HOME}/way/to")),
        answered(201),
    ]
    checked(trace, steps)


def test_mkdir_move_and_remove_are_on_the_disk(shared_box: Any, trace_agent: Any) -> None:
    files = shared_box.files
    files.write_text("moved", "x")
    with trace_agent() as trace:
        files.mkdir("made")
    made = [Step("folder", calls_of("mkdirat", having='"made"')), Step("sync above it", synced(HOME)), answered(200)]
    checked(trace, made)
    with trace_agent() as trace:
        files.move("moved", "made/moved")
    moved = Step("rename", calls_of("renameat2", having='"moved"'))
    for folder in (HOME, f"{HOME}/made"):
        checked(trace, [moved, Step(f"sync of {folder}", synced(folder)), answered(200)])
    with trace_agent() as trace:
        files.remove("made/moved")
    gone = Step("unlink", calls_of("unlinkat", having='"moved", 0'))
    checked(trace, [gone, Step("sync of the folder", synced(f"{HOME}/made")), answered(204)])


def test_an_unpacked_archive_is_on_the_disk(shared_box: Any, trace_agent: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").write_text("x")
    with trace_agent() as trace:
        shared_box.files.upload_dir(tree, "unpacked")
    steps = [
        Step("bytes of a file", calls_of("write", having="/below/file>")),
        Step("sync of all", calls_of("syncfs")),
        Step("into its place", calls_of("renameat2", having='"unpacked"'), early=True),
        Step("sync of the folder", synced(HOME)),
        answered(200),
    ]
    checked(trace, steps)


@pytest.fixture
def made(stack: Any, no_leak: None) -> Iterator[list[Any]]:
    boxes: list[Any] = []
    yield boxes
    for box in boxes:
        end(box)


def test_a_sandbox_is_on_the_disk_before_it_is_started_and_before_it_is_told(
    stack: Any, made: list[Any], trace_daemons: Any
) -> None:
    with trace_daemons() as trace:
        made.append(stack.sandbox(**SANDBOX_OPTIONS))
    data = stack.data
    steps = [
        *stored(data.database_file, "row"),
        Step("asking the node", calls_of("writev", having="sandbox.create"), early=True),
        *stored(data.journal_file, "intent"),
        Step("asking the helper", calls_of("sendto", having=r"\"op\": \"start_machine\""), early=True),
        Step("the runtime", calls_of("openat", having="/bundle/config.json"), early=True),
        *stored(data.journal_file, "confirmation"),
        Step("the node's answer", calls_of("writev", having=r"{\"result\":{\"started_at\""), early=True),
        *stored(data.database_file, "state"),
        answered(201),
    ]
    checked(trace, steps)


def test_a_delete_is_on_the_disk_before_the_kill_and_before_it_is_told(
    stack: Any, made: list[Any], trace_daemons: Any
) -> None:
    box = stack.sandbox(**SANDBOX_OPTIONS)
    made.append(box)
    with trace_daemons() as trace:
        box.delete()
    data = stack.data
    steps = [
        *stored(data.database_file, "intent"),
        Step("asking the node", calls_of("writev", having="sandbox.delete"), early=True),
        *stored(data.journal_file, "intent of the node"),
        Step("the kill", calls_of("write", having=f"{box.id}/cgroup.kill>"), early=True),
        Step("the node's answer", calls_of("writev", having=r"{\"result\":{\"ended_at\""), early=True),
        *stored(data.database_file, "end"),
        answered(204),
    ]
    checked(trace, steps)


def test_the_parser_joins_calls_that_were_interrupted_by_others() -> None:
    calls = parse(
        "10 fsync(4</a> <unfinished ...>\n"
        '11 write(5</b>, "x", 1)           = 1\n'
        "10 <... fsync resumed>)              = 0\n"
        '11 openat(AT_FDCWD</>, "/none", O_RDONLY) = -1 ENOENT (No such file or directory)\n'
        "11 +++ exited with 0 +++\n"
    )
    assert [(call.pid, call.name, call.result, call.began, call.ended) for call in calls] == [
        (10, "fsync", 0, 0, 2),
        (11, "write", 1, 1, 1),
        (11, "openat", -1, 3, 3),
    ]
    written = Step("write", calls_of("write", having="</b>"))
    check_order(calls, [written])
    with pytest.raises(AssertionError, match="no 'write' after sync"):
        check_order(calls, [Step("sync", synced("/a")), written])  # it had begun before the sync was done
    with pytest.raises(AssertionError, match="'write' before"):
        late = replace(calls[1], began=9, ended=9)
        check_order([*calls, late], [Step("sync", synced("/a")), Step("write", written.match, early=True)])
    with pytest.raises(AssertionError, match="no 'open'"):
        check_order(calls, [Step("open", calls_of("openat"))])  # it failed
