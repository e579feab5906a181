"""What a sandbox uses is measured from outside, and kept over killed daemons and ends; when it ends is changed."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bellglass import Sandbox
from bellglass.errors import ConnectionFailed, InvalidRequest, NodeUnavailable, NotFound
from bellglass.model import SandboxMetrics, format_time, parse_time
from bellglass.testing.daemons import end_and_await
from bellglass.testing.stack import Stack
from tests.functional.own import own_installation
from tests.functional.waiting import wait_until

pytestmark = pytest.mark.root
MIB = 2**20
SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}
PATIENCE_S = 30.0


def now(box: Sandbox) -> SandboxMetrics:
    return box.metrics(limit=1)[-1]


def answers(box: Sandbox) -> bool:
    """Whether server and node have found each other again."""
    try:
        box.metrics(limit=1)
    except (NodeUnavailable, ConnectionFailed):
        return False
    return True


def test_a_sample_tells_memory_cache_disk_and_cpu(shared_box: Sandbox) -> None:
    box = shared_box
    before = now(box)
    assert (before.cpus, before.memory_bytes, before.disk_bytes) == (1.0, 512 * MIB, 1024 * MIB)
    box.exec("head -c 96M /dev/zero > /dev/shm/held", check=True)
    held = now(box)
    assert 90 * MIB < held.memory_used_bytes - before.memory_used_bytes < 130 * MIB
    box.exec("rm /dev/shm/held; head -c 64M /dev/urandom > written; sync", check=True)
    written = now(box)
    assert written.memory_used_bytes < held.memory_used_bytes - 80 * MIB
    assert 60 * MIB < written.memory_cache_bytes - before.memory_cache_bytes < 100 * MIB
    assert 64 * MIB <= written.disk_used_bytes - before.disk_used_bytes < 80 * MIB
    box.exec("rm written; sync", check=True)


def test_busy_and_idle_are_told_apart(shared_box: Sandbox) -> None:
    began = format_time(datetime.now(UTC))
    busy = shared_box.start("while :; do :; done")
    wait_until(lambda: now(shared_box).cpu_percent > 30, PATIENCE_S, "a sample of a busy sandbox")
    busy.kill()
    wait_until(lambda: now(shared_box).cpu_percent < 5, PATIENCE_S, "a sample of a quiet one")
    wait_until(lambda: len(shared_box.metrics(start=began)) >= 2, PATIENCE_S, "a second sample of its history")
    times = [sample.time for sample in shared_box.metrics(start=began)]
    assert times == sorted(times)


def test_history_outlives_daemons_and_the_end() -> None:
    with own_installation(settings={"node.metrics_interval": "200ms"}) as stack, stack.sandbox(**SMALL) as box:

        def times() -> list[str]:
            return [sample.time for sample in box.metrics(end=format_time(datetime.now(UTC)))]

        seen: list[str] = []

        def more() -> bool:
            return len(times()) > len(seen) + 4

        for daemon in ("node", "server", "node"):
            wait_until(more, PATIENCE_S, f"samples before {daemon} is killed")
            seen = times()[:-1]  # without that of just now
            end_and_await(stack, daemon)
            wait_until(lambda: answers(box), PATIENCE_S, f"metrics after {daemon} was killed")
            after = box.metrics()
            assert [sample.time for sample in after][: len(seen)] == seen
            assert max(sample.cpu_percent for sample in after) <= 100
        box.update(lifetime="1s")
        wait_until(lambda: box.info().state == "ended", PATIENCE_S, "its end")
        ended = [sample.time for sample in box.metrics()]
        assert ended[: len(seen)] == seen
        assert parse_time(ended[-1]) < datetime.now(UTC)
        assert times() == ended
        path = stack.data.executions_dir / box.id / "metrics"
        assert path.stat().st_size < 128 * 1024
        box.delete()
        with pytest.raises(NotFound):
            box.metrics()
        assert not path.exists()


def test_wrong_times_are_refused_and_right_ones_select(shared_box: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="start: 'yesterday'"):
        shared_box.metrics(start="yesterday")
    assert shared_box.metrics(start="1m")
    assert shared_box.metrics(end="1d") == []
    assert shared_box.metrics(start=format_time(datetime.now(UTC) + timedelta(hours=1))) == []


def left_s(box: Sandbox) -> float:
    ends = box.info().expires_at
    assert ends is not None
    return parse_time(ends).timestamp() - time.time()


def test_lifetimes_are_extended_shortened_and_set(box: Sandbox) -> None:
    box.update(keep_for="1m")
    assert left_s(box) > 13 * 60, "keep_for never shortens"
    box.update(keep_for="1h")
    assert 59 * 60 < left_s(box) <= 3600
    box.update(lifetime="5m")
    assert 4 * 60 < left_s(box) <= 300
    tomorrow = format_time(datetime.now(UTC) + timedelta(days=1))
    assert box.update(expires_at=tomorrow).expires_at == tomorrow
    with pytest.raises(InvalidRequest, match="keep_for: it excludes lifetime"):
        box.update(lifetime="1m", keep_for="1m")
    with pytest.raises(InvalidRequest, match="expires_at: 'soon' is not a time"):
        box.update(expires_at="soon")
    with pytest.raises(InvalidRequest, match="30 days"):
        box.update(expires_at="2100-01-01T00:00:00Z")
    assert box.info().expires_at == tomorrow
    box.update(expires_at=format_time(datetime.now(UTC) - timedelta(seconds=1)))
    wait_until(lambda: box.info().state == "ended", PATIENCE_S, "its end at once")
    assert box.info().termination_reason == "lifetime"


def test_the_commands(stack: Stack, shared_box: Sandbox) -> None:
    def out(*words: str) -> str:
        done = stack.command(*words)
        assert done.returncode == 0, done.stderr.decode()
        return str(done.stdout.decode())

    (sample,) = [json.loads(line) for line in out("metrics", shared_box.id, "--json").splitlines()]
    assert sample["memory_bytes"] == 512 * MIB
    assert len(out("metrics", shared_box.id, "--since", "15m").splitlines()) >= 2
    out("update", shared_box.id, "--keep-for", "2h", "--label", "a=b", "--label", "c=d")
    assert left_s(shared_box) > 7000
    assert shared_box.info().labels == {"a": "b", "c": "d"}
    shown = json.loads(out("update", shared_box.id, "--no-label", "a", "--idle-timeout", "1h", "--json"))
    assert (shown["labels"], shown["idle_timeout_s"]) == ({"c": "d"}, 3600)
    assert json.loads(out("update", shared_box.id, "--idle-timeout", "none", "--json"))["idle_timeout_s"] is None
    assert stack.command("update", shared_box.id).returncode == 1
