"""Rules of a network: the one form in which each is stored, and every refusal with the name of the rule."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_harness import Harness, error_of
from server_peer import PIP

from bellglass.egress.floor import Floor, parse_exceptions
from bellglass.egress.policy import Policy
from bellglass.errors import BellglassError, InvalidRequest
from bellglass.model import Network, NetworkPolicy, NetworkRule, read_network
from bellglass.server.cluster.base import NodeInfo
from bellglass.server.network.judge import judge

INFO = NodeInfo.from_json({"node_id": "local", "capabilities": {"network": True}})
PRESETS = {"pip": PIP, "npm": {"problem": "npm is not there", "hint": "set egress.presets_npm"}}


def judged(network: Network, *, exceptions: tuple[str, ...] = ()) -> Network:
    return judge(network, INFO, PRESETS, Floor(parse_exceptions(exceptions)))


def one(rule: NetworkRule | str, **more: Any) -> NetworkRule:
    network = judged(NetworkPolicy(allow=[rule]), **more)
    assert isinstance(network, NetworkPolicy)
    [found] = network.allow
    assert isinstance(found, NetworkRule)
    return found


@pytest.mark.parametrize(
    ("wanted", "host", "cidr", "ports"),
    [
        ("api.example.com:443", "api.example.com", None, [443]),
        ("API.Example.COM.:8080", "api.example.com", None, [8080]),
        ("*.example.com", "*.example.com", None, [443]),
        ("*.Example.co.uk:443", "*.example.co.uk", None, [443]),
        ("*.someone.github.io", "*.someone.github.io", None, [443]),
        ("github.io", "github.io", None, [443]),
        ("db:5432", "db", None, [5432]),
        ("bücher.example:443", "xn--bcher-kva.example", None, [443]),
        ("*.BÜCHER.example:443", "*.xn--bcher-kva.example", None, [443]),
        ("_dmarc.example.com:443", "_dmarc.example.com", None, [443]),
        ("203.0.114.7:22", None, "203.0.114.7/32", [22]),
        ("203.0.114.0/24:5432", None, "203.0.114.0/24", [5432]),
        (NetworkRule(cidr="255.255.255.0/24"), None, None, None),
        (NetworkRule(cidr="0.0.0.0/0", ports=[25]), None, "0.0.0.0/0", [25]),
        (NetworkRule(host="a.example", ports=[443, 80, 443]), "a.example", None, [80, 443]),
        (NetworkRule(host="a.example", ports=list(range(1, 65))), "a.example", None, list(range(1, 65))),
    ],
    ids=str,
)
def test_each_has_one_form(wanted: Any, host: str | None, cidr: str | None, ports: list[int] | None) -> None:
    if ports is None:
        with pytest.raises(InvalidRequest):
            one(wanted)
        assert one(wanted, exceptions=("255.255.255.0/24",)).cidr == wanted.cidr, "up to the last address there is"
        return
    found = one(wanted)
    assert (found.host, found.cidr, found.ports, found.protocol) == (host, cidr, ports, "tcp")
    Policy.parse({"mode": "rules", "rules": [found.document()]})


@pytest.mark.parametrize(
    ("wanted", "field", "told"),
    [
        ("*", "host", "wildcard"),
        ("*.com", "host", "too wide"),
        ("*.co.uk:443", "host", "too wide"),
        ("*.github.io:443", "host", "too wide"),
        ("*.nonsense", "host", "too wide"),
        ("*.amazonaws.com:443", "host", "too wide"),
        ("*.公司.cn:443", "host", "too wide"),
        ("a.*.example.com:443", "host", "first label"),
        ("*example.com:443", "host", "first label"),
        ("**.example.com:443", "host", "first label"),
        ("", "host", "not the name"),
        ("a..example.com:443", "host", "not the name"),
        ("-a.example.com:443", "host", "not the name"),
        ("a b.example.com:443", "host", "not the name"),
        ("a/b:443", "host", "not the name"),
        ("user@a.example:443", "host", "not the name"),
        ("a\0.example:443", "host", "not the name"),
        ("127.1:80", "host", "not the name"),
        ("0x7f000001:80", "host", "not the name"),
        ("2130706433:80", "host", "not the name"),
        ("x" * 64 + ".example:443", "host", "not the name"),
        ("a." * 127 + "example:443", "host", "not the name"),
        ("ü" * 300_000 + ".example:443", "host", "too long"),
        (NetworkRule(host="203.0.114.7"), "host", "cidr"),
        (NetworkRule(host="[::1]"), "host", "cidr"),
        ("a.example:", "", "HOST:PORT"),
        ("a.example:http", "", "HOST:PORT"),
        ("a.example:-1", "", "HOST:PORT"),
        ("a.example:\u0664\u0664\u0663", "", "HOST:PORT"),
        ("[2001:4860::1]:443", "", "HOST:PORT"),
        ("a.example:0", "ports.0", "not a port"),
        ("a.example:65536", "ports.0", "not a port"),
        (NetworkRule(host="a.example", ports=[]), "ports", "from 1 to 64"),
        (NetworkRule(host="a.example", ports=list(range(1, 66))), "ports", "from 1 to 64"),
        (NetworkRule(host="a.example", protocol="udp"), "protocol", "tcp"),
        (NetworkRule(host="a.example", cidr="203.0.114.0/24"), "", "exactly one"),
        (NetworkRule(), "", "exactly one"),
        (NetworkRule(cidr="2001:4860::/32"), "cidr", "IPv6"),
        (NetworkRule(cidr="203.0.114.7/24"), "cidr", "203.0.114.0/24"),
        (NetworkRule(cidr="203.0.114"), "cidr", "range"),
        (NetworkRule(cidr="203.0.114.0/33"), "cidr", "range"),
        (NetworkRule(cidr="10.1.0.0/16"), "cidr", "10.0.0.0/8"),
        (NetworkRule(cidr="169.254.169.254"), "cidr", "169.254.0.0/16"),
        (NetworkRule(cidr="127.0.0.1/32"), "cidr", "127.0.0.0/8"),
        ("198.18.0.1:80", "cidr", "198.18.0.0/15"),
        (NetworkRule(cidr="168.63.129.16"), "cidr", "168.63.129.16/32"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_refusal_names_the_rule(wanted: Any, field: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        judged(NetworkPolicy(allow=["good.example.com:443", wanted]))
    assert refusal.value.details["field"] == f"network.allow.1.{field}".rstrip(".")
    assert told in f"{refusal.value.message} {refusal.value.hint}"


def test_what_the_operator_took_out_of_the_floor() -> None:
    with pytest.raises(InvalidRequest):
        one(NetworkRule(cidr="10.1.0.0/16"))
    assert one(NetworkRule(cidr="10.1.0.0/16"), exceptions=("10.1.2.0/24",)).cidr == "10.1.0.0/16"
    assert one("10.1.2.3:443", exceptions=("10.1.2.0/24",)).cidr == "10.1.2.3/32"
    with pytest.raises(InvalidRequest):
        one("10.1.3.3:443", exceptions=("10.1.2.0/24",))
    assert one(NetworkRule(cidr="8.0.0.0/5")).cidr == "8.0.0.0/5", "more than what is closed: the rest of it opens"


def test_presets() -> None:
    found = judged(NetworkPolicy(presets=["pip", "pip"], allow=["a.example"]))
    assert isinstance(found, NetworkPolicy) and found.presets == ["pip"]
    for name, told in (("npm", "egress.presets_npm"), ("pipp", "did you mean 'pip'"), ("x", "pip, npm")):
        with pytest.raises(InvalidRequest) as refusal:
            judged(NetworkPolicy(presets=["pip", name]))
        assert refusal.value.details["field"] == "network.presets.1"
        assert told in f"{refusal.value.message} {refusal.value.hint}"


def test_how_many() -> None:
    rules: list[NetworkRule | str] = [f"host-{number}.example.com:443" for number in range(256)]
    assert isinstance(judged(NetworkPolicy(allow=rules)), NetworkPolicy)
    for network in (
        NetworkPolicy(allow=[*rules, "one.example:443"]),
        NetworkPolicy(allow=rules, presets=["pip"]),
        NetworkPolicy(presets=["pip"] * 17),
        NetworkPolicy(
            allow=[NetworkRule(host=f"{n}.example", ports=[60000 - 100 * n - p for p in range(64)]) for n in range(250)]
        ),
    ):
        with pytest.raises(InvalidRequest):
            judged(network)


def test_open_but_for_some() -> None:
    found = judged(
        NetworkPolicy(
            mode="open",
            deny=[
                "203.0.114.7",
                "203.0.114.7/32",
                "2A00:1450::/32",
                "::ffff:1.2.3.4",
                "10.0.0.0/8",
                "::/0",
                "::1.2.3.4",
            ],
        )
    )
    kept = ["203.0.114.7/32", "2a00:1450::/32", "1.2.3.4/32", "10.0.0.0/8", "::/0", "::102:304/128"]
    assert found == NetworkPolicy(mode="open", deny=kept)
    assert isinstance(found, NetworkPolicy) and found.to_json() == {"mode": "open", "deny": kept}
    assert judged(found) == found and read_network(found.to_json()) == found
    Policy.parse({**found.to_json(), "rules": []})
    assert judged(NetworkPolicy(mode="open")) == "open"
    assert judged(NetworkPolicy(mode="rules", allow=["a.example"])) == judged(NetworkPolicy(allow=["a.example"]))
    assert NetworkPolicy(allow=["a.example"]).to_json() == {"presets": [], "allow": ["a.example"]}


@pytest.mark.parametrize(
    ("network", "field", "told"),
    [
        (NetworkPolicy(deny=["203.0.114.7"]), "deny", "nothing is open but what presets and allow name"),
        (NetworkPolicy(deny=["203.0.114.7"], allow=["a.example"]), "deny", "is for a network that is open"),
        (NetworkPolicy(mode="open", deny=["203.0.114.7"], allow=["a.example"]), "allow", "which allows all"),
        (NetworkPolicy(mode="open", presets=["pip"]), "presets", "which allows all"),
        (NetworkPolicy(mode="open", deny=["203.0.114.7", "evil.example"]), "deny.1", "not a range of addresses"),
        (NetworkPolicy(mode="open", deny=["203.0.114.7:443"]), "deny.0", "not a range of addresses"),
        (NetworkPolicy(mode="open", deny=[""]), "deny.0", "not a range of addresses"),
        (NetworkPolicy(mode="open", deny=["203.0.114.7/24"]), "deny.0", "did you mean '203.0.114.0/24'"),
        (NetworkPolicy(mode="open", deny=["2a00::1/64"]), "deny.0", "did you mean '2a00::/64'"),
        (NetworkPolicy(mode="open", deny=["fe80::1%eth0"]), "deny.0", "has a zone"),
        (NetworkPolicy(mode="open", deny=["0.0.0.0/0"]), "deny.0", '"deny" closes everything'),
        (NetworkPolicy(mode="open", deny=["::ffff:0:0/96"]), "deny.0", '"deny" closes everything'),
        (NetworkPolicy(mode="open", deny=["203.0.114.7"] * 257), "deny", "at most 256"),
    ],
    ids=lambda value: str(value)[:70],
)  # fmt: skip
def test_what_can_not_be_denied(network: Network, field: str, told: str) -> None:
    assert judged(NetworkPolicy(mode="open", deny=["203.0.114.7"])) != "open"
    with pytest.raises(InvalidRequest) as refusal:
        judged(network)
    assert refusal.value.details["field"] == f"network.{field}".rstrip(".")
    assert told in f"{refusal.value.message} {refusal.value.hint}"


@given(st.text(alphabet="0123456789abcdef.:/%", max_size=40))
def test_whatever_is_denied_is_a_policy(text: str) -> None:
    try:
        network = judged(NetworkPolicy(mode="open", deny=[text]))
    except BellglassError:
        return
    assert isinstance(network, NetworkPolicy)
    Policy.parse({**network.to_json(), "rules": []})


@given(st.text(max_size=40))
def test_whatever_is_taken_is_a_policy(text: str) -> None:
    """No text makes a rule that proxy and resolver would refuse, or anything but our own error."""
    try:
        rule = one(text)
    except BellglassError:
        return
    Policy.parse({"mode": "rules", "rules": [rule.document()]})


@pytest.mark.parametrize(
    ("network", "field"),
    [
        ("wide open", "network"),
        (None, "network"),
        (5, "network"),
        (["deny"], "network"),
        ({"preset": ["pip"]}, "network.preset"),
        ({"presets": "pip"}, "network.presets"),
        ({"allow": [{"hosts": "a.example"}]}, "network.allow.0.hosts"),
        ({"allow": [{"host": "a.example", "ports": ["443"]}]}, "network.allow.0.ports.0"),
        ({"allow": ["a.example", {"host": 5}]}, "network.allow.1.host"),
        ({"allow": ["a.example", 5]}, "network.allow.1"),
        ({"deny": ["203.0.114.7"]}, "network.deny"),
        ({"mode": "wide", "deny": []}, "network.mode"),
        ({"mode": "open", "deny": "203.0.114.7"}, "network.deny"),
        ({"mode": "open", "deny": [7]}, "network.deny.0"),
    ],
    ids=str,
)
def test_bodies_that_are_none(harness: Harness, api: httpx2.Client, network: Any, field: str) -> None:
    error = error_of(api.post("/v1/sandboxes", json={"network": network}), 422)
    assert error["details"]["field"] == field, error
    assert harness.peer.count("sandbox.create") == 0
