"""May this project do something in this sandbox now? One indexed read, and the typed refusals.

Malformed, unknown, deleted and another project's ids all answer the same 404, down to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bellglass.errors import Conflict, NotFound, SandboxGone
from bellglass.model import State, TerminationReason
from bellglass.server.db.reader import Reader
from bellglass.server.sandboxes import store


class Target(NamedTuple):
    """A running sandbox: what an operation in it needs. `env` is the template's with the sandbox's over it."""

    sandbox_id: str
    generation: int
    node_id: str | None
    user: str
    workdir: str
    env: dict[str, str]

    @property
    def ref(self) -> dict[str, Any]:
        return {"sandbox_id": self.sandbox_id, "generation": self.generation}


def not_found() -> NotFound:
    return NotFound(
        "there is no such sandbox", hint="`bellglass ls` lists those of the project", details={"kind": "sandbox"}
    )


def running(reader: Reader, project_id: str, sandbox_id: str) -> Target:
    """Raises NotFound, SandboxGone (410: it ended, or is ending) or Conflict (409: not started yet)."""
    row = reader.inline(store.access, project_id, sandbox_id)
    if row is None or row.deleted_at is not None:
        raise not_found()
    if row.state == State.RUNNING:
        return Target(row.id, row.generation, row.node_id, row.user, row.workdir, {**row.template_env, **row.env})
    if row.state == State.CREATING:
        raise Conflict(
            "the sandbox is still being created",
            hint="its state becomes `running`; try then",
            details={"sandbox_id": row.id, "state": row.state},
        )
    raise gone(row.id, row.state, row.termination_reason, row.ended_at)


def on_disk(reader: Reader, project_id: str, sandbox_id: str) -> Target:
    """For reading files: a sandbox that was lost with its node has left its disk (the node knows if it is still there).
    The others are as `running` says."""
    row = reader.inline(store.access, project_id, sandbox_id)
    if row is not None and row.deleted_at is None and row.termination_reason == TerminationReason.NODE_LOST:
        return Target(row.id, row.generation, row.node_id, row.user, row.workdir, {})
    return running(reader, project_id, sandbox_id)


def readable(reader: Reader, project_id: str, sandbox_id: str) -> Target:
    """For records and outputs of executions: they outlive the sandbox until its retention ends. Raises NotFound."""
    row = reader.inline(store.access, project_id, sandbox_id)
    if row is None or row.deleted_at is not None:
        raise not_found()
    return Target(row.id, row.generation, row.node_id, row.user, row.workdir, {})


@contextmanager
def unknown_as(ours: NotFound) -> Iterator[None]:
    """The node's 404 becomes ours, so that a malformed id and an unknown one answer alike."""
    try:
        yield
    except NotFound as error:
        if type(error) is not NotFound:
            raise
        raise ours from error


def gone(sandbox_id: str, state: str, reason: str | None, ended_at: str | None) -> SandboxGone:
    if state == State.STOPPING:
        return SandboxGone(
            "the sandbox is being deleted",
            details={"sandbox_id": sandbox_id, "reason": "user", "ended_at": None},
        )
    return SandboxGone(
        f"the sandbox ended at {ended_at}: {reason}",
        hint="create a new one",
        details={"sandbox_id": sandbox_id, "reason": reason, "ended_at": ended_at},
    )
