"""The kernel of Python: IPython's shell behind the host's channel.

What a cell prints goes to descriptors 1 and 2 like that of any program it starts, in the order in which it was
written. Everything else (results, errors) goes over the channel, behind what was printed before it.
"""

import asyncio
import builtins
import getpass
import importlib
import json
import os
import signal
import site
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from bellglass_kernels import display
from bellglass_kernels.lines import Lines, encode

MAX_NAME, MAX_VALUE, MAX_TRACEBACK = 1024, 32 * 1024, 32 * 1024


class Channel:
    """To the host. What was printed before a message is flushed before it."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)

    def send(self, event: str, **fields: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # the cell has closed or replaced it
        self.socket.sendall(encode({"event": event, **fields}))


class Results(DisplayPublisher):
    """`display(...)`, and whatever else publishes."""

    def publish(self, data: dict[str, Any], metadata: Any = None, **_: Any) -> None:
        self.shell.send_result(data, main=False)

    def clear_output(self, wait: bool = False) -> None:
        pass  # what has been told stays told


class LastValue(DisplayHook):
    """The value of a cell's last expression."""

    def start_displayhook(self) -> None:
        pass

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
        self.shell.send_result(format_dict, main=True)

    def finish_displayhook(self) -> None:
        pass


class Shell(InteractiveShell):
    channel: Channel
    has_failed = False
    """In the run that goes."""
    is_telling = False
    """Of an error; an interrupt would take it away."""

    def send_result(self, data: dict[str, Any], *, main: bool) -> None:
        shown, dropped = display.shown(data)
        more = {"dropped": dropped} if dropped else {}
        self.channel.send("result", main=main, data=shown, **more)

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        self.is_telling = True
        try:
            super().showtraceback(*args, **kwargs)
        finally:
            self.is_telling = False

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        name, value = str(getattr(etype, "__name__", etype)), _text(evalue)
        if etype is asyncio.CancelledError:
            name = "KeyboardInterrupt"  # that is how a cell that waits is interrupted
        self.send_error(name, value, display.plain("\n".join(stb)))

    def send_error(self, name: str, value: str, traceback: str) -> None:
        self.has_failed = True
        self.channel.send(
            "error",
            name=name[:MAX_NAME],
            value=display.cut(value, MAX_VALUE),
            traceback=display.cut(traceback, MAX_TRACEBACK),
        )

    def system(self, cmd: str) -> None:
        """`!command`: its output is ours, in order; it reads nothing."""
        done = subprocess.run(
            self.var_expand(cmd, depth=1), shell=True, executable="/bin/bash", stdin=subprocess.DEVNULL
        )
        self.user_ns["_exit_code"] = done.returncode

    system_piped = system_raw = system

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str, str]:
        """`%matplotlib` of any kind: there is one backend here."""
        import matplotlib

        matplotlib.use(display.BACKEND)
        return "inline", display.BACKEND

    def ask_exit(self) -> None:
        raise SystemExit(0)

    def init_history(self) -> None:
        self.config.HistoryManager.enabled = False
        super().init_history()


def _text(value: object) -> str:
    try:
        return display.clean(str(value))
    except Exception as error:
        return f"<its text can't be had: {type(error).__name__}>"


class Kernel:
    def __init__(self, fd: int) -> None:
        self.channel = Channel(fd)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.lines = Lines()
        self.running = False
        self.task: asyncio.Task[Any] | None = None
        signal.signal(signal.SIGINT, self.on_interrupt)
        sys.stdout, sys.stderr = _stream(1), _stream(2)
        _paths()
        config = Config()
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.autoindent = False
        Shell.displayhook_class, Shell.display_pub_class = LastValue, Results
        folder = Path.home() / ".cache/ipython"
        self.shell = Shell.instance(config=config, ipython_dir=str(folder))
        self.shell.channel = self.channel
        self.shell.display_trap.hook = self.shell.displayhook
        display.install(self.shell)
        builtins.input = _no_input
        getpass.getpass = _no_input  # type: ignore[assignment]

    def serve(self) -> int:
        self.channel.send("ready")
        while True:
            data = self.loop.run_until_complete(self.loop.sock_recv(self.channel.socket, 65536))
            if not data:
                return 0
            for line in self.lines.feed(data):
                self.run(**json.loads(line))

    def run(self, code: str, env: dict[str, str]) -> None:
        before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        importlib.invalidate_caches()
        self.running, self.shell.has_failed = True, False
        try:
            self.channel.send("started", count=self.shell.execution_count)
            self.run_cell(code)
        except BaseException as error:
            # What IPython itself stumbles over: an exception that can't be shown, an interrupt while it shows one.
            self.running = False
            if not self.shell.has_failed:
                self.shell.send_error(type(error).__name__, _text(error), "")
        finally:
            self.running = False
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        self.channel.send("end")

    def run_cell(self, code: str) -> None:
        shell, problem = self.shell, None
        try:
            transformed = shell.transform_cell(code)
        except Exception:
            transformed, problem = code, sys.exc_info()
        cell = shell.run_cell_async(
            code, store_history=True, transformed_cell=transformed, preprocessing_exc_tuple=problem
        )
        self.task = self.loop.create_task(cell)
        try:
            self.loop.run_until_complete(self.task)
        finally:
            self.task = None
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", None)

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.running or self.shell.is_telling:
            return
        if self.task is not None and asyncio.current_task(self.loop) is not self.task and not self.task.done():
            # It waits, and nothing of it is on the stack.
            self.loop.call_soon_threadsafe(self.task.cancel)
            return
        raise KeyboardInterrupt


def _stream(fd: int) -> TextIO:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _no_input(prompt: object = "", *_: object) -> str:
    raise RuntimeError(
        "input() can't be answered here: nobody is at the keyboard. Put the value into the code, or read it from a file"
    )


def _paths() -> None:
    """The current folder first, as in a notebook; and where `pip install` puts things although nothing is there yet."""
    sys.path.insert(0, "")
    folder = site.getusersitepackages()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if folder not in sys.path:
        sys.path.insert(1, folder)


def main(fd: int) -> int:
    return Kernel(fd).serve()
