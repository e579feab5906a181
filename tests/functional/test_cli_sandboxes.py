"""The command line with a real installation, each command a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from bellglass.testing.stack import bellglass_command

SMALL = ("--cpus", "1", "--memory", "512MiB", "--disk", "1GiB", "--label", "from=run")


def out(stack: Any, *words: str, code: int = 0, stdin: bytes = b"") -> str:
    done = stack.command(*words, stdin=stdin)
    assert done.returncode == code, done.stderr.decode()
    return str(done.stdout.decode())


def test_run(stack: Any) -> None:
    assert out(stack, "run", *SMALL, "--", "python3", "-c", "print(6 * 7)") == "42\n"
    done = stack.command("run", *SMALL, "--", "sh", "-c", "echo e >&2; exit 9")
    assert (done.returncode, done.stderr) == (9, b"e\n")
    document = json.loads(out(stack, "run", *SMALL, "--json", "--timeout", "1", "--", "sleep", "60", code=137))
    assert document["timed_out"] and document["signal"] == "SIGKILL"
    assert out(stack, "ls", "--json", "--label", "from=run") == ""


def test_run_with_inputs_and_stdin(stack: Any, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("region,amount\n")
    shown = out(stack, "run", *SMALL, "--input", str(tmp_path / "sales.csv"), "--", "cat", "/inputs/sales.csv")
    assert shown == "region,amount\n"
    assert out(stack, "run", *SMALL, "-i", "--", "wc", "-c", stdin=b"x" * 2_000_000).strip() == "2000000"
    assert out(stack, "run", *SMALL, "--", "cat", stdin=b"not asked for") == ""


def test_a_life(stack: Any, no_leak: None, tmp_path: Path) -> None:
    id = out(stack, "create", *SMALL, "--name", "cli", "--owner", "ann", "--label", "a=b").strip()
    try:
        assert json.loads(out(stack, "ls", "--json", "--owner", "ann"))["id"] == id
        assert "container" in out(stack, "ls") and id in out(stack, "ls")
        (tmp_path / "data").mkdir()
        (tmp_path / "data/x").write_bytes(os.urandom(3_000_000))
        out(stack, "cp", str(tmp_path / "data"), f"{id}:/home/user")
        out(stack, "exec", id, "--", "sh", "-c", "cp data/x data/y && test $(id -u) = 1000")
        out(stack, "cp", f"{id}:data", str(tmp_path / "back"))
        assert (tmp_path / "back/y").read_bytes() == (tmp_path / "data/x").read_bytes()
        out(stack, "cp", f"{id}:data/x", str(tmp_path / "single"))
        assert (tmp_path / "single").stat().st_size == 3_000_000
        started = out(stack, "exec", "-d", id, "--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep .2; done").strip()
        assert out(stack, "logs", id, started, "-f") == "1\n2\n3\n"
        assert out(stack, "logs", id) == "1\n2\n3\n"
    finally:
        out(stack, "rm", id)
    done = stack.command("exec", id, "--", "true")
    assert done.returncode == 1 and done.stderr.startswith(b"error: ") and b"Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("-i",)], ids=["plain", "interactive"])
def test_an_open_pipe_on_stdin_holds_nothing_up(stack: Any, shared_box: Any, options: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    begun = time.monotonic()
    process = subprocess.Popen(
        [*bellglass_command(), "exec", *options, shared_box.id, "--", "echo", "hi"],
        stdin=reading,
        stdout=subprocess.PIPE,
        env={**os.environ, **stack.environment},
    )
    os.close(reading)
    try:
        assert process.communicate(timeout=30)[0] == b"hi\n"
        assert process.returncode == 0 and time.monotonic() - begun < 10
        timed = subprocess.run(
            [*bellglass_command(), "exec", *options, "--timeout", "1", shared_box.id, "--", "sleep", "60"],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **stack.environment},
            check=False,
            timeout=30,
        )
        assert timed.returncode == 137
    finally:
        os.close(writing)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_no_sandbox(stack: Any, number: int, code: int) -> None:
    process = subprocess.Popen(
        [*bellglass_command(), "run", *SMALL, "--", "sh", "-c", "echo begun; sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **stack.environment},
    )
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, b"")
    assert out(stack, "ls", "--json", "--label", "from=run") == ""


def test_keys_and_templates(stack: Any) -> None:
    created = json.loads(out(stack, "keys", "create", "--project", "cli", "--label", "x", "--json"))
    listed = [json.loads(line) for line in out(stack, "keys", "ls", "--json").splitlines()]
    assert created["id"] in [key["id"] for key in listed] and all(key["secret"] is None for key in listed)
    done = stack.command("ls", environment={"BELLGLASS_API_KEY": created["secret"]})
    assert done.returncode == 0
    out(stack, "keys", "rm", created["id"])
    done = stack.command("ls", environment={"BELLGLASS_API_KEY": created["secret"]})
    assert done.returncode == 1 and created["secret"].encode() not in done.stderr
    assert "base" in out(stack, "templates", "ls")
