"""`bellglass up` as a function: everything from an empty folder to an API that answers, told step by step.

With `detach` the work is done by a process in a session of its own (`python -m bellglass.supervise`), which sends its
steps and its outcome through a pipe as JSON lines; the caller returns when the API answers, that process is then the
supervisor.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bellglass import settings as settings_module
from bellglass.datadir import DataDir, cache_dir
from bellglass.errors import InternalError, NotSupported, SandboxFailed, from_dict
from bellglass.settings import Settings
from bellglass.supervise import launch, profile, service
from bellglass.supervise.control import Lock
from bellglass.supervise.install import prepare
from bellglass.supervise.profile import Profile
from bellglass.supervise.supervisor import Say, Supervisor, block_signals

if TYPE_CHECKING:
    from bellglass.node.image.progress import BuildProgress

BUILD_PREFIX = "template base: "
"""Steps that begin so are phases of the build; the step without a colon ends it."""
AGENT_DIR = Path(__file__).resolve().parents[1] / "_agent"


def build_progress() -> BuildProgress:
    """A bar for the phases of the base template's build."""
    # Only who shows one loads it: the supervisor has no terminal and does without rich's memory.
    from bellglass.node.image.progress import BuildProgress

    return BuildProgress("base")


def templates_dir(settings: Settings) -> Path:
    return Path(settings["node.templates_dir"] or cache_dir() / "templates")


def start(data: DataDir, *, listen: str | None, port: int | None, say: Say) -> tuple[Supervisor, Profile]:
    """Prepare and start. Raises BellglassError with the next step; nothing of it then runs."""
    settings = settings_module.load(data.settings_file)
    require_root(settings, data)
    require_packages()
    require_agent()
    block_signals()
    begun = time.monotonic()
    installation = prepare(data)
    lock = Lock(data)
    lock.take()
    say(f"data folder {data.root}, installation {installation.id}", time.monotonic() - begun)
    if needs_root(settings):
        ensure_base_template(settings, say)
    supervisor = Supervisor(installation, settings, listen, port, say, lock)
    found = supervisor.start()
    return supervisor, found


def needs_root(settings: Settings) -> bool:
    return bool(settings["node.driver"] != "fake")


def require_root(settings: Settings, data: DataDir) -> None:
    """Raises NotSupported with the command that has it."""
    if needs_root(settings) and os.geteuid() != 0:
        raise NotSupported(
            "the container tier needs root for its helper",
            # In full: sudo's PATH has no venv.
            hint=f"run: sudo {shutil.which('bellglass') or sys.argv[0]} up{data.option}",
        )


def require_packages() -> None:
    """The client alone installs without them. Raises SandboxFailed."""
    missing = [name for name in ("fastapi", "sqlalchemy", "structlog", "uvloop") if find_spec(name) is None]
    if missing:
        raise SandboxFailed(
            f"the server's packages are not installed: {', '.join(missing)}",
            hint="run in the checkout: pip install '.[server]'",
        )


def require_agent() -> Path:
    """The agent's binary for this machine; the helper's launcher is there too. Raises SandboxFailed naming
    `make agent`."""
    machine = os.uname().machine
    binary = AGENT_DIR / f"bellglass-agent-{machine}"
    for what, path in (("guest agent", binary), ("helper's launcher", AGENT_DIR / f"bellglass-launch-{machine}")):
        if not path.is_file():
            raise SandboxFailed(f"the {what} for {machine} is not built", hint="run: make agent")
    return binary


def ensure_base_template(settings: Settings, say: Say) -> None:
    """Build `base` where it is missing (about half a minute, as root)."""
    from bellglass.node.image import build, recipe

    begun = time.monotonic()
    wanted = recipe.load(recipe.recipes_dir() / "base")
    extra_ca = Path(settings["node.extra_ca"]) if settings["node.extra_ca"] else None
    built = build.build(
        wanted,
        templates_dir(settings),
        extra_ca=extra_ca,
        progress=lambda phase: say(f"{BUILD_PREFIX}{phase}", time.monotonic() - begun),
    )
    say(f"template base {built.digest[:12]}", time.monotonic() - begun)


def run_foreground(
    data: DataDir, *, listen: str | None, port: int | None, say: Say, ready: Callable[[Profile], None]
) -> None:
    supervisor, found = start(data, listen=listen, port=port, say=say)
    profile.publish(found, profile.profile_files())
    ready(found)
    service.ready(found.api_url)
    supervisor.run()


def run_detached(data: DataDir, *, listen: str | None, port: int | None, say: Say) -> Profile:
    """Start in the background; answers when the API does."""
    require_root(settings_module.load(data.settings_file), data)
    read, write = os.pipe2(os.O_CLOEXEC)
    argv = launch.python("bellglass.supervise", "--data-dir", str(data.root.absolute()), "--report-fd", str(write))
    argv += ["--listen", listen] if listen is not None else []
    argv += ["--port", str(port)] if port is not None else []
    # A program of its own, not a fork of this one: it stays, and has no use for what a command line imports.
    process = subprocess.Popen(argv, pass_fds=(write,), start_new_session=True, cwd="/")
    os.close(write)
    with os.fdopen(read) as lines:
        for line in lines:
            message = json.loads(line)
            if "step" in message:
                say(message["step"], message["seconds"])
            elif "error" in message:
                process.wait()
                raise from_dict(message)
            else:
                found = Profile(**message["profile"])
                profile.publish(found, profile.profile_files())
                return found
    process.wait()
    raise InternalError("the supervisor died while it started", hint=f"see {data.logs_dir / 'supervisor.log'}")
