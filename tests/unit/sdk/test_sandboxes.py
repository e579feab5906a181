"""Creating, finding and giving up sandboxes, through both faces."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bellglass import (
    AsyncSandbox,
    ClientError,
    Conflict,
    InternalError,
    InvalidRequest,
    Network,
    NodeUnavailable,
    NotFound,
    Rule,
    Sandbox,
    TooLarge,
    Unauthorized,
)
from bellglass.model import NetworkPolicy, NetworkRule


def test_options_become_the_body(api: Any, fake: Any, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"\xff")
    box = api(
        "base",
        cpus=1,
        memory="512MiB",
        lifetime="15m",
        env={"A": "1"},
        labels={"team": "x"},
        owner="ann",
        name="one",
        inputs={"a": "text", "b": b"by", "c": tmp_path / "c"},
        workdir=Path("/w"),
        isolation=None,
    )
    assert fake.bodies[-1] == {
        "template": "base",
        "cpus": 1,
        "memory": "512MiB",
        "lifetime": "15m",
        "env": {"A": "1"},
        "labels": {"team": "x"},
        "owner": "ann",
        "name": "one",
        "inputs": {"a": {"text": "text"}, "b": {"b64": "Ynk="}, "c": {"b64": "/w=="}},
        "workdir": "/w",
    }
    assert box.state == "running" and box.name == "one" and box.labels == {"team": "x"}
    box.close()


def test_unknown_options_name_the_one_that_was_meant(api: Any, fake: Any) -> None:
    for option, meant in {"timeout": "lifetime", "cpu": "cpus", "lifetim": "lifetime", "image": "template"}.items():
        with pytest.raises(TypeError, match=f"'{option}'; did you mean '{meant}'"):
            api("base", **{option: 1})
    with pytest.raises(TypeError, match=r"'zzzz'$"):
        api(zzzz=1)
    with pytest.raises(TypeError, match="'lifetime'"):
        api.get_or_create(name="a", timeout=3)
    assert fake.boxes == {}


def test_values_that_can_not_be_sent_are_named(api: Any, fake: Any) -> None:
    cases: list[dict[str, Any]] = [
        {"cpus": float("nan")},
        {"memory": float("inf")},
        {"owner": b"x"},
        {"labels": ["a"]},
        {"env": "A=1"},
        {"inputs": ["a"]},
        {"inputs": {"a": 3}},
    ]
    for options in cases:
        (name,) = options
        with pytest.raises(InvalidRequest, match=name) as caught:
            api(**options)
        assert name in caught.value.details["field"]
    with pytest.raises(TooLarge, match="inputs"):
        api(inputs={"a": b"x" * (8 * 1024 * 1024 + 1)})
    assert fake.boxes == {}


def test_network_is_a_value_that_the_server_judges(api: Any, fake: Any) -> None:
    api(network="deny").close()
    wanted = Network(presets=["pip"], allow=["api.example.com:443", Rule(cidr="203.0.114.0/24", ports=[80])])
    with api(network=wanted) as box:
        sent = {
            "presets": ["pip"],
            "allow": ["api.example.com:443", {"cidr": "203.0.114.0/24", "ports": [80], "protocol": "tcp"}],
        }
        assert fake.bodies[-1]["network"] == sent
        found = box.network.get()
        assert found.generation == 1 and isinstance(found.network, NetworkPolicy)
        assert found.network.rules() == [NetworkRule(cidr="203.0.114.0/24", ports=[80])]
        assert found.resolved and (found.resolved[0].host, found.resolved[0].origin) == ("pip.test", "preset:pip")
        closed = box.network.set("deny")
        assert (closed.network, closed.generation) == ("deny", 2) and box.info().network == "deny"
        assert box.network.set(found.network).generation == 3, "what was answered can be set again"
        assert fake.bodies[-1]["network"] == found.network.to_json()
        box.network.set(Network(mode="open", deny=["203.0.114.7/32"]))
        assert fake.bodies[-1]["network"] == {"presets": [], "allow": [], "mode": "open", "deny": ["203.0.114.7/32"]}
        found = box.network.get()
        assert found.network == NetworkPolicy(mode="open", deny=["203.0.114.7/32"])
        assert box.network.set(found.network).network == found.network
        assert fake.bodies[-1]["network"] == {"mode": "open", "deny": ["203.0.114.7/32"]}
        with pytest.raises(InvalidRequest, match="too wide"):
            box.network.set(Network(allow=["*.com"]))
    with pytest.raises(InvalidRequest, match="network"):
        api(network=Network(allow=["*.com"]))
    for wrong in ({}, {"host": "a", "cidr": "b"}):
        with pytest.raises(TypeError):
            Rule(**wrong)
    for one in ({"allow": "api.example.com:443"}, {"deny": "203.0.114.7"}):
        with pytest.raises(TypeError):
            Network(**one)  # type: ignore[arg-type]


def test_the_block_deletes_it(api: Any, fake: Any) -> None:
    with api() as box:
        assert box.id in fake.boxes
    assert fake.boxes == {}
    with pytest.raises(LookupError), api() as box:
        raise LookupError
    assert fake.boxes == {}


def test_the_block_does_not_mind_one_that_is_gone(api: Any, fake: Any) -> None:
    with api() as box:
        box.delete()
    with pytest.raises(InternalError), api():
        fake.refuse = [InternalError("no")]
    with pytest.raises(LookupError) as caught, api():
        fake.refuse = [InternalError("no")]
        raise LookupError
    assert "could not be deleted" in caught.value.__notes__[0]


def test_connect_and_info(api: Any, fake: Any) -> None:
    made = api(labels={"a": "b"})
    found = api.connect(made.id)
    assert found.info().labels == {"a": "b"}
    assert found.update(labels={"c": "d"}).labels == {"c": "d"} == found.labels
    with pytest.raises(TypeError, match="'lifetime'"):
        found.update(timeout=3)
    with pytest.raises(InvalidRequest, match="lifetime"):
        found.update(lifetime=float("nan"))
    found.delete()
    with pytest.raises(NotFound):
        made.info()
    for wrong in ("sb" + "a" * 20, "", "../keys", "SB", "sb" + "a" * 20 + "\n", 3):
        with pytest.raises(NotFound):
            api.connect(wrong)
    made.close()


def test_get_or_create(api: Any, fake: Any) -> None:
    one = api.get_or_create(name="n", cpus=1)
    two = api.get_or_create(name="n")
    assert one.id == two.id and len(fake.boxes) == 1
    with pytest.raises(Conflict):
        api(name="n")
    one.close()
    two.close()


def test_list_goes_over_all_pages(api: Any, fake: Any) -> None:
    made = [api(owner="ann" if number % 2 else "bob", labels={"n": str(number)}) for number in range(5)]
    assert {box.id for box in api.list()} == {box.id for box in made}
    assert len(list(api.list(owner="ann"))) == 2
    assert [box.id for box in api.list(labels={"n": "3"})] == [made[3].id]
    for box in list(api.list()):
        box.delete()
        box.close()
    assert fake.boxes == {}
    assert list(api.list(state="all")) == []
    for box in made:
        box.close()


def test_a_create_whose_answer_is_lost_makes_one_sandbox(api: Any, fake: Any) -> None:
    fake.drop_answers = 2
    with api() as box:
        assert list(fake.boxes) == [box.id]
    assert [entry for entry in fake.requests if entry == ("POST", "/v1/sandboxes")] == [("POST", "/v1/sandboxes")] * 3


def test_server_errors_come_back_as_they_are(api: Any, fake: Any) -> None:
    fake.refuse = [NodeUnavailable("the node is away", hint="wait", details={"node": "a"})]
    with pytest.raises(NodeUnavailable, match="away") as caught:
        api()
    assert caught.value.retryable and caught.value.hint == "wait" and caught.value.details == {"node": "a"}
    with pytest.raises(Unauthorized):
        api(api_key="bg_wrong")
    with pytest.raises(NotFound, match="nope"):
        api("nope")


def test_an_async_one_is_there_once_awaited(server: Any) -> None:
    async def check() -> None:
        box = AsyncSandbox()
        assert "not created" in repr(box)
        with pytest.raises(ClientError, match="not created yet"):
            _ = box.id
        assert server.app.boxes == {}
        assert await box is box and box.id in server.app.boxes
        assert await box is box and len(server.app.boxes) == 1
        async with box as same:
            assert same is box
        assert server.app.boxes == {}

    asyncio.run(check())


def test_repr_has_no_secret(server: Any) -> None:
    with Sandbox(env={"TOKEN": "canary"}) as box:
        shown = repr(box) + repr(box._transport) + repr(vars(box._transport))
        assert "canary" not in shown and "bg_kkkk" not in shown
