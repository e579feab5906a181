"""No process of the helper's outlives the one that wanted it: it would go on making what a reclaim takes away."""

import os
import signal
import time

from bellglass.node.helper import idmap, kernel


def ended_by(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_lives_as_long_as_its_parent() -> None:
    assert ended_by(idmap.fork(lambda: None)) == 0


def test_a_parent_that_was_dead_before_the_call_counts() -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    assert ended_by(idmap.fork(lambda: kernel.die_with_parent(gone))) == -signal.SIGKILL


def test_a_parent_that_is_killed_takes_its_child_along() -> None:
    read, write = os.pipe()

    def parent() -> None:
        def child() -> None:
            os.write(write, b"%d\n" % os.getpid())
            time.sleep(600)

        idmap.fork(child)
        time.sleep(600)

    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    try:
        pid = idmap.fork(parent)
        child = int(os.read(read, 32))
        os.kill(pid, signal.SIGKILL)
        assert ended_by(pid) == ended_by(child) == -signal.SIGKILL
    finally:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)
        os.close(read)
        os.close(write)
