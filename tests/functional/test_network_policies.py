"""What a sandbox's network lets through and what not, from inside of real ones, and when a change of it is in force.

In a world of its own: nothing leaves the machine. Each refusal is shown beside the same thing passing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bellglass import Network, Rule
from bellglass.errors import InvalidRequest
from bellglass.testing.stack import Stack
from bellglass.testing.world import ADDRESSES, World, echo
from tests.functional.own import own_installation
from tests.functional.package_index import index

pytestmark = [pytest.mark.root]
SMALL: dict[str, Any] = {"cpus": 1, "memory": "256MiB", "disk": "512MiB", "lifetime": "15m"}
WEB, RAW, INDEX = ADDRESSES[1], ADDRESSES[2], ADDRESSES[3]
HOUSE, CLOSED = "192.168.7.7", "10.0.0.1"
"""Private addresses: one that the operator has taken out of what is closed, and one not."""
DIAL = r"""
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as sock:
        print(sock.recv(6).decode().strip() or "end")
except OSError as error:
    print(type(error).__name__)
"""
HOLD = r"""
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(sock.recv(6).decode().strip(), flush=True)
try:
    print(sock.recv(1) or "end", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""

AGAIN = """
import socket
while True:
    try:
        socket.create_connection(("raw.test", 5000), 20).close()
    except OSError:
        pass
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        made.dns.zone |= {
            "raw.test": [RAW], "deep.down.raw.test": [RAW], "index.test": [INDEX], "house.test": [HOUSE],
            "closed.test": [CLOSED], "metadata.test": ["169.254.169.254"],
        }  # fmt: skip
        made.serve(INDEX, 80, index)
        for address in (RAW, HOUSE, CLOSED, "169.254.169.254"):
            made.serve(address, 5000, echo)
        made.serve(RAW, 5001, echo)
        yield made


@pytest.fixture(scope="module")
def installation(world: World) -> Iterator[Stack]:
    more = {"egress.exceptions": [f"{HOUSE}/32"], "egress.presets_pip": ["http://index.test/simple"]}
    with own_installation(settings=more, world=world) as running:
        yield running


@pytest.fixture(autouse=True)
def on_the_worlds_host(world: World) -> Iterator[None]:
    with world.inside():
        yield


@pytest.fixture
def guest(installation: Stack) -> Iterator[Any]:
    with installation.sandbox(**SMALL) as made:
        yield made


def dial(guest: Any, host: str, port: int = 5000) -> str:
    done = guest.exec(["python3", "-c", DIAL, host, str(port)], timeout=60)
    assert done.ok, done.stderr
    return str(done.stdout).strip()


REFUSED = ("gaierror", "ConnectionResetError", "ConnectionRefusedError")
KINDS: dict[str, tuple[Any, set[tuple[str, int]]]] = {
    "deny": ("deny", set()),
    "name": (Network(allow=["raw.test:5000"]), {("raw.test", 5000)}),
    "ports": (
        Network(allow=[Rule(host="RAW.test", ports=[5000, 5001])]), {("raw.test", 5000), ("raw.test", 5001)}
    ),
    "wildcard": (Network(allow=["*.raw.test:5000"]), {("deep.down.raw.test", 5000)}),
    "address": (Network(allow=[f"{RAW}:5000"]), {(RAW, 5000)}),
    "range": (Network(allow=[Rule(cidr="203.0.114.0/24", ports=[5001])]), {(RAW, 5001)}),
    "house": (Network(allow=["house.test:5000", "closed.test:5000"]), {("house.test", 5000)}),
    "house by address": (Network(allow=[f"{HOUSE}:5000"]), {(HOUSE, 5000)}),
    "all": (
        "open", {("raw.test", 5000), ("raw.test", 5001), ("deep.down.raw.test", 5000), (RAW, 5000), (RAW, 5001),
                 ("house.test", 5000), (HOUSE, 5000)},
    ),
    "all but the house": (
        Network(mode="open", deny=["8.8.8.8", f"{HOUSE}/32"]),
        {("raw.test", 5000), ("raw.test", 5001), ("deep.down.raw.test", 5000), (RAW, 5000), (RAW, 5001)},
    ),
}  # fmt: skip
PLACES = {place for _, open_places in KINDS.values() for place in open_places} | {
    (CLOSED, 5000), ("closed.test", 5000), ("metadata.test", 5000), ("169.254.169.254", 5000), ("127.0.0.1", 5000),
}  # fmt: skip


def test_each_kind_opens_what_it_names(world: World, guest: Any) -> None:
    """On one sandbox, one after the other: what one has opened, the next closes."""
    for name, (network, opened) in KINDS.items():
        found = guest.network.set(network)
        assert found.resolved is not None and len(found.resolved) == len(getattr(network, "allow", ())), name
        world.dialled.clear()
        outcomes = {place: dial(guest, *place) for place in sorted(PLACES)}
        assert {place for place, outcome in outcomes.items() if outcome == "ready"} == opened, (name, outcomes)
        assert {outcome for place, outcome in outcomes.items() if place not in opened} <= set(REFUSED), (name, outcomes)
        came = {(address, port) for address, port, _ in world.dialled}
        assert len(world.dialled) == len(opened) and came <= {(RAW, 5000), (RAW, 5001), (HOUSE, 5000)}, name


def test_from_the_create_on(installation: Stack) -> None:
    with installation.sandbox(**SMALL, network=Network(allow=["raw.test:5000"])) as box:
        assert dial(box, "raw.test") == "ready" and dial(box, "raw.test", 5001) in REFUSED
    with installation.sandbox(**SMALL) as box:
        assert dial(box, "raw.test") in REFUSED
    with installation.sandbox(**SMALL, network=Network(mode="open", deny=[RAW])) as box:
        assert dial(box, "raw.test") in REFUSED and dial(box, RAW) in REFUSED and dial(box, "house.test") == "ready"


def test_open_connections_are_cut_before_the_answer(guest: Any) -> None:
    guest.network.set(Network(allow=["raw.test:5000", f"{RAW}:5001"]))
    held = [guest.start(["python3", "-c", HOLD, *place]) for place in (("raw.test", "5000"), (RAW, "5001"))]
    ready = threading.Event()
    with ThreadPoolExecutor(2) as pool:

        def follow(execution: Any) -> str:
            for chunk in execution.output(follow=True):
                if b"ready" in chunk.data:
                    ready.set()
            return str(execution.wait().stdout)

        first = pool.submit(follow, held[0])
        assert ready.wait(20)
        ready.clear()
        second = pool.submit(follow, held[1])
        assert ready.wait(20)
        # What stays allowed stays open.
        guest.network.set(Network(allow=["raw.test:5000"]))
        assert second.result(20).split() == ["ready", "ConnectionResetError"]
        assert held[0].status().state == "running"
        guest.network.set("deny")
        assert first.result(20).split() == ["ready", "ConnectionResetError"]


def test_nothing_of_what_is_refused_comes_behind_the_answer(world: World, guest: Any) -> None:
    """Something inside dials without end, while the network is opened and closed."""
    dialling = guest.start(["python3", "-c", AGAIN])
    for _ in range(10):
        guest.network.set(Network(allow=["raw.test:5000"]))
        before, pause = len(world.dialled), threading.Event()
        for _ in range(500):
            if len(world.dialled) > before:
                break
            pause.wait(0.01)
        assert len(world.dialled) > before, "none came while it was open"
        guest.network.set("deny")
        pause.wait(0.05)  # what was accepted before the answer is counted by then
        closed = len(world.dialled)
        pause.wait(0.1)
        assert len(world.dialled) == closed
    dialling.kill()


def test_changes_at_once_leave_one_that_all_agree_on(world: World, installation: Stack, guest: Any) -> None:
    networks = ["deny", {"allow": ["raw.test:5000"]}, {"allow": ["raw.test:5001"]}, "open"] * 4
    headers = {"Authorization": f"Bearer {installation.api_key}"}
    url = f"{installation.api_url}/v1/sandboxes/{guest.id}/network"

    def put(network: Any) -> dict[str, Any]:
        return dict(httpx2.put(url, json={"network": network}, headers=headers, timeout=60, trust_env=False).json())

    with ThreadPoolExecutor(8) as pool:  # whose threads are not on this world's host by themselves
        answers = list(pool.map(lambda network: world.host.call(put, network), networks))
    last = guest.network.get()
    assert last.generation == 1 + len(networks) == max(answer["generation"] for answer in answers)
    shown = guest.info()
    assert (shown.network, shown.network_generation) == (last.network, last.generation)
    rules = {(rule.host, tuple(rule.ports)) for rule in last.resolved or ()}
    for port in (5000, 5001):
        opened = last.network == "open" or ("raw.test", (port,)) in rules
        assert (dial(guest, "raw.test", port) == "ready") == opened


def test_a_claimed_machine_has_its_network_at_once(installation: Stack, world: World) -> None:
    headers = {"Authorization": f"Bearer {installation.admin_key}"}
    with httpx2.Client(base_url=installation.api_url, headers=headers, timeout=60, trust_env=False) as admin:
        shape = {name: SMALL[name] for name in ("cpus", "memory", "disk")}
        assert admin.put("/v1/pools/base", json={"size": 3, **shape}).status_code == 200

        def ready() -> int:
            return int(admin.get("/v1/pools/base").json()["status"]["ready"])

        pause = threading.Event()
        for _ in range(600):
            if ready() == 3:
                break
            pause.wait(0.05)
        for network, outcome in ((Network(allow=["raw.test:5000"]), "ready"), ("deny", "gaierror"), ("open", "ready")):
            with installation.sandbox(**SMALL, network=network) as box:
                assert dial(box, "raw.test") == outcome, network
        status = admin.get("/v1/pools/base").json()["status"]
        assert status["hits"] == 3, status
        assert admin.delete("/v1/pools/base").status_code == 204


def test_a_preset_points_the_tool_inside(installation: Stack) -> None:
    with installation.sandbox(**SMALL, network=Network(presets=["pip"])) as box:
        assert box.exec("echo $PIP_INDEX_URL $PIP_TRUSTED_HOST").stdout == "http://index.test/simple index.test\n"
        done = box.exec("pip install requests && python3 -c 'import requests; print(requests.VERSION)'", timeout=120)
        assert done.ok and done.stdout.endswith("1.0\n"), done.stderr
        assert box.exec("sudo pip install --force-reinstall requests", timeout=120).ok
        assert box.exec("echo $PIP_INDEX_URL", env={"PIP_INDEX_URL": "http://mine.test"}).stdout == "http://mine.test\n"
        box.network.set("deny")
        assert box.exec("echo -$PIP_INDEX_URL").stdout == "-\n"
    with pytest.raises(InvalidRequest, match="preset"):
        installation.sandbox(**SMALL, network=Network(presets=["pypi"]))
