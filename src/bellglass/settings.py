"""The settings: one table. A value comes from the environment, else `<data_dir>/bellglass.toml`, else its default.

`server.listen` is `listen` under `[server]` in the file and `BELLGLASS_SERVER_LISTEN` in the environment. Read once
at start and passed on; nothing reads the environment later. An unknown key or a value of the wrong kind is an error.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bellglass.errors import InvalidRequest
from bellglass.units import parse_duration, parse_size


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    parse: Callable[[Any, str], Any]
    default: Any
    help: str

    @property
    def env_name(self) -> str:
        return "BELLGLASS_" + self.name.replace(".", "_").upper()


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidRequest(f"{name}: {value!r} is not a string", details={"field": name})
    return value


def _count(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, (bool, float)) or number < 0:
        raise InvalidRequest(f"{name}: {value!r} is not a whole number from 0", details={"field": name})
    return number


def _factor(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number <= 1000:
        raise InvalidRequest(f"{name}: {value!r} is not a factor above 0", details={"field": name})
    return number


def _amount(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number < 1e6:
        raise InvalidRequest(f"{name}: {value!r} is not a number from 0", details={"field": name})
    return number


def _switch(value: Any, name: str) -> bool:
    words = {"true": True, "false": False, "1": True, "0": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in words:
        raise InvalidRequest(f"{name}: {value!r} is neither true nor false", details={"field": name})
    return words[value.lower()]


def _words(value: Any, name: str) -> tuple[str, ...]:
    """A list in the file, words with commas between them in the environment."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise InvalidRequest(f"{name}: {value!r} is neither a list nor words with commas", details={"field": name})
    return tuple(word.strip() for word in words if word.strip())


def _pairs(value: Any, name: str) -> tuple[tuple[str, str], ...]:
    """Words of the form A=B; A may be empty nowhere, and names one B."""
    found: dict[str, str] = {}
    for word in _words(value, name):
        left, equals, right = (part.strip() for part in word.partition("="))
        if not equals or not left or not right or left in found:
            raise InvalidRequest(f"{name}: {word!r} is not ALIAS=TEMPLATE, each alias once", details={"field": name})
        found[left] = right
    return tuple(found.items())


def _cidrs(value: Any, name: str) -> tuple[str, ...]:
    """Ranges of addresses; a single address is one of its own."""
    found = []
    for word in _words(value, name):
        try:
            found.append(str(ipaddress.ip_network(word)))
        except ValueError as error:
            raise InvalidRequest(f"{name}: {word!r} is not a CIDR: {error}", details={"field": name}) from None
    return tuple(found)


def _addresses(value: Any, name: str) -> tuple[str, ...]:
    found = []
    for word in _words(value, name):
        try:
            found.append(str(ipaddress.ip_address(word)))
        except ValueError:
            raise InvalidRequest(f"{name}: {word!r} is not an address", details={"field": name}) from None
    return tuple(found)


def _urls(value: Any, name: str) -> tuple[str, ...]:
    urls = _words(value, name)
    for url in urls:
        if not url.startswith(("http://", "https://")) or any(c.isspace() or not c.isprintable() for c in url):
            raise InvalidRequest(f"{name}: {url!r} is not an http or https URL", details={"field": name})
    return urls


def _url(value: Any, name: str) -> str:
    """One, or the empty string."""
    if _string(value, name) and len(_urls([value], name)) != 1:
        raise InvalidRequest(f"{name}: {value!r} is not an http or https URL", details={"field": name})
    return str(value)


def _headers(value: Any, name: str) -> tuple[tuple[str, str], ...]:
    """`Name=value`, a list or with commas between; the value is told in no message, since it may be a secret."""
    found = []
    for word in _words(value, name):
        header, equals, content = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header) or not content.isprintable():
            raise InvalidRequest(f"{name}: a header is not of the form Name=value", details={"field": name})
        found.append((header, content.strip()))
    return tuple(found)


