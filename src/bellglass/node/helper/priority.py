"""Work that nobody waits for steps back behind what somebody does.

By nice, in two places: the kernel weighs a session's processes together (autogroup, proc(5)) before it compares them
with another session's, so a nice process in a session of its own would step back behind nobody. Not SCHED_IDLE, nor
much nicer: a start holds kernel locks that a create or an execution may need, and on a busy host it has to end soon, or
creates find the pool empty.
"""

from __future__ import annotations

import os
from pathlib import Path

from bellglass.scheduling import weigh_session

BACKGROUND_NICE = 5


def step_back() -> None:
    """This process, in a session of its own, and what it starts: by `run` in other sessions, whose weight the launcher
    sets. `restore` takes it back."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICE)
    weigh_session(0, BACKGROUND_NICE)


def restore(pid: int, nice: int) -> None:
    """A process that was started from one that had stepped back, its threads and its session."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
    weigh_session(pid, nice)
