"""A real installation for a while: started and stopped by the public commands, in a data folder of its own.

    with Stack.start() as stack:                    # runc, needs root
        with stack.sandbox(memory="512MiB") as box:
            ...
    with Stack.start(driver="fake") as stack: ...   # no isolation, any user

Several can run side by side. The folder must be passable by other users (the daemons and the sandboxes have uids of
their own), so it does not lie in a private temporary folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bellglass import faultpoints
from bellglass.datadir import DataDir
from bellglass.supervise.control import read_record
from bellglass.testing.leaks import Scope

PARENT_DIR = Path("/var/tmp")
START_TIMEOUT_S = 180.0
"""The first start on a machine may build the base template."""
DOWN = 3
"""The exit code of `bellglass status` where something of an installation is missing."""


class StackFailed(AssertionError):
    """A command of the installation failed; the message holds what it printed and the ends of the logs."""


@dataclass(slots=True)
class Stack:
    """One running installation."""

    data_dir: Path
    driver: str
    api_url: str = ""
    api_key: str = field(default="", repr=False)
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """For command lines that are to use it: address, key, and a profile file of its own."""

    @classmethod
    def start(
        cls,
        *,
        driver: str = "runc",
        settings: Mapping[str, Any] | None = None,
        parent: Path = PARENT_DIR,
        faults: bool = False,
    ) -> Stack:
        """`bellglass up --detach`. `settings` by dotted name, as in bellglass.toml; `parent` is the folder in which the
        data folder is made; with `faults` the daemons look for armed fault points. Raises StackFailed."""
        data_dir = Path(tempfile.mkdtemp(prefix="bellglass-test-", dir=parent))
        data_dir.chmod(0o711)
        stack = cls(data_dir, driver)
        stack.environment = {"BELLGLASS_PROFILE": str(data_dir / "profile.json")}
        values = {"node.driver": driver, "server.port": 0, "previews.port": 0, **(settings or {})}
        (data_dir / "bellglass.toml").write_text(_toml(values))
        (data_dir / "bellglass.toml").chmod(0o644)
        if faults:
            faultpoints.make_folder(data_dir)
        try:
            stack.up()
        except BaseException:
            stack.close()
            raise
        return stack

    def up(self, *, port: int = 0) -> None:
        """Start the daemons; after a `down` the same installation comes back, at another port unless it is named."""
        done = self.command(
            *("up", "--detach", "--json", "--data-dir", str(self.data_dir), "--port", str(port)),
            timeout_s=START_TIMEOUT_S,
        )
        if done.returncode:
            raise StackFailed(self._report("bellglass up", done))
        answer = json.loads(done.stdout)
        self.api_url, self.api_key = answer["api_url"], answer["api_key"]
        self.environment |= {"BELLGLASS_API_URL": self.api_url, "BELLGLASS_API_KEY": self.api_key}

    def down(self, *, sandboxes: bool = True) -> None:
        more = ["--sandboxes"] if sandboxes else []
        done = self.command("down", *more, "--data-dir", str(self.data_dir), timeout_s=120)
        if done.returncode:
            raise StackFailed(self._report("bellglass down", done))

    def close(self) -> None:
        """Down with all sandboxes, then the folder goes. Raises StackFailed when that does not work."""
        if (self.data_dir / "installation.json").exists():
            self.down()
        shutil.rmtree(self.data_dir, ignore_errors=False)

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what tests ask of it ----------------------------------------------------------------------------

    @property
    def data(self) -> DataDir:
        return DataDir(self.data_dir)

    @property
    def scope(self) -> Scope:
        return Scope.of(self.data_dir)

    @property
    def admin_key(self) -> str:
        return self.data.admin_key_file.read_text().strip()

    def status(self, *, up: bool = True) -> dict[str, Any]:
        """Without `up` also of one in which a daemon is just missing. Raises StackFailed."""
        done = self.command("status", "--json", "--data-dir", str(self.data_dir))
        if done.returncode and (up or done.returncode != DOWN or not done.stdout):
            raise StackFailed(self._report("bellglass status", done))
        return json.loads(done.stdout)

    def pids(self) -> dict[str, int]:
        """By daemon: supervisor, server, node, helper, proxy, resolver, lxcfs; only those that run."""
        return dict(self.status(up=False)["pids"])

    def kill(self, *daemons: str) -> None:
        """SIGKILL, all at the same moment; returns when they are dead."""
        record = read_record(self.data)
        assert record is not None, "it was never up"
        for name in daemons:
            record.processes[name].send(signal.SIGKILL)
        for name in daemons:
            record.processes[name].wait(time.monotonic() + 10)

    def sandbox(self, template: str = "base", **options: Any) -> Any:
        """A `bellglass.Sandbox` of this installation."""
        from bellglass import Sandbox

        if self.driver == "fake":
            options = self._fake_user() | options
        return Sandbox(template, **{"api_url": self.api_url, "api_key": self.api_key, **options})

    def _fake_user(self) -> dict[str, str]:
        """Without isolation a sandbox is the node's own user, in a folder of the host."""
        node = self.data.node_dir.stat()
        folder = self.data_dir / "scratch" / secrets.token_hex(6)
        folder.mkdir(parents=True)
        os.chown(folder, node.st_uid, node.st_gid)
        return {"user": str(node.st_uid), "workdir": str(folder)}

    def create_key(self, project: str | None = None) -> str:
        """A new key of a project, by default of a new one."""
        name = project or f"project-{secrets.token_hex(4)}"
        done = self.command(
            "keys", "create", "--project", name, "--json", environment={"BELLGLASS_API_KEY": self.admin_key}
        )
        if done.returncode:
            raise StackFailed(self._report("bellglass keys create", done))
        return json.loads(done.stdout)["secret"]

    def command(
        self,
        *arguments: str,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """`bellglass ARGUMENTS` in a process of its own, with this installation's address and key."""
        return subprocess.run(
            [*bellglass_command(), *arguments],
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            env=_clean_environment() | self.environment | dict(environment or {}),
            check=False,
        )

    def logs(self, lines: int = 15) -> str:
        """The ends of the daemons' logs."""
        parts = []
        for path in sorted(self.data.logs_dir.glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {path.name}\n" + "\n".join(tail))
        return "\n".join(parts)

    def _report(self, what: str, done: subprocess.CompletedProcess[bytes]) -> str:
        printed = (done.stdout + done.stderr).decode(errors="replace")
        return f"{what} ended with {done.returncode}:\n{printed}\n{self.logs()}"


def bellglass_command() -> Sequence[str]:
    """The installed script of this interpreter's environment."""
    script = Path(sys.executable).with_name("bellglass")
    if not script.exists():
        raise StackFailed(f"{script} is not there: pip install the package into {sys.prefix} first")
    return [str(script)]


def _clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BELLGLASS_") or name == "BELLGLASS_CACHE"
    }


def _toml(values: Mapping[str, Any]) -> str:
    sections: dict[str, list[str]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        # JSON's strings and numbers are TOML's too.
        sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
