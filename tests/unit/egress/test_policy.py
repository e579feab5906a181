"""Policy documents: what is one, and what each lets through by name, address and port."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass.egress.policy import MAX_PORTS, MAX_RULES, Policy, PolicyError, Rule, is_name, is_pattern


def rules(*entries: dict[str, Any]) -> Policy:
    return Policy.parse(
        {"mode": "rules", "rules": [{"protocol": "tcp", "origin": "allow", **entry} for entry in entries]}
    )


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("api.example.com", "api.example.com", True),
        ("api.example.com", "x.api.example.com", False),
        ("api.example.com", "xapi.example.com", False),
        ("api.example.com", "api.example.com.evil.test", False),
        ("api.example.com", "example.com", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.c.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "aexample.com", False),
        ("*.example.com", "a.example.com.evil.test", False),
        ("db", "db", True),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", True),
    ],
)
def test_names(pattern: str, name: str, matches: bool) -> None:
    policy = rules({"host": pattern, "ports": [443, 5432]})
    for port in (443, 5432):
        assert policy.by_name(name, port).allowed is matches
    assert policy.resolves(name) is matches
    assert policy.by_name(name, 80).reason == ("port_not_allowed" if matches else "name_not_allowed")
    assert not Policy("deny").by_name(name, 443).allowed
    assert Policy("open").by_name(name, 443).allowed


def test_a_rule_by_name_is_checked_in_the_bytes_and_open_is_not() -> None:
    assert rules({"host": "a.test", "ports": [443]}).by_name("a.test", 443).checked
    assert not Policy("open").by_name("a.test", 443).checked
    assert not rules({"cidr": "8.8.8.0/24", "ports": [443]}).by_address(ip_address("8.8.8.8"), 443).checked


@pytest.mark.parametrize(
    ("cidr", "address", "matches"),
    [
        ("203.0.114.0/24", "203.0.114.0", True),
        ("203.0.114.0/24", "203.0.114.255", True),
        ("203.0.114.0/24", "203.0.115.0", False),
        ("203.0.114.0/24", "203.0.113.255", False),
        ("0.0.0.0/0", "255.255.255.255", True),
        ("255.255.255.255/32", "255.255.255.255", True),
        ("128.0.0.0/1", "255.255.255.255", True),
        ("128.0.0.0/1", "127.255.255.255", False),
        ("2a00::/16", "2a00::1", True),
        ("2a00::/16", "203.0.114.1", False),
        ("0.0.0.0/0", "2a00::1", False),
        ("0.0.0.0/0", "::ffff:8.8.8.8", False),
    ],
)
def test_addresses(cidr: str, address: str, matches: bool) -> None:
    policy = rules({"cidr": cidr, "ports": [443]})
    assert policy.by_address(ip_address(address), 443).allowed is matches
    assert policy.by_address(ip_address(address), 80).reason == (
        "port_not_allowed" if matches else "address_not_allowed"
    )
    assert not Policy("deny").by_address(ip_address(address), 443).allowed
    assert Policy("open").by_address(ip_address(address), 443).allowed


def test_host_rules_never_match_addresses_nor_cidr_rules_names() -> None:
    policy = rules({"host": "a.test", "ports": [443]}, {"cidr": "8.0.0.0/8", "ports": [443]})
    assert policy.by_name("a.test", 443).allowed
    assert policy.by_address(ip_address("8.8.8.8"), 443).allowed
    assert not policy.by_name("8.8.8.8", 443).allowed
    assert not policy.by_name("b.test", 443).allowed
    assert not rules({"host": "a.test", "ports": [443]}).by_address(ip_address("8.8.8.8"), 443).allowed


def test_any_port_is_one_of_what_is_named() -> None:
    policy = rules({"host": "a.test", "ports": "any"}, {"cidr": "8.8.8.8/32", "ports": "any"})
    for port in (1, 443, 65535):
        assert policy.by_name("a.test", port).allowed
        assert policy.by_name("a.test", port).checked
        assert policy.by_address(ip_address("8.8.8.8"), port).allowed
    assert not policy.by_name("b.a.test", 443).allowed
    assert not policy.by_address(ip_address("8.8.8.9"), 443).allowed
    assert Policy.parse(policy.to_document()) == policy
    assert str(policy.rules[1]) == "8.8.8.8/32:any"


def test_the_ports_of_all_rules_that_match_count() -> None:
    policy = rules({"host": "*.a.test", "ports": [443]}, {"host": "x.a.test", "ports": [22]})
    assert [policy.by_name("x.a.test", port).allowed for port in (443, 22, 80)] == [True, True, False]
    assert policy.by_name("x.a.test", 80).rule == "x.a.test:22"


GOOD = {"host": "a.test", "ports": [443], "protocol": "tcp", "origin": "preset:pip"}


@pytest.mark.parametrize(
    "change",
    [
        {"host": "A.test"},
        {"host": "a.test."},
        {"host": ".a.test"},
        {"host": "a..test"},
        {"host": "*.com"},
        {"host": "*"},
        {"host": "*."},
        {"host": "*.*.a.test"},
        {"host": "a.*.test"},
        {"host": "bücher.test"},
        {"host": "1.2.3.4"},
        {"host": "a.0x7f"},
        {"host": "2130706433"},
        {"host": "a b.test"},
        {"host": "a.test\n"},
        {"host": "a.test:443"},
        {"host": "a" * 64 + ".test"},
        {"host": ".".join(["a" * 63] * 4) + ".b"},
        {"host": ""},
        {"host": 7},
        {"host": None},
        {"cidr": "8.8.8.8/8"},
        {"ports": []},
        {"ports": [0]},
        {"ports": [65536]},
        {"ports": [True]},
        {"ports": ["443"]},
        {"ports": 443},
        {"ports": "all"},
        {"ports": list(range(1, MAX_PORTS + 2))},
        {"protocol": "udp"},
        {"origin": "preset:"},
        {"origin": 3},
        {"unknown": 1},
    ],
)
def test_what_is_no_rule(change: dict[str, Any]) -> None:
    assert Rule.parse(GOOD).host == "a.test"
    with pytest.raises(PolicyError) as caught:
        Policy.parse({"mode": "rules", "rules": [GOOD, {**GOOD, **change}]})
    assert caught.value.rule == 1
    assert str(caught.value).startswith("rules[1]: ")


@pytest.mark.parametrize("cidr", ["8.8.8.8/8", "8.8.8.8/33", "x", "", 8, None, "fe80::1%eth0/128", "8.8.8.0/24 "])
def test_what_is_no_cidr(cidr: Any) -> None:
    assert Rule.parse({"cidr": "8.8.8.0/24", "ports": [1]}).network is not None
    with pytest.raises(PolicyError):
        Rule.parse({"cidr": cidr, "ports": [1]})


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "open",
        {},
        {"mode": "allow"},
        {"mode": "open", "rules": [GOOD]},
        {"mode": "deny", "rules": [GOOD]},
        {"mode": "rules", "rules": {}},
        {"mode": "rules", "rules": ["a.test:443"]},
        {"mode": "rules", "rules": [GOOD] * (MAX_RULES + 1)},
        {"mode": "rules", "rules": [], "more": 1},
        {"mode": "rules", "rules": [{**GOOD, "host": ".".join([c * 60] * 4)} for c in "abcdefghij" * 25]},
    ],
)
def test_what_is_no_policy(document: Any) -> None:
    assert Policy.parse({"mode": "rules", "rules": [GOOD] * MAX_RULES}).rules
    with pytest.raises(PolicyError):
        Policy.parse(document)


def test_documents_come_back_as_they_went() -> None:
    document = {
        "mode": "rules",
        "rules": [GOOD, {"cidr": "8.8.8.0/24", "ports": [1, 2], "protocol": "tcp", "origin": "allow"}],
    }
    assert Policy.parse(json.loads(json.dumps(document))).to_document() == document


@given(st.text(max_size=80), st.integers(0, 70000))
def test_no_text_is_allowed_under_rules_for_others(text: str, port: int) -> None:
    policy = rules({"host": "*.allowed.test", "ports": [443]})
    if policy.by_name(text, port).allowed:
        assert text.endswith(".allowed.test") and is_name(text) and port == 443
    assert policy.resolves(text) is (is_name(text) and text.endswith(".allowed.test"))
    if is_pattern(text):
        assert text == text.lower() and text.isascii() and not text.endswith(".")
