#!/usr/bin/env python3
"""A kernel host as an attacker would have it: it speaks the lines, and its code may say anything in its name.

`emit(event)`, `raw(bytes)`, `say(text)`, `run_id`, `cwd` and `os` are there for that code.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import sys
import threading
import traceback
from typing import Any

language = sys.argv[sys.argv.index("--language") + 1]
cwd = sys.argv[sys.argv.index("--cwd") + 1]
asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
busy = threading.Event()
had: set[str] = set()


def raw(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def emit(event: dict[str, Any]) -> None:
    raw(json.dumps(event).encode() + b"\n")


def listen() -> None:
    for line in sys.stdin.buffer:
        try:
            request = json.loads(line)
        except ValueError:
            continue
        if request["op"] == "interrupt":
            if busy.is_set():
                _thread.interrupt_main()
        elif request["run"] not in had:
            had.add(request["run"])
            asked.put(request)
    os._exit(0)


threading.Thread(target=listen, daemon=True).start()
emit({"event": "ready", "language": language})
state: dict[str, Any] = {"emit": emit, "raw": raw, "cwd": cwd, "os": os}
count = 0
while True:
    request = asked.get()
    count, run_id = count + 1, request["run"]
    state |= {"run_id": run_id, "say": lambda text, run=run_id: emit({"event": "stdout", "run": run, "text": text})}
    try:
        busy.set()
        emit({"event": "started", "run": run_id, "count": count})
        before = {name: os.environ.get(name) for name in request["env"]}
        os.environ.update(request["env"])
        exec(request["code"], state)
    except BaseException as error:
        shown = traceback.format_exc()
        emit({"event": "error", "run": run_id, "name": type(error).__name__, "value": str(error), "traceback": shown})
    finally:
        busy.clear()
    emit({"event": "end", "run": run_id})
