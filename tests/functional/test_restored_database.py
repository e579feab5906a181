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
from tests.conftest import SANDBOX_OPTIONS
from tests.functional.own import status_code
from tests.functional.waiting import wait_until

COUNT = "i=0; while :; do i=$((i+1)); echo $i > count; echo $i; sleep 0.05; done"


def quarantined(stack):
    done = stack.command("quarantine", "ls", "--json", "--data-dir", str(stack.data_dir))
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["id"]: json.loads(line) for line in done.stdout.splitlines()}


def test_a_restored_older_database(own_stack):
    known, ended = own_stack.sandbox(**SANDBOX_OPTIONS), own_stack.sandbox(**SANDBOX_OPTIONS)
    backup = own_stack.data_dir / "backup.db"
    source, target = sqlite3.connect(own_stack.data.database_file), sqlite3.connect(backup)
    source.backup(target)
    source.close()
    target.close()
    ended.delete()
    wanted = own_stack.sandbox(**SANDBOX_OPTIONS, name="wanted", labels={"a": "b"})
    unwanted, by_hand = own_stack.sandbox(**SANDBOX_OPTIONS), own_stack.sandbox(**SANDBOX_OPTIONS)
    job = wanted.start(["sh", "-c", COUNT])
    wait_until(lambda: job.status().output_bytes, 10, "the job has not begun")
    pid = wanted.exec(["pgrep", "-f", "echo .i > count"]).stdout.split()[0]

    own_stack.down(sandboxes=False)
    for name in ("bellglass.db-wal", "bellglass.db-shm"):
        (own_stack.data.server_dir / name).unlink(missing_ok=True)
    owner = own_stack.data.database_file.stat()
    shutil.copyfile(backup, own_stack.data.database_file)
    assert own_stack.data.database_file.stat().st_uid == owner.st_uid
    own_stack.up()

    strangers = {wanted.id, unwanted.id, by_hand.id}
    wait_until(lambda: set(quarantined(own_stack)) == strangers, 15, "not all of them are there")
    found = quarantined(own_stack)
    assert own_stack.status()["quarantined"] == 3
    plain = own_stack.command("status", "--data-dir", str(own_stack.data_dir)).stdout.decode()
    assert "the database does not know them: 3 (bellglass quarantine ls)" in plain
    assert found[wanted.id]["name"] == "wanted" and found[wanted.id]["state"] == "running"

    api = {"api_url": own_stack.api_url, "api_key": own_stack.api_key}
    box = type(known).connect(known.id, **api)
    assert box.exec(["true"]).ok, "one that it knows goes on"
    with pytest.raises(NotFound):
        type(known).connect(wanted.id, **api)
    # Its delete was after the backup; what it was told then, the node still knows.
    wait_until(lambda: gone(type(known), ended.id, api), 15, "the deleted one is back")

    standing = log_bytes(own_stack, wanted.id)
    time.sleep(0.5)  # long enough for ten lines
    assert log_bytes(own_stack, wanted.id) == standing > 0, "it does not stand still"
    done = own_stack.command("quarantine", "adopt", wanted.id, "--data-dir", str(own_stack.data_dir))
    assert (done.returncode, done.stdout.decode().strip()) == (0, wanted.id), done.stderr
    again = type(known).connect(wanted.id, **api)
    assert (again.info().state, again.info().name, again.info().labels) == ("running", "wanted", {"a": "b"})
    count = int(again.files.read_text("count"))
    wait_until(lambda: int(again.files.read_text("count") or 0) > count, 10, "it does not go on")
    assert again.exec(["pgrep", "-f", "echo .i > count"]).stdout.split()[0] == pid, "the same process"
    lines = [int(line) for line in "".join(e.text for e in again.execution(job.id).output(follow=False)).split()]
    assert lines == list(range(1, len(lines) + 1)), "its output is whole"

    done = own_stack.command("quarantine", "rm", by_hand.id, "--data-dir", str(own_stack.data_dir))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not own_stack.data.sandbox_dir(by_hand.id).exists(), 10, "it was not removed")
    assert own_stack.data.sandbox_dir(unwanted.id).exists()
    settings = own_stack.data.settings_file.read_text()
    own_stack.data.settings_file.write_text(settings.replace("[server]\n", '[server]\nquarantine = "1s"\n'))
    os.kill(own_stack.pids()["server"], signal.SIGKILL)  # the next one reads them
    wait_until(lambda: not own_stack.data.sandbox_dir(unwanted.id).exists(), 30, "it outlives its time")
    wait_until(lambda: quarantined(own_stack) == {}, 10, "it is still listed")
    own_stack.data.settings_file.write_text(settings)
    for left in (box, again):
        left.delete()
    entries = sqlite3.connect(own_stack.data.database_file)
    actions = [row[0] for row in entries.execute("select action from audit where action like 'sandbox.quarantine%'")]
    entries.close()
    assert actions.count("sandbox.quarantine") >= 3 and actions.count("sandbox.quarantine_over") == 2
    for made in (known, ended, wanted, unwanted, by_hand, box):
        made.close()


