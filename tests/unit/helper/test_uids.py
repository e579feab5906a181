"""Uid ranges: who is in one, and that a lease is one step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bellglass.errors import InternalError, NoCapacity
from bellglass.node.helper import kernel, uids

ID = "sb" + "a" * 20


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(uids, "LEASES", tmp_path / "uids")
    return tmp_path / "uids"


def test_a_lease_is_found_by_its_owner(leases: Path) -> None:
    index = uids.lease("testtest", ID)
    assert uids.lease("testtest", ID) == index, "asking again gives the same"
    assert uids.find("testtest", ID) == index
    assert uids.find("another2", ID) is None
    assert str((leases / str(index)).readlink()) == f"testtest/{ID}"
    assert uids.lease("another2", ID) != index
    uids.release("testtest", ID, deadline=0)
    uids.release("testtest", ID, deadline=0)
    assert uids.find("testtest", ID) is None
    assert uids.find("another2", ID) is not None


def test_ranges_do_not_touch_what_others_hand_out() -> None:
    assert uids.first_uid(0) == 0x70000000
    assert uids.first_uid(uids.RANGE_COUNT) < 2**32 - 2


def test_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "RANGE_COUNT", 3)
    taken = {uids.lease("testtest", "sb" + letter * 20) for letter in "abc"}
    assert taken == {0, 1, 2}
    with pytest.raises(NoCapacity, match="uid ranges") as raised:
        uids.lease("testtest", "sb" + "d" * 20)
    assert raised.value.details == {"resource": "uids"}


def test_one_installation_does_not_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "MOST_OF_ONE", 2)
    first = uids.lease("testtest", "sb" + "a" * 20)
    uids.lease("testtest", "sb" + "b" * 20)
    with pytest.raises(NoCapacity, match="the most that one may have") as raised:
        uids.lease("testtest", "sb" + "c" * 20)
    assert raised.value.details == {"resource": "uids"}
    assert uids.lease("testtest", "sb" + "a" * 20) == first, "what it has it is told again"
    uids.lease("another2", "sb" + "c" * 20)
    uids.release("testtest", "sb" + "b" * 20, deadline=0)
    uids.lease("testtest", "sb" + "c" * 20)


def test_a_range_in_use_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    index = uids.lease("testtest", ID)
    monkeypatch.setattr(uids, "UID_BASE", os.getuid() - index * uids.RANGE_SIZE)
    assert os.getpid() in uids.holders_of(index), "this process has a uid in it now"
    with pytest.raises(InternalError, match=f"uid range {index}"):
        uids.release("testtest", ID, deadline=0)
    assert uids.find("testtest", ID) == index
    monkeypatch.undo()


def test_a_zombie_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "UID_BASE", os.getuid())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        assert Path(f"/proc/{pid}").exists()
        assert pid not in uids.holders_of(0)
    finally:
        os.waitpid(pid, 0)


def test_a_process_that_is_not_dumpable_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most files in its folder of /proc are root's then."""
    uid = 64123 if os.geteuid() == 0 else os.geteuid()
    monkeypatch.setattr(uids, "UID_BASE", uid)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(uid, uid, uid)
            kernel.prctl(4, 0)  # PR_SET_DUMPABLE
            os.write(write, b"there")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(read, 5) == b"there"
        assert Path(f"/proc/{pid}/status").stat().st_uid == 0
        assert pid in uids.holders_of(0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)
