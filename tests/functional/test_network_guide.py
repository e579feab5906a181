"""The commands of docs/guides/network.md run as they stand there, in a world that has its names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass.testing.internet import DATABASE, EVIL, GOOD, SSH, Internet
from bellglass.testing.stack import Stack
from bellglass.testing.world import ADDRESSES
from tests.functional.guides import WITHIN_S, blocks, environment
from tests.functional.own import own_installation
from tests.functional.package_index import index

pytestmark = pytest.mark.root
GUIDE = "network.md"
INDEX = ADDRESSES[3]
CREATE = """
bellglass() {
  if [[ $1 == create || $1 == run ]]; then
    local word=$1
    shift
    set -- "$word" --input ca.pem="$AUTHORITY" --env CURL_CA_BUNDLE=/inputs/ca.pem "$@"
  fi
  command bellglass "$@"
}
"""
"""The template has no authority of the test's: each sandbox gets it as an input."""


@pytest.fixture(scope="module")
def internet() -> Iterator[Internet]:
    with Internet() as made:
        made.dns.zone |= {"api.example.com": [GOOD], "db.example.com": [GOOD], "other.example.net": [EVIL]}
        made.dns.zone["git.example.com"] = [GOOD]
        made.dns.zone["index.test"] = [INDEX]
        made.serve(INDEX, 80, index)
        yield made


@pytest.fixture(scope="module")
def guide_stack(internet: Internet) -> Iterator[Stack]:
    settings = {"egress.presets_pip": ["http://index.test/simple"]}
    with internet.inside(), own_installation(settings=settings, world=internet) as running:
        yield running


def with_authority(stack: Stack, internet: Internet) -> dict[str, str]:
    return environment(stack, {"AUTHORITY": str(internet.authority)})


def as_said(line: str, code: int) -> bool:
    if found := re.search(r"# exit code (\d+)$", line):
        return code == int(found[1])
    return (code != 0) == line.endswith("# fails")


def test_the_shell_commands(guide_stack: Stack, internet: Internet, tmp_path: Path) -> None:
    """Each ends with 0, or with what the comment behind it says."""
    lines = [line for block in blocks(GUIDE, "sh") for line in block.splitlines() if line]
    codes = tmp_path / "codes"
    script = CREATE + "".join(f"{line}\necho $? >>{codes}\n" for line in lines)
    done = subprocess.run(
        ["bash", "-c", script],
        env=with_authority(guide_stack, internet),
        capture_output=True,
        text=True,
        timeout=200,
    )
    got = [int(code) for code in codes.read_text().split()]
    told = "\n".join([*(f"{code}: {line}" for line, code in zip(lines, got, strict=False)), done.stdout, done.stderr])
    assert len(got) == len(lines) > 10, told
    assert [line for line, code in zip(lines, got, strict=True) if not as_said(line, code)] == [], told
    for address in (GOOD, EVIL):
        assert f'"at": "{address}"' in done.stdout
    assert "Successfully installed requests-1.0" in done.stdout
    # The database's answer, then what SSH says; what is refused gets neither.
    assert done.stdout.count("NSSH-2.0-Test\n") == 1 == done.stdout.count("SSH-2.0-")
    assert {port for address, port, _ in internet.dialled if port in (SSH, DATABASE)} == {SSH, DATABASE}
    assert (EVIL, SSH) not in [(address, port) for address, port, _ in internet.dialled]
    for reason in ("name_not_allowed", "sni_mismatch", "address_not_allowed", "port_not_allowed"):
        assert reason in done.stdout, "the events are shown"


def test_the_python(guide_stack: Stack, internet: Internet) -> None:
    found = blocks(GUIDE, "python")
    assert found
    for block in found:
        done = subprocess.run(
            [sys.executable, "-c", block],
            env=with_authority(guide_stack, internet), capture_output=True, text=True, timeout=WITHIN_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "api.example.com" in done.stdout
