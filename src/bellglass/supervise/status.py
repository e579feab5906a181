"""What `bellglass status` knows: processes from the supervisor's record, the rest from the node itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bellglass import __version__
from bellglass.datadir import DataDir
from bellglass.errors import BellglassError
from bellglass.supervise import control
from bellglass.supervise.install import read_installation_id

DAEMONS = ("supervisor", "server", "node", "helper", "proxy", "resolver", "lxcfs")


def read(data: DataDir) -> dict[str, Any]:
    """Keys: `up data_dir installation api_url pids pss_bytes versions tiers capacity disk counts pool_members
    quarantined templates node node_error`.

    `node` is False where the node could not be asked (`node_error` says why). Raises InvalidRequest where there is no
    installation.
    """
    installation = read_installation_id(data)
    record = control.read_record(data)
    alive = {name: record.processes[name].pid for name in DAEMONS if record and record.alive(name)}
    needed = {"supervisor", "server", "node"} | ({"proxy", "resolver"} & set(record.processes if record else ()))
    found: dict[str, Any] = {
        "up": needed <= set(alive),
        "data_dir": str(data.root),
        "installation": installation,
        "api_url": record.api_url if record else None,
        "pids": alive,
        "pss_bytes": {name: pss for name, pid in alive.items() if (pss := _pss_bytes(pid)) is not None},
        "versions": {"bellglass": __version__, "daemons": record.version if record else None},
        "tiers": [],
        "capacity": {},
        "disk": {},
        "counts": {},
        "pool_members": 0,
        "templates": [],
        "quarantined": 0,
        "node": False,
        "node_error": None,
    }
    try:
        info = control.ask_node(data, "node.info")
    except BellglassError as error:
        found["node_error"] = str(error)
        return found
    found["node"] = True
    found["tiers"] = info["tiers"]
    found["capacity"] = info["capacity"]
    found["disk"] = info["disk"]
    found["templates"] = info["templates"]
    found["quarantined"] = info.get("quarantined", 0)
    members = info["pool_members"]
    # Capacity counts every machine; one that waits in a pool is nobody's sandbox.
    found["counts"] = {"sandboxes": info["capacity"]["sandboxes"] - members, "templates": len(info["templates"])}
    found["pool_members"] = members
    found["versions"]["node"] = info["version"]
    for tier in info["tiers"]:
        found["versions"][tier["runtime"]] = tier["version"]
    return found


def _pss_bytes(pid: int) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None  # another user's process, or gone meanwhile
    return None
