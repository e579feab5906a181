"""A Docker daemon of the benchmark's own: its data, sockets and mounts in a scratch folder, and gone afterwards.

It gets no bridge and touches no firewall rule, since every container here runs with `--network none`. It lives in a
mount namespace with an empty /run, where it insists on making folders, so its mounts end with it. What does not end
with it are the parents of its containers' cgroups: one name in every hierarchy, removed by `stop`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType

from bellglass.testing import kernel
from benchmarks.peers.unix_http import UnixConnection

SETUP = Path(__file__).resolve().parents[1] / "setup.sh"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 300.0
IMAGE = "bellglass-benchmark:base"
WITH_EMPTY_RUN = 'mount -t tmpfs tmpfs /run && exec "$@"'


class DockerFailed(Exception):
    """The daemon or a command of its client failed; the message says how to try it by hand."""


@dataclass(slots=True)
class Docker:
    """A running daemon."""

    folder: Path
    environment: dict[str, str]
    client: str
    _process: subprocess.Popen[bytes] = field(repr=False)
    _cgroup_parent: str = ""

    @classmethod
    def start(cls, folder: Path) -> Docker:
        """`folder` is made; it must not exist. Raises DockerFailed; nothing of it then runs."""
        prefix = _prefix()
        environment = _environment(prefix)
        dockerd = shutil.which("dockerd", path=environment["PATH"])
        client = shutil.which("docker", path=environment["PATH"])
        if not dockerd or not client:
            raise DockerFailed(f"{SETUP.name} brought no dockerd and docker; --no-peers measures without them")
        with ExitStack() as undo:
            folder.mkdir(mode=0o700)
            undo.callback(shutil.rmtree, folder)
            parent = f"bellglass-benchmark-docker-{os.getpid()}"
            environment["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
            environment["DOCKER_CONFIG"] = str(folder / "client")
            with (folder / "dockerd.log").open("wb") as log:
                process = subprocess.Popen(
                    _daemon_command(dockerd, folder, parent),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                )  # fmt: skip
            docker = cls(folder, environment, client, process, parent)
            undo.callback(docker._end_process)
            docker._wait_for_ping()
            undo.pop_all()
        return docker

    def __enter__(self) -> Docker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Containers, daemon, cgroup parents, folder. Raises DockerFailed where something of it stays."""
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder)
            undo.callback(self._remove_cgroup_parents)
            undo.callback(self._end_process)
            containers = self.command("ps", "--all", "--quiet").split()
            if containers:
                self.command("rm", "--force", *containers)

    # --- what the cases use ------------------------------------------------------------------------------

    def version(self) -> str:
        return self.command("version", "--format", "{{.Server.Version}}").strip()

    def import_image(self, rootfs: Path) -> None:
        """Make the image of a template's root file system."""
        with subprocess.Popen(
            ["tar", "--create", "--numeric-owner", "--directory", str(rootfs), "."], stdout=subprocess.PIPE
        ) as tar:
            subprocess.run(
                [self.client, "import", "-", IMAGE],
                stdin=tar.stdout, stdout=subprocess.DEVNULL, env=self.environment, check=True,
                timeout=COMMAND_TIMEOUT_S,
            )  # fmt: skip
        if tar.returncode:
            raise DockerFailed(f"tar of {rootfs} ended with {tar.returncode}")

    def command(self, *arguments: str) -> str:
        """`docker ARGUMENTS`, its stdout. Raises DockerFailed."""
        done = subprocess.run(
            [self.client, *arguments], capture_output=True, text=True, env=self.environment, timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DockerFailed(f"docker {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def run(self, command: Sequence[str], limits: Sequence[str]) -> str:
        """`docker run --rm` with no network, as the template's user."""
        return self.command("run", "--rm", "--network", "none", "--user", "1000:1000", *limits, IMAGE, *command)

    def container(self, limits: Sequence[str]) -> str:
        """One that stays, for execs; its id."""
        return self.command(
            "run", "--detach", "--network", "none", "--user", "1000:1000", *limits, IMAGE, "sleep", "infinity"
        ).strip()

    def connection(self) -> HTTPConnection:
        """To the daemon's API, without the client program's start."""
        return UnixConnection(self.folder / "docker.sock")

    # --- start and end -----------------------------------------------------------------------------------

    def _wait_for_ping(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise DockerFailed(f"dockerd ended with {self._process.returncode}:\n{self._log()}")
            try:
                connection = self.connection()
                connection.request("GET", "/_ping")
                if connection.getresponse().read() == b"OK":
                    return
            except OSError:
                pass  # the socket is not there yet: dockerd tells nobody when it is
            time.sleep(0.05)
        raise DockerFailed(f"dockerd did not answer within {START_TIMEOUT_S:g} s:\n{self._log()}")

    def _log(self) -> str:
        return "\n".join((self.folder / "dockerd.log").read_text(errors="replace").splitlines()[-15:])

    def _end_process(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise DockerFailed("dockerd had to be killed: its containerd may still run") from None

    def _remove_cgroup_parents(self) -> None:
        for path in sorted(kernel.cgroups(), key=len, reverse=True):
            if self._cgroup_parent in path:
                Path(path).rmdir()


def exec_over_api(connection: HTTPConnection, container: str, command: Sequence[str]) -> int:
    """What `docker exec` asks of the daemon: create, start (output comes with it), inspect. The exit code."""
    created = _ask(
        connection, "POST", f"/containers/{container}/exec",
        {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command), "User": "1000:1000"},
    )  # fmt: skip
    _ask(connection, "POST", f"/exec/{json.loads(created)['Id']}/start", {"Detach": False, "Tty": False})
    return int(json.loads(_ask(connection, "GET", f"/exec/{json.loads(created)['Id']}/json"))["ExitCode"])


def _ask(connection: HTTPConnection, method: str, path: str, body: object = None) -> bytes:
    payload = None if body is None else json.dumps(body).encode()
    connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status >= 400:
        raise DockerFailed(f"{method} {path}: {answer.status} {content.decode(errors='replace')}")
    return content


def _prefix() -> Path | None:
    done = subprocess.run([str(SETUP)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise DockerFailed(f"{SETUP} ended with {done.returncode}; --no-peers measures without Docker")
    return Path(done.stdout.strip()) if done.stdout.strip() else None


def _environment(prefix: Path | None) -> dict[str, str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/root"}
    if prefix:
        folders = [str(prefix / name) for name in ("usr/sbin", "usr/bin", "sbin", "bin")]
        environment["PATH"] = ":".join([*folders, environment["PATH"]])
        libraries = [*prefix.glob("usr/lib/*-linux-gnu"), *prefix.glob("lib/*-linux-gnu")]
        if libraries:
            environment["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    return environment


def _daemon_command(dockerd: str, folder: Path, cgroup_parent: str) -> list[str]:
    return [
        # Should the benchmark be killed, its daemon ends as well.
        *("setpriv", "--pdeathsig", "TERM", "unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", WITH_EMPTY_RUN, "sh"),
        *(dockerd, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
        *("--host", f"unix://{folder}/docker.sock", "--bridge", "none", "--iptables=false", "--ip6tables=false"),
        *("--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs"),
        *("--cgroup-parent", f"/{cgroup_parent}", "--log-level", "warn"),
    ]  # fmt: skip
