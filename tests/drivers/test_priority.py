"""A refill's processes step back, with their sessions, and the machine that they start does not."""

import os
import subprocess
from pathlib import Path

import pytest

from bellglass.node.helper import priority, run
from bellglass.scheduling import weigh_session

pytestmark = pytest.mark.root
SHOW = "nice; cat /proc/self/autogroup 2>/dev/null || echo 'nice none'"
AUTOGROUPS = Path("/proc/self/autogroup").exists()


def shown(text):
    """(nice, the session's nice or None without autogroups)"""
    nice, _, session = text.partition("\n")
    word = session.split()[-1]
    return int(nice), None if word == "none" else int(word)


def test_background_steps_back_with_all_that_it_starts():
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert shown(run.run("sh", "-c", SHOW, timeout_s=10)) == (usual, usual if AUTOGROUPS else None)

    child = os.fork()
    if child == 0:
        code = 1
        try:
            background(usual)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual


def background(usual):
    priority.step_back()
    nice = priority.BACKGROUND_NICE
    assert shown(run.run("sh", "-c", SHOW, timeout_s=10)) == (nice, nice if AUTOGROUPS else None)
    started = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert os.getpriority(os.PRIO_PROCESS, started.pid) == nice
        priority.restore(started.pid, usual)
        assert os.getpriority(os.PRIO_PROCESS, started.pid) == usual
        if AUTOGROUPS:
            assert Path(f"/proc/{started.pid}/autogroup").read_text().split()[-1] == str(usual)
    finally:
        started.kill()
        started.wait()


def test_a_session_without_a_weight_of_its_own_is_left_as_it_is():
    kthreadd = Path("/proc/2")
    if not AUTOGROUPS or (kthreadd / "comm").read_text() != "kthreadd\n":
        pytest.skip("no autogroups here, or a pid namespace without kernel threads")
    with pytest.raises(OSError, match="Invalid argument"):
        (kthreadd / "autogroup").write_text("5")
    weigh_session(2, 5)
