"""A create's body against its bounds: a settled SandboxSpec, or an error that names field, value and next step.

Pure functions; whether there is room for it is the node's to say.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Mapping
from datetime import UTC
from typing import NamedTuple

from bellglass.egress.floor import Floor
from bellglass.errors import InvalidRequest
from bellglass.ids import NAME
from bellglass.model import (
    MAX_INPUTS_BYTES,
    CreateSandbox,
    InputFile,
    SandboxSpec,
    TemplateInfo,
    parse_time,
)
from bellglass.server.cluster.base import NodeInfo
from bellglass.server.http.validation import did_you_mean, refuse
from bellglass.server.network.judge import Presets, judge
from bellglass.server.ports.validate import check_auto
from bellglass.server.sandboxes.tiers import choose_tier
from bellglass.units import format_size, parse_duration, parse_size

MIN_CPUS = 0.1
MIN_MEMORY_BYTES = 64 * 2**20
MIN_DISK_BYTES = 64 * 2**20
MIN_PIDS, MAX_PIDS = 16, 32768
MIN_LIFETIME_S, MAX_LIFETIME_S = 1.0, 30 * 86400.0
MAX_LABELS = 64
MAX_LABEL_KEY = 128
MAX_LABELS_BYTES = 32 * 1024
MAX_ENV_BYTES = 256 * 1024
MAX_OWNER = 256
MAX_PATH_BYTES = 4096
MAX_INPUTS = 1024
BYTES_PER_INODE = 16384
MIN_INODES = 4096
SHIPPED = ("base", "interpreter")
"""Templates that have recipes of ours."""
RESERVED = "bellglass"
RESERVED_ENV = "BELLGLASS_"
_USER = re.compile(r"^([a-z_][a-z0-9_.-]{0,31}|[0-9]{1,10})$")


class Settled(NamedTuple):
    spec: SandboxSpec
    template: TemplateInfo


def settle(body: CreateSandbox, info: NodeInfo, max_cpus: float, presets: Presets, floor: Floor) -> Settled:
    """Check everything and fill in the defaults; `presets` are the node's, `floor` is what no network
    opens. Raises InvalidRequest and NotSupported."""
    check_name(body.name)
    check_owner(body.owner)
    check_labels(body.labels)
    check_env(body.env)
    check_inputs(body.inputs)
    if body.get_or_create and body.name is None:
        raise InvalidRequest("get_or_create: needs a name", hint="give `name`", details={"field": "get_or_create"})
    check_auto(body.auto_publish, body.auto_publish_host, body.auto_publish_tls)
    network = judge(body.network, info, presets, floor)
    template = find_template(body.template, info)
    if not MIN_CPUS <= body.cpus <= max_cpus:
        raise refuse("cpus", body.cpus, "is out of bounds", f"from {MIN_CPUS} to {max_cpus:g}")
    disk_bytes = _at_least("disk", parse_size(body.disk, "disk"), MIN_DISK_BYTES)
    if not MIN_PIDS <= body.pids <= MAX_PIDS:
        raise refuse("pids", body.pids, "is out of bounds", f"from {MIN_PIDS} to {MAX_PIDS}")
    spec = SandboxSpec(
        template=template.name,
        template_digest=template.digest,
        env=dict(body.env),
        user=check_user(body.user) or template.user,
        workdir=_workdir(body.workdir) or template.workdir,
        cpus=float(body.cpus),
        memory_bytes=_at_least("memory", parse_size(body.memory, "memory"), MIN_MEMORY_BYTES),
        disk_bytes=disk_bytes,
        inodes=max(MIN_INODES, disk_bytes // BYTES_PER_INODE),
        pids=body.pids,
        lifetime_s=lifetime(body.lifetime, "lifetime"),
        idle_timeout_s=None if body.idle_timeout is None else lifetime(body.idle_timeout, "idle_timeout"),
        tier=choose_tier(body.isolation, body.at_least, info.tiers),
        network=network,
        identity=body.identity,
    )
    return Settled(spec, template)


def find_template(name: str, info: NodeInfo) -> TemplateInfo:
    for template in info.templates:
        if template.name == name:
            return template
    names = sorted({template.name for template in info.templates})
    there = f"there are: {', '.join(names)}" if names else "none is built yet: `make template` builds base"
    if name in SHIPPED:
        build = f"`bellglass templates build {name}` as root"
        raise refuse("template", name, "is not built on this node", f"{build}; {there}")
    hint = did_you_mean(name, names)
    raise refuse("template", name, f"is unknown; {there}" if hint else "is unknown", hint or there)


def lifetime(value: object, field: str) -> float:
    seconds = parse_duration(value, field)
    if not MIN_LIFETIME_S <= seconds <= MAX_LIFETIME_S:
        raise refuse(field, value, "is out of bounds", "from 1 second to 30 days")
    return seconds


def end_time(value: str, field: str) -> float:
    """Seconds of the wall clock. One that has passed is now."""
    try:
        moment = parse_time(value)
        unix = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise refuse(field, value, "is not a time", 'such as "2026-11-30T09:00:00Z"') from None
    if unix > time.time() + MAX_LIFETIME_S:
        raise refuse(field, value, "is out of bounds", "at most 30 days from now")
    return max(unix, time.time())


def check_name(name: str | None) -> None:
    if name is not None and not NAME.fullmatch(name):
        raise refuse("name", name, "is not a name", "1 to 63 letters, digits, '.', '_', '-', no mark at either end")


def check_owner(owner: str | None) -> None:
    if owner is not None and (not owner or len(owner) > MAX_OWNER or not owner.isprintable()):
        raise refuse("owner", owner, "is not an owner", f"1 to {MAX_OWNER} printable characters")


def check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise refuse("labels", len(labels), "labels are too many", f"at most {MAX_LABELS}")
    for key, value in labels.items():
        if key.lower().startswith(RESERVED):
            raise refuse(
                f"labels.{key[:63]}", key, "is reserved", f"keys that begin with {RESERVED!r} are the platform's"
            )
        if not key or len(key) > MAX_LABEL_KEY or not key.isprintable() or key != key.strip() or "=" in key:
            hint = f'1 to {MAX_LABEL_KEY} printable characters, no "=", no space at either end'
            raise refuse("labels", key, "is not a label's key", hint)
        if "\0" in value:
            raise refuse(f"labels.{key}", value, "is not a label's value", "no NUL")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in labels.items())
    if size > MAX_LABELS_BYTES:
        raise refuse("labels", size, "bytes of labels are too many", f"at most {format_size(MAX_LABELS_BYTES)}")


def check_env(env: Mapping[str, str], limit_bytes: int = MAX_ENV_BYTES) -> None:
    """Names may hold anything but "=" and NUL (`A-B` is passed on as it is). Values are never repeated in errors."""
    size = 0
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise refuse("env", name, "is not a variable's name", 'not empty, no "=", no NUL')
        if name.startswith(RESERVED_ENV):
            raise refuse("env", name, "is reserved", f"names that begin with {RESERVED_ENV} are the platform's")
        if "\0" in value:
            raise InvalidRequest(f"env.{name[:63]}: the value holds a NUL byte", details={"field": f"env.{name[:63]}"})
        size += len(name.encode()) + len(value.encode()) + 2
    if size > limit_bytes:
        raise InvalidRequest(
            f"env: {size} bytes are over the limit of {format_size(limit_bytes)}",
            hint="put large data into a file under `inputs`",
            details={"field": "env"},
        )


def check_user(user: str | None, field: str = "user") -> str | None:
    if user is not None and not (_USER.fullmatch(user) and (not user.isdigit() or int(user) < 2**31)):
        raise refuse(field, user, "is not a user", "a name from the template, or a uid")
    return user


def _workdir(path: str | None) -> str | None:
    if path is not None and (not path.startswith("/") or "\0" in path or len(path.encode()) > MAX_PATH_BYTES):
        raise refuse("workdir", path, "is not an absolute path", 'such as "/home/user"')
    return path


def _at_least(field: str, size: int, least: int) -> int:
    if size < least:
        raise refuse(field, size, "bytes are too few", f"at least {format_size(least)}")
    return size


def check_inputs(inputs: Mapping[str, InputFile]) -> None:
    """Names are relative paths below /inputs. Contents are never repeated in errors."""
    if len(inputs) > MAX_INPUTS:
        raise refuse("inputs", len(inputs), "files are too many", f"at most {MAX_INPUTS}")
    size = 0
    for path, file in inputs.items():
        parts = path.split("/")
        if len(path.encode()) > 1024 or any(
            part in ("", ".", "..") or "\0" in part or len(part.encode()) > 255 for part in parts
        ):
            raise refuse("inputs", path, "is not a relative path", 'such as "data/sales.csv"')
        if any("/".join(parts[:depth]) in inputs for depth in range(1, len(parts))):
            raise refuse("inputs", path, "lies below another input that is a file")
        size += _input_size(path, file)
    if size > MAX_INPUTS_BYTES:
        raise InvalidRequest(
            f"inputs: {size} bytes are over the limit of {format_size(MAX_INPUTS_BYTES)}",
            hint="upload larger files after the create",
            details={"field": "inputs"},
        )


def _input_size(path: str, file: InputFile) -> int:
    if (file.text is None) == (file.b64 is None):
        raise refuse("inputs", path, "needs exactly one of `text` and `b64`")
    if file.text is not None:
        return len(file.text.encode())
    try:
        return len(base64.b64decode(file.b64 or "", validate=True))
    except (binascii.Error, ValueError):
        raise refuse("inputs", path, "is not base64") from None
