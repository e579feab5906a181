"""Everything that the helper does for the node, as one table. Who holds the node's uid can do this as root, no more.

| operation | fields | result |
|---|---|---|
| lease_uids | sandbox_id | range: index of the uid range; makes the sandbox's folders too |
| start_machine | those of StartMachine | pid, start_ticks, direct_io, lxcfs, profile_ms, descriptors: its listeners |
| open_listeners | sandbox_id, names | descriptors: those of gateway.LISTENERS, anew: whoever had them is gone |
| raise_wall | exceptions, dns | nothing; what the uids of proxy and resolver may send. Idempotent, replaces |
| hasten_end | sandbox_id | nothing; kills, and lifts the limits of CPU time from what dies. Idempotent |
| reclaim_machine | sandbox_id | nothing; kills what is left, removes all. Idempotent |
| renew_lxcfs | none | renewed: how many running machines now read from the lxcfs that was started last |
| list_machines | after: an id, or "" | ids: of the next sandboxes that have a folder |
| describe_machine | sandbox_id | has_disk, running, spec: what it was started with |
| keep_disk | sandbox_id | kept: whether there is a disk; as reclaim_machine, but for the disk |
| probe | runtime | versions and what is missing on this host |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bellglass import faultpoints, ids
from bellglass.errors import InvalidRequest
from bellglass.node.helper import cgroup, uids
from bellglass.node.helper.context import Context, locked, make_folders
from bellglass.node.helper.found import describe_machine, list_machines
from bellglass.node.helper.net import gateway, wall
from bellglass.node.helper.probe import probe
from bellglass.node.helper.reclaim import TIMEOUT_S, reclaim_machine
from bellglass.node.helper.renew import renew_lxcfs
from bellglass.node.helper.start import StartMachine, start_machine
from bellglass.node.image import disk

RUNTIMES = ("runc", "crun")
Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Operation:
    act: Callable[[Context, Mapping[str, Any]], Mapping[str, Any]]
    fields: Mapping[str, Check]
    timeout_s: float
    """After this the helper kills the child that does it; more than every deadline inside."""


def _matches(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _one_of(*values: str) -> Check:
    return lambda value: isinstance(value, str) and value in values


def _whole(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _number(low: float, high: float) -> Check:
    return lambda value: type(value) in (int, float) and math.isfinite(value) and low <= value <= high


def _boolean(value: Any) -> bool:
    return type(value) is bool


def _cpu_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= 4096
        and all(type(cpu) is int and 0 <= cpu < 65536 for cpu in value)
        and len(set(value)) == len(value)
    )


def _lease(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    sandbox_id = request["sandbox_id"]
    # First, so that there is something to hold the lock on.
    context.data.sandboxes_dir.mkdir(mode=0o711, exist_ok=True)
    context.data.sandbox_dir(sandbox_id).mkdir(mode=0o700, exist_ok=True)
    with locked(context, sandbox_id, TIMEOUT_S):
        index = uids.lease(context.installation, sandbox_id)
        faultpoints.reach("helper.lease.leased")
        make_folders(context, sandbox_id, index)
        faultpoints.reach("helper.lease.folders_made")
    return {"range": index}


def _start(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    return start_machine(context, StartMachine(**{**request, "cpu_ids": tuple(request["cpu_ids"])}))


def _open_listeners(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    # Not under the sandbox's lock, which a start holds as long as it takes: what is there is there.
    with gateway.entered(context.data, request["sandbox_id"]):
        made = gateway.open_listeners(request["names"])
    return {"descriptors": [listener.detach() for listener in made]}


def _raise_wall(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    wall.raise_wall(context, exceptions=request["exceptions"], dns=request["dns"])
    return {}


def _listeners(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 4 and all(name in gateway.LISTENERS for name in value)


def _hasten_end(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    cgroup.hasten_end(cgroup.layout(), cgroup.group_name(context.installation, request["sandbox_id"]))
    return {}


def _reclaim(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    reclaim_machine(context, request["sandbox_id"])
    return {}


def _renew(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    return renew_lxcfs(context)


def _list(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"ids": list_machines(context, request["after"])}


def _describe(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    return describe_machine(context, request["sandbox_id"])


def _after(value: Any) -> bool:
    return value == "" or _matches(ids.SANDBOX_ID)(value)


def _keep_disk(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kept": reclaim_machine(context, request["sandbox_id"], keep_disk=True)}


def _probe(context: Context, request: Mapping[str, Any]) -> Mapping[str, Any]:
    return probe(context, request["runtime"])


_SANDBOX = {"sandbox_id": _matches(ids.SANDBOX_ID)}
OPERATIONS: Mapping[str, Operation] = {
    "lease_uids": Operation(_lease, _SANDBOX, 30),
    "start_machine": Operation(
        _start,
        _SANDBOX
        | {
            "runtime": _one_of(*RUNTIMES),
            "template_name": _matches(ids.TEMPLATE_NAME),
            "template_digest": _matches(ids.DIGEST),
            "cpus": _number(0.01, 4096),
            "cpu_ids": _cpu_ids,
            "memory_bytes": _whole(16 * 2**20, 2**50),
            "disk_bytes": _whole(disk.MIN_SIZE_BYTES, disk.MAX_SIZE_BYTES),
            "inodes": _whole(disk.MIN_INODES, disk.MAX_INODES),
            "pids": _whole(4, 2**22),
            "has_inputs": _boolean,
            "has_network": _boolean,
            "background": _boolean,
            "reuse_disk": _boolean,
        },
        180,
    ),
    "open_listeners": Operation(_open_listeners, _SANDBOX | {"names": _listeners}, 30),
    "raise_wall": Operation(_raise_wall, {"exceptions": wall.is_networks, "dns": wall.is_networks}, 30),
    "hasten_end": Operation(_hasten_end, _SANDBOX, 30),
    "reclaim_machine": Operation(_reclaim, _SANDBOX, 60),
    "renew_lxcfs": Operation(_renew, {}, 60),
    "keep_disk": Operation(_keep_disk, _SANDBOX, 60),
    "list_machines": Operation(_list, {"after": _after}, 30),
    "describe_machine": Operation(_describe, _SANDBOX, 30),
    "probe": Operation(_probe, {"runtime": _one_of(*RUNTIMES)}, 60),
}


def parse(message: Any) -> tuple[Operation, dict[str, Any]]:
    """The operation and its fields, all there, none beyond, each of its own kind. Raises InvalidRequest naming one."""
    if not isinstance(message, dict):
        raise InvalidRequest("a request is a JSON object")
    fields = {name: value for name, value in message.items() if name not in ("id", "op")}
    operation = OPERATIONS.get(message["op"]) if isinstance(message.get("op"), str) else None
    if operation is None:
        raise InvalidRequest(f"op: {message.get('op')!r} is not one of {', '.join(OPERATIONS)}")
    if wrong := sorted(set(fields) ^ set(operation.fields)):
        raise InvalidRequest(f"{wrong[0]}: missing or unknown for {message['op']}", details={"field": wrong[0]})
    for name, check in operation.fields.items():
        if not check(fields[name]):
            raise InvalidRequest(f"{name}: {fields[name]!r:.100} is refused", details={"field": name})
    return operation, fields