SETTINGS: tuple[Setting, ...] = (
    Setting("server.listen", _string, "127.0.0.1", "address that the API listens on; loopback unless told"),
    Setting("server.port", _count, 7300, "port of the API; 0 takes a free one"),
    Setting("server.retention", parse_duration, 7 * 86400.0, "how long an ended sandbox stays readable"),
    Setting("server.quarantine", parse_duration, 86400.0, "how long a sandbox that the database does not know is kept"),
    Setting("server.max_body", parse_size, 2**20, "most bytes of a JSON body"),
    Setting("server.max_create_body", parse_size, 16 * 2**20, "most bytes of a create's body (it holds inputs)"),
    Setting("server.max_file", parse_size, 64 * 2**30, "most bytes of one file or archive moved by the API"),
    Setting("server.max_connections", _count, 10_000, "connections at once; beyond it idle ones make room"),
    Setting("server.max_key_requests", _count, 1000, "requests of one key under way at once, streams included"),
    Setting(
        "server.stall_timeout",
        parse_duration,
        300.0,
        "how long a client may leave its body unsent or its answer unread",
    ),
    Setting("server.keepalive", parse_duration, 15.0, "longest silence of a stream of output"),
    Setting("server.idempotency_retention", parse_duration, 86400.0, "how long an Idempotency-Key is remembered"),
    Setting(
        "server.template_aliases",
        _pairs,
        (("code-interpreter-v1", "interpreter"),),
        "other names of templates, ALIAS=TEMPLATE: what programs ask for that were written for another platform",
    ),
    Setting(
        "server.max_sandboxes", _count, 1000, "sandboxes that a project may have at once, unless it has its own limit"
    ),
    Setting("node.driver", _string, "runc", "isolation driver: runc, crun (untested), or fake for tests"),
    Setting("node.log_limit", parse_size, 64 * 2**20, "size of one execution's log ring"),
    Setting("node.execution_retention", _count, 10_000, "finished executions kept per sandbox"),
    Setting("node.max_executions", _count, 256, "executions that may run at once in one sandbox"),
    Setting("node.max_cpus", _factor, 64.0, "most CPUs of one sandbox"),
    Setting("node.cpu_overcommit", _factor, 64.0, "sum of CPU limits over the host's CPUs beyond the reserve"),
    Setting("node.cpu_reserve", _amount, 0.0, "CPUs of the host that admission leaves alone"),
    Setting("node.memory_overcommit", _factor, 4.0, "sum of memory limits over the host's memory beyond the reserve"),
    Setting("node.memory_reserve", parse_size, 512 * 2**20, "bytes of the host's memory that admission leaves alone"),
    Setting("node.disk_overcommit", _factor, 20.0, "sum of disks and logs over the free disk beyond the reserve"),
    Setting("node.disk_reserve", parse_size, 2 * 2**30, "free bytes of the host's disk that creates leave alone"),
    Setting("node.disk_low_water", parse_size, 512 * 2**20, "free bytes below which all executions are frozen"),
    Setting("node.pids_overcommit", _factor, 8.0, "sum of process limits over kernel.pid_max beyond the reserve"),
    Setting("node.pids_reserve", _count, 4096, "processes of the host that admission leaves alone"),
    Setting("node.pool_refills", _count, 0, "machines that pools make at once; 0: half as many as the host has CPUs"),
    Setting("node.metrics_interval", parse_duration, 5.0, "how often it is measured what each sandbox uses"),
    Setting(
        "node.favordynmods",
        _switch,
        True,
        "mount the host's cgroups with this option (Linux 6.0): executions start about 11 ms earlier",
    ),
    Setting("node.extra_ca", _string, "", "PEM file of a CA that templates trust beside Debian's own"),
    Setting("node.templates_dir", _string, "", "folder of built templates; default: templates/ of the cache folder"),
    Setting("egress.exceptions", _cidrs, (), "CIDRs that networks may open although they are private or special"),
    Setting("egress.upstream_dns", _addresses, (), "DNS servers of the proxy; default: the host's /etc/resolv.conf"),
    Setting("egress.hosts_file", _string, "/etc/hosts", "names that the proxy knows without DNS"),
    Setting("egress.max_connections", _count, 512, "connections through the proxy at once, of one sandbox"),
    Setting(
        "egress.presets_pip", _urls, (), "preset pip: the index, then other hosts' URLs; default: of the node's pip"
    ),
    Setting(
        "egress.presets_npm", _urls, (), "preset npm: the registry, then other hosts' URLs; default: of the node's npm"
    ),
    Setting("egress.presets_apt", _urls, (), "preset apt: mirrors; default: of the node's apt"),
    Setting("previews.listen", _string, "127.0.0.1", "address that published ports are served on; empty: none are"),
    Setting("previews.port", _count, 7380, "port that published ports are served on; 0 takes a free one"),
    Setting("previews.domain", _string, "localhost", "published ports are <sandbox>-<port> below this domain"),
    Setting("previews.tls_cert", _string, "", "PEM file of a certificate for *.<domain>, with its chain"),
    Setting("previews.tls_key", _string, "", "PEM file of the certificate's key"),
    Setting(
        "previews.scheme", _string, "", "http or https in URLs; https without a certificate: a proxy in front ends TLS"
    ),
    Setting("previews.public_port", _count, 0, "port in URLs, where a proxy stands in front; 0: the listener's own"),
    Setting("previews.trusted_proxies", _cidrs, (), "proxies in front whose X-Forwarded-For is believed"),
    Setting("previews.max_connections", _count, 1000, "visitors' connections at once"),
    Setting("events.retention", parse_duration, 30 * 86400.0, "how long events can be read"),
    Setting("events.max_per_project", _count, 100_000, "most events of a project; beyond it the oldest go"),
    Setting("events.jsonl_url", _url, "", "collector that gets all events as JSON lines by POST"),
    Setting("events.jsonl_headers", _headers, (), "headers of these requests: Name=value, such as a token"),
    Setting("events.otlp_endpoint", _url, "", "collector that gets all events as OTLP/HTTP logs, at /v1/logs below it"),
    Setting("events.otlp_headers", _headers, (), "headers of these requests: Name=value"),
    Setting("events.jsonl_file", _string, "", "file that the server appends all events to, as JSON lines"),
    Setting("supervisor.log_limit", parse_size, 64 * 2**20, "size of a daemon's own log; as much of it before is kept"),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
_VARIABLES = tuple(sorted({f"BELLGLASS_{setting.name.split('.')[0].upper()}_" for setting in SETTINGS}))


class Settings(Mapping[str, Any]):
    """Settled values by dotted name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _meant(given: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(names), 1, 0.8)
    return f"did you mean {close[0]!r}?" if close else "docs/reference/settings.md lists them"


def load(
    file: Path | None, environ: Mapping[str, str] = os.environ, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Settle every setting. Raises InvalidRequest naming the key (and for the file its path)."""
    flat: dict[str, Any] = {}
    if file is not None and file.exists():
        try:
            document = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise InvalidRequest(f"{file}: {error}", hint="it must be TOML") from error
        for section, table in document.items():
            if not isinstance(table, dict):
                raise InvalidRequest(
                    f"{file}: {section!r} is not a section",
                    hint='settings look like "port = 7300" under [server]',
                )
            flat.update({f"{section}.{key}": value for key, value in table.items()})
        if unknown := sorted(set(flat) - set(BY_NAME)):
            raise InvalidRequest(f"{file}: unknown setting {unknown[0]!r}", hint=_meant(unknown[0], BY_NAME))
    variables = {setting.env_name for setting in SETTINGS}
    if unknown := sorted(name for name in environ if name.startswith(_VARIABLES) and name not in variables):
        raise InvalidRequest(f"{unknown[0]} in the environment: unknown setting", hint=_meant(unknown[0], variables))
    for setting in SETTINGS:
        if setting.env_name in environ:
            flat[setting.name] = environ[setting.env_name]
    flat.update(overrides or {})
    return Settings({s.name: s.parse(flat[s.name], s.name) if s.name in flat else s.default for s in SETTINGS})
