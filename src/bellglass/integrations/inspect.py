"""Inspect's sandboxes on Bellglass: `sandbox="bellglass"`, or `("bellglass", BellglassConfig(...))` for more.

    pip install 'bellglass[inspect]'

Each sample gets a sandbox of its own, which is deleted when the sample is done. A failure of the service is never told
as output of a command: it is Inspect's SandboxUnavailableError. A command is never run a second time because the first
attempt took too long, whatever `timeout_retry` says: it may have done half of its work.
"""

from __future__ import annotations

import asyncio
import errno
import json
import posixpath
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)
from pydantic import BaseModel

from bellglass import errors
from bellglass.sdk._face import AsyncSandbox
from bellglass.sdk._network import Network
from bellglass.sdk._results import ExecResult as Result

LABEL = {"made-by": "inspect"}
LONGEST_WAITED_S = 600
LONG_COMMAND_BYTES = 512 * 1024
"""A longer one goes into a file: a request is bounded."""
CANNOT_EXECUTE = 126
_UNAVAILABLE = (errors.SandboxGone, errors.NotFound, errors.ServiceError, errors.ClientError, errors.Unauthorized)


class BellglassConfig(BaseModel, frozen=True, extra="forbid"):
    """What sandboxes of samples are like; what is left out is Bellglass's default. `network` is "deny", "open", the
    names of hosts and presets (`{"presets": ["pip"], "allow": ["api.example.com:443"]}`), or all but some addresses
    (`{"mode": "open", "deny": ["203.0.114.0/24"]}`)."""

    template: str = "base"
    lifetime: int | float | str = "6h"
    cpus: float | None = None
    memory: int | str | None = None
    disk: int | str | None = None
    pids: int | None = None
    env: dict[str, str] | None = None
    user: str | None = None
    workdir: str | None = None
    isolation: str | None = None
    at_least: str | None = None
    idle_timeout: int | float | str | None = None
    network: Literal["deny", "open"] | dict[str, str | list[str]] = "deny"
    labels: dict[str, str] | None = None

    def options(self) -> dict[str, Any]:
        """For `AsyncSandbox`."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude={"template", "network", "labels"})
        fields: Any = self.network
        given["network"] = fields if isinstance(fields, str) else Network(**fields)
        given["labels"] = {**(self.labels or {}), **LABEL}
        return given


@sandboxenv(name="bellglass")
class BellglassSandboxEnvironment(SandboxEnvironment):
    """One sandbox of Bellglass. Where the server is and the key come from the environment, as for every client."""

    def __init__(self, box: AsyncSandbox) -> None:
        super().__init__()
        self.box = box

    # --- life -------------------------------------------------------------------------------------------

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, BellglassSandboxEnvironment]:
        settled = _settled(config)
        return {"default": cls(await AsyncSandbox(settled.template, **settled.options()))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: Mapping[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            box = environment.as_type(BellglassSandboxEnvironment).box
            with suppress(errors.NotFound):
                # Also while the sample is being cancelled: what it began is taken back.
                await asyncio.shield(box.delete())

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Of `inspect sandbox cleanup bellglass [ID]`: what a run that was killed has left."""
        async for box in AsyncSandbox.list(labels=LABEL):
            if id in (None, box.id):
                with suppress(errors.NotFound):
                    await box.delete()
            else:
                await box.aclose()

    @classmethod
    def config_files(cls) -> list[str]:
        """Beside the task; found without being named."""
        return ["bellglass.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return BellglassConfig(**config)

    def default_polling_interval(self) -> float:
        return 0.2

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Raises ConnectionError when it does not run."""
        try:
            running = (await self.box.info()).state == "running"
        except errors.BellglassError as error:
            raise ConnectionError(str(error)) from error
        if not running:
            raise ConnectionError(f"sandbox {self.box.id} has ended")
        words = ["bellglass", "shell", *(["--user", user] if user is not None else []), self.box.id]
        return SandboxConnection(type="bellglass", command=shlex.join(words), container=self.box.id)

    # --- commands ---------------------------------------------------------------------------------------

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """As its contract says. A user or folder that does not exist is a failed result, as a missing program is."""
        with _service():
            try:
                if len(json.dumps(cmd)) > LONG_COMMAND_BYTES:
                    cmd = await self._in_a_file(cmd, user)
                result = await self._run(cmd, timeout, input, {"cwd": cwd, "env": env, "user": user})
            except errors.InvalidCommand as error:
                return ExecResult(False, CANNOT_EXECUTE, "", error.message)
        if result.timed_out:
            raise TimeoutError(f"{shlex.join(cmd)[:200]}: not done after {timeout} s")
        if result.exit_code == CANNOT_EXECUTE and "permission denied" in result.stderr.lower():
            raise PermissionError(errno.EACCES, result.stderr.strip())
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if max(result.stdout_total_bytes, result.stderr_total_bytes) > limit:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
                result.stdout if result.stdout_total_bytes > limit else result.stderr,
            )
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def _run(
        self, cmd: list[str], timeout: int | None, input: str | bytes | None, options: dict[str, Any]
    ) -> Result:
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if timeout is not None and timeout <= LONGEST_WAITED_S:
            return await self.box.exec(cmd, timeout=timeout, stdin=input, max_output=limit, **options)
        execution = await self.box.start(cmd, timeout=timeout, stdin_open=input is not None, **options)
        feeding = None if input is None else asyncio.ensure_future(_feed(execution, input))
        try:
            return await execution.wait(max_output=limit)
        except asyncio.CancelledError:
            with suppress(errors.BellglassError):
                await asyncio.shield(execution.kill())
            raise
        finally:
            if feeding is not None:
                feeding.cancel()

    async def _in_a_file(self, cmd: list[str], user: str | None) -> list[str]:
        """A script that removes itself and becomes the command."""
        path = f"/tmp/.bellglass-{secrets.token_hex(8)}"
        script = f'/bin/rm -f -- "$0"\nexec {shlex.join(cmd)}\n'
        await self.box.files.write_text(path, script, permissions=0o600, user=user)
        return ["/bin/sh", path]

    # --- files ------------------------------------------------------------------------------------------

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Where it is, so that the permissions of the file itself count, not those of its folder."""
        raw = contents.encode() if isinstance(contents, str) else contents
        with _service(), _os_errors(file):
            await self.box.files.write_bytes(self._path(file), raw, in_place=True, truncate=True)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _service(), _os_errors(file):
            try:
                raw = await self.box.files.read_bytes(self._path(file), max_bytes=limit)
            except errors.TooLarge as error:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        return raw.decode() if text else raw

    def _path(self, file: str) -> str:
        return posixpath.join(self.box.workdir, file)


def _settled(config: Any) -> BellglassConfig:
    """Of nothing, of a configuration, or of a YAML file that holds one. Raises OSError and ValueError."""
    if config is None:
        return BellglassConfig()
    if isinstance(config, str):
        import yaml  # of Inspect's own

        return BellglassConfig.model_validate(yaml.safe_load(Path(config).read_text()) or {})
    if isinstance(config, BellglassConfig):
        return config
    raise TypeError(f"a sandbox of Bellglass takes a BellglassConfig or a YAML file, not {config!r}")


async def _feed(execution: Any, input: str | bytes) -> None:
    with suppress(errors.BellglassError):  # it ended without reading all of it; how, its result tells
        await execution.write_stdin(input, eof=True)


@contextmanager
def _service() -> Iterator[None]:
    """A failure that is not the command's or the file's."""
    try:
        yield
    except _UNAVAILABLE as error:
        raise SandboxUnavailableError(str(error)) from error


@contextmanager
def _os_errors(file: str) -> Iterator[None]:
    try:
        yield
    except errors.FileMissing as error:
        raise FileNotFoundError(errno.ENOENT, error.message, file) from error
    except errors.FilePermission as error:
        raise PermissionError(errno.EACCES, error.message, file) from error
    except errors.FileTypeMismatch as error:
        if error.details.get("errno") == "EISDIR":
            raise IsADirectoryError(errno.EISDIR, "Is a directory", file) from error
        raise OSError(errno.EINVAL, error.message, file) from error
    except errors.DiskFull as error:
        raise OSError(errno.ENOSPC, error.message, file) from error
