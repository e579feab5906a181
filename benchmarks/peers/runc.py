"""`runc exec` into a sandbox of ours: what the bare runtime takes for the same command in the same container.

runc enters the folder that the container's root was at when it was made, which ours has in a mount namespace of its
own only. So a shell in a namespace that has such a folder, though an empty one, starts it: one line per call.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LOOP = 'mount -t tmpfs tmpfs /run && mkdir -p "$1" && shift && while read -r _; do "$@" </dev/null 1>&2; echo $?; done'


class RuncFailed(Exception):
    """The runtime refused, on stderr; the message holds the command line."""


class RuncExec:
    """`with RuncExec(root, sandbox_id, ["/bin/true"]) as call: call()`; `root` is runc's --root of the installation."""

    def __init__(self, root: Path, sandbox_id: str, command: Sequence[str]) -> None:
        [folder] = [entry for entry in root.iterdir() if sandbox_id in entry.name]
        rootfs = json.loads((folder / "state.json").read_text())["config"]["rootfs"]
        self._line = ["runc", "--root", str(root), "exec", "--user", "1000:1000", folder.name, *command]
        self._shell = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", LOOP, "sh", rootfs, *self._line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __call__(self) -> None:
        assert self._shell.stdin and self._shell.stdout
        self._shell.stdin.write("\n")
        if (status := self._shell.stdout.readline().strip()) != "0":
            raise RuncFailed(f"{' '.join(self._line)} ended with {status or 'nothing'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._shell:
            assert self._shell.stdin
            self._shell.stdin.close()
