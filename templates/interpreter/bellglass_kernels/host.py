"""One kernel for the life of this process: lines of JSON in on standard input, events as lines of JSON out.

    host --language python|javascript|bash --cwd DIR

In:  {"op":"run","run":ID,"code":TEXT,"env":{...}}   {"op":"interrupt"}
Out: ready, started, stdout, stderr, result, error, died, end; each has its name in `event`, and `run` but for `ready`.

Runs go one after the other. A kernel that dies is told of (`died`) and followed by a fresh one, whose `ready` says
`state_lost`; if it died between runs, `started` of the next says so too. A run whose id was there before is sent again
by somebody who doesn't know, and passed over. Standard input at its end means: no more runs, and the process ends with
the last.
"""

import argparse
import codecs
import fcntl
import json
import os
import selectors
import signal
import struct
import sys
import termios
import time
from collections import deque
from typing import Any

from bellglass_kernels import launch
from bellglass_kernels.lines import Event, Lines, Writer

INTERRUPT_S = 5.0
"""From an interrupt until a kernel that goes on is killed."""
MAX_FAILED_STARTS = 3
REMEMBERED_RUNS = 64
_READ = 64 * 1024


class Host:
    def __init__(self, language: str, cwd: str) -> None:
        self.language, self.cwd = language, cwd
        self.out = Writer(1)
        self.selector = selectors.DefaultSelector()
        self.commands = Lines()
        self.queue: deque[Event] = deque()
        self.run: str | None = None
        self.last_run: str | None = None
        self.started = False
        self.interrupted = False
        self.kill_at: float | None = None
        self.we_killed = False
        self.input_open = True
        self.failed_starts = 0
        self.lost = False
        self.lost_idle = False
        self.seen: deque[str] = deque(maxlen=REMEMBERED_RUNS)
        self.reading = False

    # Its life

    def serve(self) -> int:
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ, self.on_input)
        self.start_kernel()
        while self.input_open or self.run is not None or self.queue or self.out.waiting_bytes:
            wait = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
            for key, _ in self.selector.select(wait):
                if key.fileobj in self.selector.get_map():
                    key.data()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.kill_at, self.we_killed = None, True
                self.kernel.signal(signal.SIGKILL)
            self.hold_back()
        self.kernel.signal(signal.SIGKILL)
        return 0

    def hold_back(self) -> None:
        """While the reader of our lines is behind, the kernel's output stays where it is."""
        behind = self.out.is_behind
        if self.out.waiting_bytes and 1 not in self.selector.get_map():
            self.selector.register(1, selectors.EVENT_WRITE, self.out.flush)
        elif not self.out.waiting_bytes and 1 in self.selector.get_map():
            self.selector.unregister(1)
        if behind and self.reading:
            self.stop_reading()
        elif not behind and not self.reading:
            self.start_reading()

    def start_reading(self) -> None:
        kernel = self.kernel
        self.selector.register(kernel.stdout, selectors.EVENT_READ, lambda: self.on_text("stdout"))
        self.selector.register(kernel.stderr, selectors.EVENT_READ, lambda: self.on_text("stderr"))
        self.selector.register(kernel.channel, selectors.EVENT_READ, self.on_message)
        self.selector.register(kernel.pidfd, selectors.EVENT_READ, self.on_death)
        self.reading = True

    def stop_reading(self) -> None:
        for file in (self.kernel.stdout, self.kernel.stderr, self.kernel.channel, self.kernel.pidfd):
            if file in self.selector.get_map():
                self.selector.unregister(file)
        self.reading = False

    def start_kernel(self) -> None:
        self.kernel = launch.start(self.language, self.cwd)
        self.messages = Lines()
        self.decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self.is_ready = False
        self.start_reading()

    # What comes

    def on_input(self) -> None:
        data = os.read(0, _READ)
        if not data:
            self.input_open = False
            self.selector.unregister(0)
        for line in self.commands.feed(data):
            try:
                command = json.loads(line)
            except ValueError:
                continue  # the end of a line whose beginning was lost with its writer
            if command["op"] == "interrupt":
                self.interrupt()
            elif command["op"] == "run" and command["run"] not in self.seen:
                self.seen.append(command["run"])
                self.queue.append(command)
                self.next_run()

    def next_run(self) -> None:
        if self.run is None and self.queue and self.is_ready:
            command = self.queue.popleft()
            self.run = self.last_run = command["run"]
            self.started = self.interrupted = False
            self.kernel.run(command["code"], command.get("env") or {})

    def interrupt(self) -> None:
        if self.run is None:
            return
        if self.kill_at is None:
            self.kill_at = time.monotonic() + INTERRUPT_S
        self.interrupted = True
        # Before it has begun the signal would interrupt nothing.
        if self.started:
            self.kernel.signal(signal.SIGINT)

    def on_text(self, name: str, limit: int = _READ) -> None:
        file = getattr(self.kernel, name)
        if self.run is not None and not self.started:
            self.on_message()  # that it has begun is told first
        try:
            data = os.read(file, limit)
        except BlockingIOError:
            return
        if not data:
            self.selector.unregister(file)  # the kernel closed it, or is about to be told dead
            return
        if self.language == "bash" and not self.is_ready:
            return  # a shell without a terminal says so
        if text := self.decoders[name].decode(data):
            self.out.send({"event": name, "run": self.last_run, "text": text})

    def drain(self) -> None:
        """What has been written up to now; a program in the background may be writing on."""
        for name in ("stdout", "stderr"):
            file = getattr(self.kernel, name)
            left = struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0" * 4))[0]
            while left > 0 and file in self.selector.get_map():
                self.on_text(name, min(left, _READ))
                left -= _READ

    def on_message(self) -> None:
        try:
            data = os.read(self.kernel.channel, _READ)
        except (BlockingIOError, ConnectionResetError):
            return
        if not data:
            self.selector.unregister(self.kernel.channel)
            return
        for line in self.messages.feed(data):
            message = json.loads(line)
            if message["event"] != "started":
                self.drain()  # written before this message, so it is told before it
            self.take(message)

    def take(self, message: Event) -> None:
        kind = message.pop("event")
        if kind == "ready":
            self.is_ready, self.failed_starts = True, 0
            self.out.send({"event": "ready", "language": self.language} | ({"state_lost": True} if self.lost else {}))
            self.next_run()
        elif kind == "end":
            if status := message.get("status"):
                self.tell_status(status)
            self.end_run()
        elif kind == "started":
            lost, self.lost_idle = self.lost_idle, False
            self.out.send({"event": kind, "run": self.run, **message} | ({"state_lost": True} if lost else {}))
            self.started = True
            if self.interrupted:
                self.kernel.signal(signal.SIGINT)
        elif self.run is not None:
            self.out.send({"event": kind, "run": self.run, **message})

    def tell_status(self, status: int) -> None:
        """Of bash, whose last command failed."""
        name, value = "ExitStatus", f"the last command ended with {status}"
        if self.interrupted:
            name, value = "KeyboardInterrupt", "the run was interrupted"
        self.out.send({"event": "error", "run": self.run, "name": name, "value": value, "traceback": ""})

    def end_run(self) -> None:
        for name, decoder in self.decoders.items():
            if text := decoder.decode(b"", final=True):
                self.out.send({"event": name, "run": self.run, "text": text})
            decoder.reset()
        self.out.send({"event": "end", "run": self.run})
        self.run = self.kill_at = None
        self.next_run()

    def on_death(self) -> None:
        # Its last words: the channel holds them after the process is gone.
        while self.kernel.channel in self.selector.get_map():
            self.on_message()
        self.drain()
        self.stop_reading()
        reason = self.kernel.reap()
        if self.we_killed:
            reason["interrupted"] = True
        self.out.send({"event": "died", "run": self.run, **reason})
        self.failed_starts += not self.is_ready
        if self.failed_starts >= MAX_FAILED_STARTS:
            sys.exit(f"the kernel dies whenever it is started: {reason}")
        self.lost, self.we_killed = True, False
        self.lost_idle = self.run is None
        self.start_kernel()
        if self.run is not None:
            self.end_run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="host", description="A kernel behind lines of JSON.")
    parser.add_argument("--language", choices=launch.LANGUAGES, required=True)
    parser.add_argument("--cwd", required=True)
    options: Any = parser.parse_args()
    return Host(options.language, options.cwd).serve()
