"""Standard input, long output and folders through the SDK in a real sandbox."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bellglass import Conflict, Sandbox, SandboxGone


@pytest.mark.parametrize("size", [0, 1, 65_536, 512 * 1024, 512 * 1024 + 1, 20_000_000])
def test_stdin_arrives_exactly(shared_box: Any, size: int) -> None:
    data = os.urandom(size)
    result = shared_box.exec(["sha256sum"], stdin=data, timeout=120)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_stdin_from_files_and_iterators(shared_box: Any) -> None:
    assert shared_box.exec(["wc", "-c"], stdin=io.BytesIO(b"x" * 1_000_000)).stdout.strip() == "1000000"
    assert shared_box.exec(["cat"], stdin=iter(["é", b"\xff"])).stdout_raw == "é".encode() + b"\xff"
    assert shared_box.exec(["cat"], timeout=20).stdout == ""


def test_a_script_larger_than_an_argument_may_be(shared_box: Any) -> None:
    script = "".join(f"x{number}={number}\n" for number in range(30_000)) + "print(x29999)\n"
    assert len(script) > 300_000
    assert shared_box.exec(["python3", "-"], stdin=script).stdout == "29999\n"
    assert shared_box.exec("cat << 'EOF' > /tmp/t\nhello\nEOF\ncat /tmp/t").stdout == "hello\n"
    assert shared_box.exec("cat << 'EOF'\nno end", timeout=20).exit_code == 0  # bash warns and goes on
    assert shared_box.exec(["echo", "alive"]).ok


def test_input_that_the_program_does_not_take_holds_nothing_up(shared_box: Any) -> None:
    begun = time.monotonic()
    result = shared_box.exec("echo done", stdin=iter([b"z" * 1_000_000] * 20), timeout=60)
    assert result.stdout == "done\n"
    result = shared_box.exec("sleep 1; exec head -c 5", stdin=iter([b"z" * 1_000_000] * 20), timeout=60)
    assert result.stdout == "zzzzz"
    timed = shared_box.exec(["sleep", "60"], stdin=iter([b"z" * 1_000_000] * 20), timeout=1)
    assert timed.timed_out
    assert time.monotonic() - begun < 30


def test_a_conversation(shared_box: Any) -> None:
    execution = shared_box.start(["python3", "-u", "-c", "while True: print(eval(input()))"], stdin_open=True)
    try:
        position = 0
        for question, answer in (("1+1", "2\n"), ("'é'*3", "ééé\n")):
            execution.write_stdin(question + "\n")
            heard = ""
            for chunk in execution.output(offset=position):
                heard += chunk.text
                position += len(chunk.data)
                if heard.endswith("\n"):
                    break
            assert heard == answer
        execution.close_stdin()
        assert execution.wait().exit_code == 1
        with pytest.raises(Conflict):
            execution.write_stdin("late")
    finally:
        execution.kill()


def test_a_flood_is_bounded_in_the_client(shared_box: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = shared_box.exec(["yes"], timeout=3, max_output="1MiB")
    assert result.timed_out and result.truncated
    assert len(result.stdout_raw) == 1 << 20 and result.stdout_total_bytes > 10 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_folders_go_in_and_out(shared_box: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    for number in range(50):
        (source / f"deep/f{number}").write_bytes(os.urandom(number * 1000))
    (source / "deep/er/é ü").write_text("text")
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    (source / "inner").symlink_to("deep/er")
    (source / "outer").symlink_to("/etc/passwd")
    assert shared_box.files.upload_dir(source, "p") == ["outer"]
    assert shared_box.exec(["./p/run"]).stdout == "ran\n"
    assert shared_box.exec("stat -c %U:%a p/run").stdout == "user:755\n"
    shared_box.exec("ln -s /etc/shadow p/evil; mkfifo p/fifo; ln -s ../../.. p/up; chmod 4755 p/run", check=True)
    back = tmp_path / "back"
    left_out = shared_box.files.download_dir("p", back)
    assert {"evil", "up"} <= set(left_out)
    assert not (back / "evil").is_symlink() and not (back / "fifo").exists()
    assert (back / "run").stat().st_mode & 0o7777 == 0o755
    for path in source.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert (back / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert (back / "inner").readlink() == Path("deep/er")


def test_uploads_are_visible_at_once(shared_box: Any) -> None:
    for number in range(100):
        shared_box.files.write_text("seen", str(number))
        assert shared_box.exec(["cat", "seen"]).stdout == str(number)


def test_a_sandbox_that_goes_during_an_upload(new_box: Any, stack: Any) -> None:
    box = new_box()
    other = Sandbox.connect(box.id, api_url=stack.api_url, api_key=stack.api_key)
    timer = threading.Timer(0.3, other.delete)

    def slow() -> Iterator[bytes]:
        timer.start()
        for _ in range(100):
            yield b"x" * 10_000
            time.sleep(0.02)

    with pytest.raises(SandboxGone) as caught:
        box.files.upload(slow(), "x")
    timer.join()
    assert caught.value.details["reason"] == "user"
