"""An older database is restored: what it does not know stands still, is shown, goes on when adopted, or is removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from bellglass import BellglassError, NotFound, SandboxGone
from bellglass.supervise.processes import ProcessId
from bellglass.testing.leaks import assert_no_leak
from bellglass.testing.stack import Stack
from tests.conftest import SANDBOX_OPTIONS, snapshot_of_nothing

COUNT = "i=0; while :; do i=$((i+1)); echo $i > count; echo $i; sleep 0.05; done"


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def own():
    running = Stack.start()
    scope = running.scope
    try:
        yield running
    finally:
        running.close()
    assert_no_leak(snapshot_of_nothing(scope), deadline_s=10)


def quarantined(stack):
    done = stack.command("quarantine", "ls", "--json", "--data-dir", str(stack.data_dir))
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["id"]: json.loads(line) for line in done.stdout.splitlines()}


def test_a_restored_older_database(own):
    known, ended = own.sandbox(**SANDBOX_OPTIONS), own.sandbox(**SANDBOX_OPTIONS)
    backup = own.data_dir / "backup.db"
    source, target = sqlite3.connect(own.data.database_file), sqlite3.connect(backup)
    source.backup(target)
    source.close()
    target.close()
    ended.delete()
    wanted = own.sandbox(**SANDBOX_OPTIONS, name="wanted", labels={"a": "b"})
    unwanted, by_hand = own.sandbox(**SANDBOX_OPTIONS), own.sandbox(**SANDBOX_OPTIONS)
    job = wanted.start(["sh", "-c", COUNT])
    wait_until(lambda: job.status().output_bytes, 10, "the job has not begun")
    pid = wanted.exec(["pgrep", "-f", "echo .i > count"]).stdout.split()[0]

    own.down(sandboxes=False)
    for name in ("bellglass.db-wal", "bellglass.db-shm"):
        (own.data.server_dir / name).unlink(missing_ok=True)
    owner = own.data.database_file.stat()
    shutil.copyfile(backup, own.data.database_file)
    assert own.data.database_file.stat().st_uid == owner.st_uid
    own.up()

    strangers = {wanted.id, unwanted.id, by_hand.id}
    wait_until(lambda: set(quarantined(own)) == strangers, 15, "not all of them are there")
    found = quarantined(own)
    assert own.status()["quarantined"] == 3
    plain = own.command("status", "--data-dir", str(own.data_dir)).stdout.decode()
    assert "3 sandboxes are in quarantine" in plain and "bellglass quarantine ls" in plain
    assert found[wanted.id]["name"] == "wanted" and found[wanted.id]["state"] == "running"

    api = {"api_url": own.api_url, "api_key": own.api_key}
    box = type(known).connect(known.id, **api)
    assert box.exec(["true"]).ok, "one that it knows goes on"
    with pytest.raises(NotFound):
        type(known).connect(wanted.id, **api)
    # Its delete was after the backup; what it was told then, the node still knows.
    wait_until(lambda: gone(type(known), ended.id, api), 15, "the deleted one is back")

    standing = log_bytes(own, wanted.id)
    time.sleep(0.5)  # long enough for ten lines
    assert log_bytes(own, wanted.id) == standing > 0, "it does not stand still"
    done = own.command("quarantine", "adopt", wanted.id, "--data-dir", str(own.data_dir))
    assert (done.returncode, done.stdout.decode().strip()) == (0, wanted.id), done.stderr
    again = type(known).connect(wanted.id, **api)
    assert (again.info().state, again.info().name, again.info().labels) == ("running", "wanted", {"a": "b"})
    count = int(again.files.read_text("count"))
    wait_until(lambda: int(again.files.read_text("count") or 0) > count, 10, "it does not go on")
    assert again.exec(["pgrep", "-f", "echo .i > count"]).stdout.split()[0] == pid, "the same process"
    lines = [int(line) for line in "".join(e.text for e in again.execution(job.id).output(follow=False)).split()]
    assert lines == list(range(1, len(lines) + 1)), "its output is whole"

    done = own.command("quarantine", "rm", by_hand.id, "--data-dir", str(own.data_dir))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not own.data.sandbox_dir(by_hand.id).exists(), 10, "it was not removed")
    assert own.data.sandbox_dir(unwanted.id).exists()
    settings = own.data.settings_file.read_text()
    own.data.settings_file.write_text(settings.replace("[server]\n", '[server]\nquarantine = "1s"\n'))
    os.kill(own.pids()["server"], signal.SIGKILL)  # the next one reads them
    wait_until(lambda: not own.data.sandbox_dir(unwanted.id).exists(), 30, "it outlives its time")
    wait_until(lambda: quarantined(own) == {}, 10, "it is still listed")
    own.data.settings_file.write_text(settings)
    for left in (box, again):
        left.delete()
    entries = sqlite3.connect(own.data.database_file)
    actions = [row[0] for row in entries.execute("select action from audit where action like 'sandbox.quarantine%'")]
    entries.close()
    assert actions.count("sandbox.quarantine") >= 3 and actions.count("sandbox.quarantine_over") == 2
    for made in (known, ended, wanted, unwanted, by_hand, box):
        made.close()


def test_a_lost_journal_of_the_node(own):
    """Rows do not vanish, and neither do disks: not of those that the database has, nor of those that nobody has."""
    known = own.sandbox(**SANDBOX_OPTIONS)
    backup = own.data_dir / "backup.db"
    source, target = sqlite3.connect(own.data.database_file), sqlite3.connect(backup)
    source.backup(target)
    source.close()
    target.close()
    nobodys = own.sandbox(**SANDBOX_OPTIONS)
    for box in (known, nobodys):
        box.files.write_text("kept", box.id)
        box.start(["sh", "-c", COUNT])
    own.down(sandboxes=False)
    half_made = own.data.sandbox_dir("sb" + "h" * 20)
    (half_made / "bundle").mkdir(parents=True)
    for path in own.data.node_dir.glob("*.db*"):
        path.unlink()
    for name in ("bellglass.db-wal", "bellglass.db-shm"):
        (own.data.server_dir / name).unlink(missing_ok=True)
    shutil.copyfile(backup, own.data.database_file)
    own.up()

    assert not half_made.exists(), "what has no disk goes at once"
    api = {"api_url": own.api_url, "api_key": own.api_key}
    again = type(known).connect(known.id, **api)
    wait_until(lambda: again.info().state == "ended", 20, "it is not ended")
    assert again.info().termination_reason == "node_lost"
    wait_until(lambda: reads(again) == known.id, 15, "its disk can't be read")

    wait_until(lambda: set(quarantined(own)) == {nobodys.id}, 15, "it is not in quarantine")
    (item,) = quarantined(own).values()
    assert (item["state"], item["project_id"], item["template"]) == ("running", "", "base")
    frozen = list(Path("/sys/fs/cgroup").glob(f"**/bellglass-{own.scope.installation}/{nobodys.id}/*/cgroup.freeze"))
    assert frozen and {path.read_text().strip() for path in frozen} == {"1"}
    node = ProcessId.of(own.pids()["node"])
    node.send(signal.SIGKILL)
    assert node.wait(time.monotonic() + 5)
    wait_until(lambda: own.command("status", "--data-dir", str(own.data_dir)).returncode == 0, 15, "no node")
    assert {path.read_text().strip() for path in frozen} == {"1"}, "the next node lets it run on"
    adopt = ["quarantine", "adopt", nobodys.id, "--data-dir", str(own.data_dir)]
    refused = own.command(*adopt)
    assert refused.returncode == 1 and b"unknown here" in refused.stderr, refused
    assert own.command(*adopt, "--project", "default").returncode == 0
    other = type(known).connect(nobodys.id, **api)
    wait_until(lambda: reads(other) == nobodys.id, 15, "its disk can't be read")
    assert (other.info().state, other.info().termination_reason) == ("ended", "node_lost")
    for box in (again, other):
        box.delete()
    for box in (known, nobodys):
        wait_until(lambda box=box: not own.data.sandbox_dir(box.id).exists(), 10, "its disk stays")
    for box in (known, nobodys):
        box.close()


def reads(box):
    try:
        return box.files.read_text("/home/user/kept")
    except SandboxGone:
        return None  # its end is under way
    except BellglassError as error:
        assert error.retryable, error
        return None


def log_bytes(stack, sandbox_id):
    return sum(path.stat().st_size for path in (stack.data.executions_dir / sandbox_id).glob("*.log"))


def gone(face, sandbox_id, api):
    try:
        box = face.connect(sandbox_id, **api)
    except NotFound:
        return True
    box.close()
    return False
