"""Addresses that E2B's client denies, in a world where all of them answer: DENIED_ADDRESS has evil.test, OPEN_ADDRESS
good.test."""

from __future__ import annotations

import os

from e2b import Sandbox

DENIED, OPEN = os.environ["DENIED_ADDRESS"], os.environ["OPEN_ADDRESS"]
RANGE = DENIED.rpartition(".")[0] + ".0/24"
"""Both are in it."""


HOSTS = (DENIED, "evil.test", OPEN, "good.test")
REFUSED = {7, 55, 56}
"""What curl ends with after a reset, before it has sent anything, while it sends, or later; a wait would be 28."""


def reaches(sandbox: Sandbox) -> list[bool]:
    """Each of HOSTS."""
    command = f"for host in {' '.join(HOSTS)}; do curl -sS --max-time 20 -o /dev/null http://$host/; echo $?; done"
    codes = [int(code) for code in sandbox.commands.run(command, timeout=100).stdout.split()]
    assert len(codes) == len(HOSTS) and set(codes) <= {0, *REFUSED}
    return [code == 0 for code in codes]


def test_at_create() -> None:
    with Sandbox.create(timeout=60, network={"deny_out": [RANGE, "8.8.8.8"], "allow_out": [OPEN]}) as sandbox:
        assert reaches(sandbox) == [False, False, True, True], "what is allowed wins"
        network = sandbox.get_info().network
        assert network is not None and "8.8.8.8/32" in network["deny_out"] and RANGE not in network["deny_out"]


def test_at_a_change() -> None:
    with Sandbox.create(timeout=60) as sandbox:
        assert reaches(sandbox) == [True, True, True, True]
        sandbox.update_network({"deny_out": [DENIED]})
        assert reaches(sandbox) == [False, False, True, True]
        sandbox.update_network({"deny_out": [RANGE]})
        assert reaches(sandbox) == [False, False, False, False]
        sandbox.update_network({"deny_out": [RANGE], "allow_out": [OPEN]})
        assert reaches(sandbox) == [False, False, True, True]
        sandbox.update_network({})
        assert reaches(sandbox) == [True, True, True, True]
