"""Autobahn's WebSocket suite through a published port: what a strict server says is judged as without the port."""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bellglass.testing.stack import Stack
from tests.functional import websocket_echo

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[2]
ECHO = Path(websocket_echo.__file__)
NOT_SERVED = 3
"""What compat_env.sh ends with where no mirror has what the suite needs."""
PROTOCOL = [f"{group}.*" for group in (*range(1, 8), 10)]
SOME_OF_THE_LONG = ["9.1.1", "9.1.2", "9.2.1", "9.2.2", "9.7.1", "9.8.1", "12.1.1", "13.3.1", "13.7.1"]
GOOD = {"OK": 0, "INFORMATIONAL": 0, "NON-STRICT": 1}
"""The suite's verdicts by how far they are from the best; all others are failures."""
SUITE_S = 1800
FEW = 5
"""Of which it may be that they were late: a fault of ours is there again."""
LONG = [pytest.mark.slow, pytest.mark.timeout(SUITE_S + 200)]
Verdicts = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def suite() -> Path:
    """The interpreter of the suite. `make setup-test` has made its environment."""
    done = subprocess.run(
        [ROOT / "scripts/compat_env.sh", "autobahn"], capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode == NOT_SERVED:
        pytest.skip(f"Autobahn's suite needs Python 2.7: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()) / "bin/python"


@contextmanager
def echo_on_the_host() -> Iterator[int]:
    with subprocess.Popen([sys.executable, ECHO, "127.0.0.1", "0"], stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout is not None
            yield int(echo.stdout.readline())
        finally:
            echo.terminate()


def verdicts(suite: Path, url: str, cases: list[str], folder: Path) -> Verdicts:
    """Of each case: of what was said, and of how it was closed. The suite resolves names, and this machine need not
    know those below localhost: it gets a hosts file of its own."""
    folder.mkdir()
    name = urlsplit(url).hostname
    hosts, spec = folder / "hosts", folder / "spec.json"
    hosts.write_text(f"127.0.0.1 localhost {name}\n")
    asked = {"servers": [{"agent": "echo", "url": url}], "cases": cases, "outdir": str(folder / "reports")}
    spec.write_text(json.dumps({**asked, "exclude-cases": [], "exclude-agent-cases": {}}))
    named = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts]
    fuzzer = [suite, "-m", "autobahntestsuite.wstest", "--mode", "fuzzingclient", "--spec", spec]
    done = subprocess.run([*named, *fuzzer], capture_output=True, text=True, timeout=SUITE_S, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    found = json.loads((folder / "reports/index.json").read_text())["echo"]
    told = re.search(r"will run (\d+) test cases", done.stdout)
    assert told is not None and len(found) == int(told[1]), f"{len(found)} cases ran: {done.stdout[-5000:]}"
    return {case: (one["behavior"], one["behaviorClose"]) for case, one in found.items()}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(PROTOCOL + SOME_OF_THE_LONG, id="protocol"),
        pytest.param(["9.*"], id="sizes", marks=LONG),
        pytest.param(["12.*"], id="compression", marks=LONG),
        pytest.param(["13.*"], id="parameters-of-compression", marks=LONG),
    ],
)
def test_no_verdict_is_worse_through_a_published_port(
    new_box: Any, stack: Stack, suite: Path, tmp_path: Path, cases: list[str]
) -> None:
    box = new_box(lifetime="2h", memory="1GiB")
    box.files.write_text("echo.py", ECHO.read_text())
    box.start(["python3", "echo.py", "127.0.0.1", "8000"])
    through = box.publish(8000).token_url("/", expires_in="2h").replace("http://", "ws://")

    def judged(url: str, name: str) -> Verdicts:
        found = verdicts(suite, url, cases, tmp_path / name)
        # The suite waits 0.5 s for a close and a second for some answers, however busy the machine is.
        late = [case for case, one in found.items() if not set(one) <= set(GOOD)]
        return found | verdicts(suite, url, late, tmp_path / f"{name}-again") if 0 < len(late) <= FEW else found

    with echo_on_the_host() as port, ThreadPoolExecutor(2) as both:
        asked = both.submit(judged, f"ws://127.0.0.1:{port}", "direct"), both.submit(judged, through, "published")
        direct, published = (one.result() for one in asked)
    both_ways = {"direct": direct, "published": published}
    print({name: dict(collections.Counter(found.values())) for name, found in both_ways.items()})
    for name, found in both_ways.items():
        assert {case: one for case, one in found.items() if not set(one) <= set(GOOD)} == {}, name
    assert published and published.keys() == direct.keys()
    worse = {
        case: (direct[case], one)
        for case, one in published.items()
        if any(GOOD[mine] > GOOD[theirs] for mine, theirs in zip(one, direct[case], strict=True))
    }
    assert worse == {}
