"""An installation as its operator sees it: up, down, status, side by side, and daemons that die."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bellglass.errors import BellglassError, ConnectionFailed, NodeUnavailable
from bellglass.supervise.processes import ProcessId
from bellglass.testing import kernel
from bellglass.testing.stack import Stack
from tests.conftest import SANDBOX_OPTIONS
from tests.functional.own import own_installation, status_code
from tests.functional.waiting import wait_until

JOB = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: (print("got it"), sys.exit(7)))
print("begin")
while True:
    signal.pause()
"""


def test_up_prints_where_it_is_and_status_tells_all_of_it(own_stack):
    found = own_stack.status()
    assert found["up"] and found["node"] and found["api_url"] == own_stack.api_url
    assert set(found["pids"]) == {"supervisor", "server", "node", "helper", "resolver", "proxy", "lxcfs"}
    for pid in found["pids"].values():
        assert Path(f"/proc/{pid}").exists()
    assert [tier["tier"] for tier in found["tiers"] if tier["usable"]] == ["container"]
    assert found["versions"]["runc"] and found["versions"]["node"] == found["versions"]["bellglass"]
    assert found["capacity"]["cpus"] == os.cpu_count()
    assert found["counts"] == {"sandboxes": 0, "templates": len(found["templates"])}


def test_status_shows_what_is_committed_and_free(own_stack):
    free = own_stack.status()["capacity"]["resources"]
    with own_stack.sandbox(memory="256MiB", disk="256MiB", cpus=0.5, pids=64):
        now = own_stack.status()["capacity"]["resources"]
        assert {name: now[name]["committed"] - free[name]["committed"] for name in ("cpu", "memory", "pids")} == {
            "cpu": 0.5,
            "memory": 256 << 20,
            "pids": 64,
        }
        assert now["disk"]["committed"] - free["disk"]["committed"] > 256 << 20, "logs count as well"
        assert now["memory"]["free"] == free["memory"]["free"] - (256 << 20)
        shown = own_stack.command("status", "--data-dir", str(own_stack.data_dir)).stdout.decode()
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "committed" in lines["resource"] and "free to promise" in lines["resource"]
    assert " 0.5 " in lines["cpu"] and " 256 MiB " in lines["memory"] and " 64 " in lines["pids"] and lines["disk"]


def test_the_profile_is_for_its_owner_alone_and_makes_sandboxes_just_work(own_stack):
    profile = Path(own_stack.environment["BELLGLASS_PROFILE"])
    assert profile.stat().st_mode & 0o777 == 0o600
    assert json.loads(profile.read_text()) == {
        "api_url": own_stack.api_url,
        "api_key": own_stack.api_key,
        "data_dir": str(own_stack.data_dir),
    }
    done = own_stack.command(
        "run", "--memory", "256MiB", "--", "echo", "just works",
        environment={"BELLGLASS_API_URL": "", "BELLGLASS_API_KEY": ""},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"just works\n"), done.stderr


def test_a_second_up_is_refused_with_the_next_step(own_stack):
    done = own_stack.command("up", "--detach", "--data-dir", str(own_stack.data_dir), "--port", "0")
    assert done.returncode == 1
    assert b"is in use" in done.stderr and b"bellglass down" in done.stderr
    assert own_stack.status()["up"]


def test_down_leaves_sandboxes_running_and_up_finds_the_same_processes(own_stack):
    box = own_stack.sandbox(**SANDBOX_OPTIONS)
    job = box.start(["python3", "-uc", JOB])
    wait_until(lambda: job.status().stdout_bytes, 10, "the job has not begun")
    pid = box.exec(["pgrep", "-f", "python3 -uc"]).stdout
    assert pid
    own_stack.down(sandboxes=False)
    assert own_stack.command("status", "--json", "--data-dir", str(own_stack.data_dir)).returncode == 3
    own_stack.up()
    again = type(box).connect(box.id, api_url=own_stack.api_url, api_key=own_stack.api_key)
    assert again.exec(["pgrep", "-f", "python3 -uc"]).stdout == pid
    reattached = again.execution(job.id)
    reattached.signal("SIGUSR1")
    record = reattached.wait()
    assert record.exit_code == 7
    assert "".join(event.text for event in reattached.output()) == "begin\ngot it\n"
    again.delete()
    box.close()


def test_down_with_sandboxes_works_without_daemons_too(own_stack):
    box = own_stack.sandbox(**SANDBOX_OPTIONS)
    own_stack.down(sandboxes=False)
    assert list(own_stack.data.sandboxes_dir.iterdir())
    own_stack.down(sandboxes=True)
    assert not list(own_stack.data.sandboxes_dir.iterdir())
    own_stack.up()
    wait_until(lambda: box_is_gone(own_stack, box.id), 10, "the server still shows the sandbox as running")
    box.close()


def box_is_gone(stack, sandbox_id):
    done = stack.command("ls", "--json")
    return sandbox_id.encode() not in done.stdout


