"""The wall's rules as text; that they hold is tests/drivers/test_wall.py."""

from __future__ import annotations

from typing import Any

import pytest

from bellglass.egress.floor import RANGES
from bellglass.errors import InvalidRequest
from bellglass.node.helper.net.wall import Confined, is_networks, wall_rules

WHO = (Confined(1, 3), Confined(2, 4))


def test_the_whole_floor_stands_in_it() -> None:
    lines = wall_rules("bellglass_test", *WHO, [], []).splitlines()
    refused = " ".join(line for line in lines if "daddr {" in line and "reject" in line)
    for network in RANGES:
        assert str(network) in refused.replace(",", " ").split()


def test_what_is_excepted_comes_before_the_floor() -> None:
    text = wall_rules("bellglass_test", *WHO, ["10.1.0.0/16", "10.1.2.0/24", "fd00::/64"], ["192.0.2.53", "fd00::53"])
    assert text.index("ip daddr { 10.1.0.0/16 } meta l4proto tcp accept") < text.index("fib daddr type")
    assert text.index("ip6 daddr { fd00::/64 } meta l4proto tcp accept") < text.index("fib daddr type")
    assert "ip daddr { 192.0.2.53/32 } meta l4proto { tcp, udp } th dport 53 accept" in text
    assert "10.1.2.0/24" not in text, "a set takes no overlaps"


@pytest.mark.parametrize("value", ["10.0.0.0/8", [7], ["10.0.0.0/8; drop"], ["1.1.1.1 }"], [""], ["10.0.0.0/8"] * 257])
def test_no_other_text_gets_through(value: Any) -> None:
    assert is_networks(["10.0.0.0/8", "fd00::/8"]) and not is_networks(value)


@pytest.mark.parametrize("value", ["10.0.0.1/8", "999.0.0.1", "::1::2", "1.2.3.4/33"])
def test_what_is_no_network_is_told(value: str) -> None:
    assert is_networks([value])
    with pytest.raises(InvalidRequest, match=value.split("/", maxsplit=1)[0]):
        wall_rules("bellglass_test", *WHO, [value], [])