def test_a_lost_journal_of_the_node(own_stack):
    """Rows do not vanish, and neither do disks: not of those that the database has, nor of those that nobody has."""
    known = own_stack.sandbox(**SANDBOX_OPTIONS)
    backup = own_stack.data_dir / "backup.db"
    source, target = sqlite3.connect(own_stack.data.database_file), sqlite3.connect(backup)
    source.backup(target)
    source.close()
    target.close()
    nobodys = own_stack.sandbox(**SANDBOX_OPTIONS)
    for box in (known, nobodys):
        box.files.write_text("kept", box.id)
        box.start(["sh", "-c", COUNT])
    own_stack.down(sandboxes=False)
    half_made = own_stack.data.sandbox_dir("sb" + "h" * 20)
    (half_made / "bundle").mkdir(parents=True)
    for path in own_stack.data.node_dir.glob("*.db*"):
        path.unlink()
    for name in ("bellglass.db-wal", "bellglass.db-shm"):
        (own_stack.data.server_dir / name).unlink(missing_ok=True)
    shutil.copyfile(backup, own_stack.data.database_file)
    own_stack.up()

    assert not half_made.exists(), "what has no disk goes at once"
    api = {"api_url": own_stack.api_url, "api_key": own_stack.api_key}
    again = type(known).connect(known.id, **api)
    wait_until(lambda: again.info().state == "ended", 20, "it is not ended")
    assert again.info().termination_reason == "node_lost"
    wait_until(lambda: reads(again) == known.id, 15, "its disk can't be read")

    wait_until(lambda: set(quarantined(own_stack)) == {nobodys.id}, 15, "it is not in quarantine")
    (item,) = quarantined(own_stack).values()
    assert (item["state"], item["project_id"], item["template"]) == ("running", "", "base")
    frozen = list(
        Path("/sys/fs/cgroup").glob(f"**/bellglass-{own_stack.scope.installation}/{nobodys.id}/*/cgroup.freeze")
    )
    assert frozen and {path.read_text().strip() for path in frozen} == {"1"}
    node = ProcessId.of(own_stack.pids()["node"])
    node.send(signal.SIGKILL)
    assert node.wait(time.monotonic() + 5)
    wait_until(lambda: status_code(own_stack) == 0, 15, "no node")
    assert {path.read_text().strip() for path in frozen} == {"1"}, "the next node lets it run on"
    adopt = ["quarantine", "adopt", nobodys.id, "--data-dir", str(own_stack.data_dir)]
    refused = own_stack.command(*adopt)
    assert refused.returncode == 1 and b"unknown here" in refused.stderr, refused
    assert own_stack.command(*adopt, "--project", "default").returncode == 0
    other = type(known).connect(nobodys.id, **api)
    wait_until(lambda: reads(other) == nobodys.id, 15, "its disk can't be read")
    assert (other.info().state, other.info().termination_reason) == ("ended", "node_lost")
    for box in (again, other):
        box.delete()
    for box in (known, nobodys):
        wait_until(lambda box=box: not own_stack.data.sandbox_dir(box.id).exists(), 10, "its disk stays")
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
