"""What the fake API holds, and how it is to misbehave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request

from bellglass import errors
from tests.unit.fake_api.fake_processes import Process


class State:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.boxes: dict[str, dict[str, Any]] = {}
        self.keys_seen: dict[str, str] = {}
        self.runs: dict[str, Process] = {}
        self.started = 0
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.cuts: list[int] = []
        self.refuse: list[errors.BellglassError] = []
        self.drop_answers = 0
        self.create_takes_s = 0.0
        self.hang_up: Callable[[], None] = lambda: None
        self.forget_executions = False
        self.corrupt_uploads = False
        self.archive: bytes | None = None
        self.page_size = 2

    def box(self, request: Request) -> dict[str, Any]:
        box = self.boxes.get(request.path_params["id"])
        if box is None:
            raise errors.NotFound(f"there is no sandbox {request.path_params['id']!r}", details={"kind": "sandbox"})
        if box["state"] == "ended":
            raise errors.SandboxGone(
                "the sandbox has ended", details={"reason": box["termination_reason"], "ended_at": box["ended_at"]}
            )
        return box