def test_down_with_sandboxes_takes_those_along_that_are_made_meanwhile(own_stack):
    def create_until_it_is_down():
        made = 0
        while True:
            try:
                own_stack.sandbox(**SANDBOX_OPTIONS).close()
                made += 1
            except BellglassError as error:
                return made, type(error)

    with ThreadPoolExecutor(3) as pool:
        creating = [pool.submit(create_until_it_is_down) for _ in range(3)]
        wait_until(lambda: any(own_stack.data.sandboxes_dir.iterdir()), 20, "nobody creates")
        own_stack.down()
        outcomes = [done.result(60) for done in creating]
    assert sum(made for made, _ in outcomes) and {error for _, error in outcomes} <= {ConnectionFailed, NodeUnavailable}
    assert list(own_stack.data.sandboxes_dir.iterdir()) == []
    assert not [path for path in kernel.cgroups() if own_stack.scope.names(path) and "/sb" in path]
    own_stack.up()


@pytest.mark.parametrize("name", ["server", "node", "helper", "resolver", "proxy"])
def test_a_killed_daemon_comes_back_and_sandboxes_go_on(own_stack, name):
    box = own_stack.sandbox(**SANDBOX_OPTIONS)
    box.files.write_text("before", "still here")
    before = own_stack.pids()
    process = ProcessId.of(before[name])
    os.kill(before[name], signal.SIGKILL)
    assert process.wait(time.monotonic() + 5)
    if name == "node":
        assert ProcessId.of(before["helper"]).wait(time.monotonic() + 5), "the helper outlives its node"
    wait_until(lambda: status_code(own_stack) == 0, 15, "it is not back")
    wait_until(lambda: own_stack.pids().get(name) not in (None, before[name]), 15, "it is not another one")
    if name == "helper":
        other = own_stack.sandbox(**SANDBOX_OPTIONS)
        assert other.exec(["true"]).ok, "the new helper works"
        other.delete()
        other.close()
    again = type(box).connect(box.id, api_url=own_stack.api_url, api_key=own_stack.api_key)
    wait_until(lambda: answers(again), 10, "the sandbox does not answer")
    assert again.files.read_text("before") == "still here"
    again.delete()
    box.close()


def test_proxy_and_resolver_that_die_together_come_back_together(own_stack):
    before = own_stack.pids()
    own_stack.kill("proxy", "resolver")
    wait_until(
        lambda: (
            not {before[name] for name in ("proxy", "resolver")} & {*own_stack.pids().values()}
            and {"proxy", "resolver"} <= set(own_stack.pids())
        ),
        15,
        "they are not back",
    )
    after = own_stack.pids()
    assert {name: pid for name, pid in after.items() if before[name] == pid}.keys() == before.keys() - {
        "proxy",
        "resolver",
    }
    assert own_stack.status()["up"]


def answers(box):
    from bellglass import BellglassError

    try:
        return box.exec(["true"]).ok
    except BellglassError as error:
        assert error.retryable, error
        return False


def test_daemons_of_a_killed_supervisor_make_room_for_the_next(own_stack):
    before = own_stack.pids()
    daemons = [ProcessId.of(before[name]) for name in ("server", "node", "helper", "resolver", "proxy")]
    os.kill(before["supervisor"], signal.SIGKILL)
    wait_until(lambda: status_code(own_stack) == 3, 5, "it lives")
    assert all(process.alive() for process in daemons)
    own_stack.up()
    after = own_stack.pids()
    assert not any(process.alive() for process in daemons)
    assert after["lxcfs"] == before["lxcfs"], "running sandboxes read through it"


def test_installations_side_by_side_do_not_touch_each_other(own_stack):
    with own_installation() as other:
        mine, theirs = own_stack.sandbox(**SANDBOX_OPTIONS), other.sandbox(**SANDBOX_OPTIONS)
        assert mine.id.encode() in own_stack.command("ls", "--json").stdout
        assert mine.id.encode() not in other.command("ls", "--json").stdout
        other.down(sandboxes=True)
        assert mine.exec(["true"]).ok
        mine.delete()
        theirs.close()


@pytest.mark.parametrize("folder_mode", [0o755, 0o700])
def test_a_data_folder_that_sandboxes_cannot_reach_is_refused(tmp_path_factory, folder_mode):
    outer = Path("/var/tmp") / f"bellglass-test-outer-{os.getpid()}-{folder_mode:o}"
    outer.mkdir(mode=folder_mode)
    try:
        own = {"BELLGLASS_PROFILE": str(outer / "profile.json"), "BELLGLASS_PREVIEWS_PORT": "0"}
        stack = Stack(outer / "data", "runc", environment=own)
        done = stack.command("up", "--detach", "--json", "--data-dir", str(stack.data_dir), "--port", "0")
        if folder_mode == 0o755:
            assert done.returncode == 0, done.stderr
            stack.close()
        else:
            assert done.returncode == 1
            assert f"chmod o+x {outer}".encode() in done.stderr
            assert not (stack.data_dir / "installation.json").exists()
    finally:
        for path in sorted(outer.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        outer.rmdir()


def test_nothing_of_an_installation_is_readable_by_others(own_stack):
    readable = []
    for path in own_stack.data_dir.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o004:
            readable.append(path.relative_to(own_stack.data_dir).parts[0])
    assert set(readable) <= {"bellglass.toml", "installation.json", "run"}
