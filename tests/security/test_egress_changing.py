"""Bytes that a sandbox changes after it has sent them: what is passed on is what was checked, not what stands there
by then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bellglass.testing.internet import OTHER_TLS, Internet
from tests.security.client_hellos import hello
from tests.security.inside import Inside

pytestmark = pytest.mark.root
PROBE = Path(__file__).with_name("changing_probe.py")
PLACE = "/home/user/changing_probe.py"
TIMES = 100


def sent(inside: Inside, port: int, *texts: bytes, tail: bytes = b"", times: int = TIMES) -> tuple[int, int]:
    """How many were answered, how many cut."""
    inside.box.files.write_text(PLACE, PROBE.read_text())
    wanted = {"host": "good.test", "port": port, "times": times, "tail": tail.decode("latin-1")}
    wanted["texts"] = [text.decode("latin-1") for text in texts]
    done = inside.box.exec(["python3", PLACE], stdin=json.dumps(wanted), timeout=120)
    assert done.ok, done.stderr
    counts = json.loads(done.stdout)
    return counts["answered"], counts["cut"]


@pytest.mark.parametrize("port", [443, OTHER_TLS])
def test_the_hello_that_was_checked_is_the_one_that_goes_on(inside: Inside, internet: Internet, port: int) -> None:
    inside.allow(f"good.test:{port}")
    good = hello("good.test")
    evil = good.replace(b"good.test", b"evil.test")
    assert sent(inside, port, good, times=5) == (5, 0)
    came = len(internet.server_names)
    with inside.refused("sni_mismatch", host="evil.test", port=port):
        answered, cut = sent(inside, port, good, evil)
    assert answered and cut, "both were seen in one file"
    assert set(internet.server_names[came:]) <= {"good.test"}
