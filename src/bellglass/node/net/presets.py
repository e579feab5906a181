"""Presets: `pip`, `npm` and `apt` as rules, by the settings or by what the node's own tools are set up with.

No name of a host stands here. Each is found when it is first asked for, since asking the tools takes a second, and then
remembered: a node that starts again goes on with what it knew, whether or not the index answers now.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from bellglass.egress.policy import is_name
from bellglass.model import Network, NetworkPolicy

PRESETS = ("pip", "npm", "apt")
VARIABLES = {"pip": "PIP_INDEX_URL", "npm": "npm_config_registry"}
"""Where a tool inside reads the address that the first URL of its preset is."""
DEFAULT_PORTS = {"http": 80, "https": 443}
DISCOVER_S = 60.0
log = logging.getLogger("bellglass.network")


class Preset(NamedTuple):
    """`rules` of a policy's document; `variables` point the tool inside at them. With a `problem` it opens nothing."""

    rules: tuple[dict[str, Any], ...] = ()
    variables: Mapping[str, str] = {}
    problem: str | None = None
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        if self.problem is not None:
            return {"problem": self.problem, "hint": self.hint}
        return {"rules": list(self.rules)}


Remember = Callable[..., Awaitable[str | None]]
"""`Journal.meta`: with a key the stored value, with a value it is stored."""


class Presets:
    """What the settings `egress.presets_*` leave empty is found."""

    def __init__(self, settings: Mapping[str, Any], remember: Remember) -> None:
        self._urls: dict[str, tuple[str, ...]] = {name: settings[f"egress.presets_{name}"] for name in PRESETS}
        self._remember = remember
        self._found: dict[str, Preset] = {}
        self._remembered: dict[str, Preset] = {}
        self._asking: dict[str, asyncio.Task[Preset]] = {}

    async def find(self, names: Sequence[str]) -> dict[str, Preset]:
        """Those of the names that there are. One that has a problem is tried again at the next asking."""
        wanted = [name for name in PRESETS if name in names]
        found = await asyncio.gather(*(self._get(name) for name in wanted))
        return dict(zip(wanted, found, strict=True))

    async def renew(self, names: Sequence[str]) -> dict[str, Preset]:
        """Ask the tools again. A preset that now has a problem keeps what it opened, and is answered with the
        problem."""
        renewed = {}
        for name in names:
            before = self._found.pop(name, None) or self._remembered.get(name)
            renewed[name] = await self._get(name)
            if renewed[name].problem is not None and before is not None:
                self._found[name] = before
        return renewed

    async def _known(self, name: str) -> Preset:
        """Without asking the tools, where an earlier node has."""
        if name in self._found or self._urls.get(name):
            return await self._get(name)
        if name not in self._remembered and (told := await self._remember(_key(name))):
            self._remembered[name] = preset_of(name, **json.loads(told))
        return self._remembered.get(name) or await self._get(name)

    async def _get(self, name: str) -> Preset:
        if name in self._found:
            return self._found[name]
        if name not in PRESETS:
            return Preset(problem="this node knows no such preset")
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.create_task(self._find(name), name=f"preset:{name}")
        return await asyncio.shield(task)

    async def document(self, network: Network) -> dict[str, Any]:
        """The policy of a sandbox with this network, as proxy and resolver take it: they refuse what its mode has no
        use for. A preset with a problem opens nothing, and the rest is in force."""
        if not isinstance(network, NetworkPolicy):
            return {"mode": network, "rules": []}
        rules = [rule.document() for rule in network.rules()]
        for name in network.presets:
            preset = await self._known(name)
            if preset.problem is not None:
                log.warning("preset %s opens nothing: %s", name, preset.problem)
            rules += preset.rules
        return {"mode": network.mode, "rules": rules, **({"deny": network.deny} if network.deny else {})}

    async def variables(self, network: Network) -> dict[str, str]:
        """What an execution in a sandbox with this network finds in its environment, unless it was given."""
        found: dict[str, str] = {}
        for name in network.presets if isinstance(network, NetworkPolicy) else ():
            found |= (await self._known(name)).variables
        return found

    async def _find(self, name: str) -> Preset:
        try:
            if urls := self._urls[name]:
                preset = preset_of(name, urls)
            else:
                found = await _discover(name)
                preset = preset_of(name, **found)
                await self._remember(_key(name), json.dumps(found))
            self._found[name] = preset
            log.info("preset %s opens %s", name, ", ".join(_shown(rule) for rule in preset.rules))
            return preset
        except ValueError as error:
            setting = f"egress.presets_{name}"
            return Preset(problem=str(error), hint=f"the operator can name URLs in the setting {setting}")
        finally:
            del self._asking[name]


def _key(name: str) -> str:
    return f"preset:{name}"


async def _discover(name: str) -> dict[str, list[str]]:
    """What `preset_of` takes. Raises ValueError with what is missing."""
    argv = [sys.executable, "-P", "-m", "bellglass.node.net.discover", name]
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=pipe)
    try:
        async with asyncio.timeout(DISCOVER_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise ValueError(f"the node's package tools did not answer within {DISCOVER_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ValueError("the node's package tools could not be asked; its log has the reason")
    answer: dict[str, list[str]] = json.loads(printed)
    if "problem" in answer:
        raise ValueError(answer["problem"])
    return answer


def preset_of(name: str, urls: Sequence[str], extra_indexes: Sequence[str] = ()) -> Preset:
    """Raises ValueError for an URL without a host."""
    ports: dict[tuple[str, str], set[int]] = {}
    for url in (*urls, *extra_indexes):
        where, port = _place(urlsplit(url), url)
        ports.setdefault(where, set()).add(port)
    rules = tuple(
        {kind: value, "ports": sorted(found), "protocol": "tcp", "origin": f"preset:{name}"}
        for (kind, value), found in ports.items()
    )
    variable = VARIABLES.get(name)
    return Preset(rules, {variable: _without_user(urls[0]), **_of_pip(name, urls, extra_indexes)} if variable else {})


def _of_pip(name: str, urls: Sequence[str], extra_indexes: Sequence[str]) -> dict[str, str]:
    """An index without TLS it takes only from a host that it is told to trust: the operator has, by naming it."""
    found = {}
    if name == "pip" and extra_indexes:
        found["PIP_EXTRA_INDEX_URL"] = " ".join(_without_user(url) for url in extra_indexes)
    if name == "pip" and (plain := [url for url in (*urls, *extra_indexes) if url.startswith("http://")]):
        found["PIP_TRUSTED_HOST"] = " ".join(dict.fromkeys(urlsplit(_without_user(url)).netloc for url in plain))
    return found


def _place(parts: SplitResult, url: str) -> tuple[tuple[str, str], int]:
    host = (parts.hostname or "").rstrip(".")
    if not host or parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"{url!r} names no host")
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    try:
        return ("cidr", str(ipaddress.ip_network(host))), port
    except ValueError:
        name = host.encode("idna").decode("ascii").lower()
    if not is_name(name):
        raise ValueError(f"{url!r} names no host")
    return ("host", name), port


def _without_user(url: str) -> str:
    """The operator's password to an index is not for sandboxes."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _shown(rule: Mapping[str, Any]) -> str:
    ports = rule["ports"] if isinstance(rule["ports"], str) else ",".join(map(str, rule["ports"]))
    return f"{rule.get('host') or rule.get('cidr')}:{ports}"
