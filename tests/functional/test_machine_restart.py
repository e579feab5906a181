"""The machine restarts: its sandboxes end as `node_lost`, and their disks, outputs and logs stay readable."""

from __future__ import annotations

import os
import signal
import time
from hashlib import sha256

import pytest

from bellglass import BellglassError, FilePermission, NotFound, SandboxGone
from bellglass.supervise.processes import ProcessId
from bellglass.testing.machine_restart import restart_machine
from tests.conftest import SANDBOX_OPTIONS
from tests.functional.own import status_code
from tests.functional.waiting import wait_until

BEFORE = """
mkdir -p job/deep && echo kept > job/a && head -c 300000 /dev/urandom > job/deep/b && sha256sum < job/deep/b
ln -s a job/link; sudo sh -c 'echo root only > /root/secret; chmod 600 /root/secret'
"""


def kept_alone(stack, sandbox_id):
    return sorted(os.listdir(stack.data.sandbox_dir(sandbox_id))) == ["disk.img", "machine.json"]


def test_a_restarted_machine_ends_its_sandboxes_and_leaves_what_they_wrote(own_stack, tmp_path):
    box, deleted = own_stack.sandbox(**SANDBOX_OPTIONS), own_stack.sandbox(**SANDBOX_OPTIONS)
    digest = box.exec(BEFORE, check=True).stdout.split()[0]
    done = box.exec("echo done; exit 3")
    running = box.start("echo out; echo err >&2; sleep 31200")
    wait_until(lambda: running.status().output_bytes == 8, 10, "no output")
    deleted.delete()
    restart_machine(own_stack)
    assert own_stack.data.sandbox_dir(box.id).exists()
    own_stack.up()

    api = {"api_url": own_stack.api_url, "api_key": own_stack.api_key}
    again = type(box).connect(box.id, **api)
    wait_until(lambda: again.info().state == "ended", 15, "it is not ended")
    info = again.info()
    assert (info.termination_reason, info.message) == ("node_lost", "the host was restarted")
    with pytest.raises(SandboxGone) as gone:
        again.exec(["true"])
    assert gone.value.details["reason"] == "node_lost" and gone.value.details["ended_at"] == info.ended_at
    with pytest.raises(NotFound):
        type(box).connect(deleted.id, **api)

    # Outputs and logs
    record = again.execution(done.execution_id).status()
    assert (record.state, record.exit_code) == ("exited", 3)
    assert "".join(event.text for event in again.execution(done.execution_id).output()) == "done\n"
    record = again.execution(running.id).status()
    assert (record.state, record.exit_code, record.output_bytes) == ("lost", None, 8)
    logs = own_stack.command("logs", box.id, running.id)
    assert b"out\n" in logs.stdout + logs.stderr, logs

    # The disk, once all else of it is given back
    wait_until(lambda: kept_alone(own_stack, box.id), 15, "more than its disk is left")
    assert again.files.read_text("job/a") == "kept\n" and again.files.read_text("job/link") == "kept\n"
    assert {entry.name for entry in again.files.list("job")} == {"a", "deep", "link"}
    with pytest.raises(FilePermission):
        again.files.read_text("/root/secret")
    assert again.files.read_text("/root/secret", user="root") == "root only\n"
    again.files.download_dir("job", tmp_path / "all")
    copied = own_stack.command("cp", f"{box.id}:job/deep/b", str(tmp_path / "b"))
    assert copied.returncode == 0, copied.stderr
    for path in (tmp_path / "all/deep/b", tmp_path / "b"):
        assert sha256(path.read_bytes()).hexdigest() == digest
    with pytest.raises(SandboxGone):
        again.files.write_text("job/new", "x")

    # A reader that its node leaves behind goes; the disk does not.
    assert not kept_alone(own_stack, box.id), "a reader is up"
    node = ProcessId.of(own_stack.pids()["node"])
    node.send(signal.SIGKILL)
    assert node.wait(time.monotonic() + 5)
    wait_until(lambda: status_code(own_stack) == 0, 15, "no node")
    wait_until(lambda: kept_alone(own_stack, box.id), 15, "the reader stays")
    wait_until(lambda: reads(again), 15, "it can't be read again")
    disk = own_stack.status()["capacity"]["resources"]["disk"]["committed"]
    assert disk >= 2**30, "it is counted"

    # Others come and go beside it; a delete takes it.
    other = own_stack.sandbox(**SANDBOX_OPTIONS)
    assert other.exec(["true"]).ok
    other.delete()
    other.close()
    again.delete()
    assert not own_stack.data.sandbox_dir(box.id).exists()
    with pytest.raises(NotFound):
        type(box).connect(box.id, **api)
    wait_until(lambda: own_stack.status()["capacity"]["resources"]["disk"]["committed"] == 0, 10, "it is still counted")
    for made in (box, deleted):
        made.close()


def reads(box):
    try:
        return box.files.read_text("job/a") == "kept\n"
    except BellglassError as error:
        assert error.retryable, error
        return False


def test_down_with_sandboxes_takes_kept_disks_along(own_stack):
    box = own_stack.sandbox(**SANDBOX_OPTIONS)
    box.files.write_text("a", "b")
    restart_machine(own_stack)
    own_stack.up()
    wait_until(lambda: kept_alone(own_stack, box.id), 15, "no kept disk")
    own_stack.down(sandboxes=True)
    assert not list(own_stack.data.sandboxes_dir.iterdir())
    own_stack.up()
    box.close()
