"""What `bellglass doctor` tries for the network boundary: nftables with all that the rules use, and of an installation
that is up its proxy, its resolver and the wall around them."""

from __future__ import annotations

import os
import shutil
import subprocess

from bellglass.datadir import DataDir
from bellglass.settings import Settings
from bellglass.supervise import control
from bellglass.supervise.check import Check, as_root
from bellglass.supervise.egress import NAMES
from bellglass.supervise.install import read_installation_id

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin"
_INSTALL = "apt-get install nftables"
TIMEOUT_S = 20.0
RULES = """
table netdev guard {
  chain arrivals { type filter hook ingress device "lo" priority filter; policy accept;
  }
}
table ip gateway {
  chain redirected { type nat hook prerouting priority dstnat; policy accept;
    meta l4proto tcp redirect to :1080
  }
  chain others { type filter hook prerouting priority filter; policy accept;
    ct state new ct count over 10 reject with icmp admin-prohibited
    ct status dnat accept
    meta l4proto tcp reject with tcp reset
  }
}
table inet wall {
  chain output { type filter hook output priority filter; policy accept;
    meta skuid 65534 fib daddr type local reject with icmpx admin-prohibited
  }
}
"""
"""One of each kind of rule that gateways and the wall are made of."""


def nftables() -> Check:
    """Tried as root in a network namespace of its own: the kernel may lack a part that the program has."""
    nft, unshare = (shutil.which(name, path=_PATH) for name in ("nft", "unshare"))
    if nft is None:
        return Check("nftables", "missing", "not installed", _INSTALL)
    version = subprocess.run([nft, "--version"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if version.returncode:
        return Check("nftables", "missing", f"{nft} exits with {version.returncode}", _INSTALL)
    found = version.stdout.strip()
    if os.geteuid() != 0 or unshare is None:
        return Check("nftables", "warn", f"{found}; trying a rule needs root", as_root())
    done = subprocess.run(
        [unshare, "--net", nft, "--file", "-"],
        input=RULES, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        first = (done.stderr.strip().splitlines() or ["nft says nothing"])[0]
        return Check(
            "nftables", "missing", f"{found}, but the kernel refuses a rule: {first}", "use a kernel with nf_tables"
        )
    return Check("nftables", "ok", f"{found}; rules of each kind were made")


def egress(data: DataDir, settings: Settings) -> Check:
    """The way out of sandboxes. Without it nothing gets out, so what is missing here opens nothing."""
    record = control.read_record(data)
    if settings["node.driver"] == "fake":
        return Check("egress", "ok", "the fake driver has no network")
    if record is None or not record.alive("supervisor"):
        return Check("egress", "ok", "proxy, resolver and wall come with bellglass up")
    if dead := [name for name in NAMES if not record.alive(name)]:
        logs = " and ".join(str(data.logs_dir / f"{name}.log") for name in dead)
        found = f"{' and '.join(dead)} not running: sandboxes reach nothing; the supervisor starts it again"
        return Check("egress", "missing", found, f"bellglass status{data.option}, and {logs}")
    if os.geteuid() != 0:
        return Check("egress", "warn", "proxy and resolver run; seeing the wall needs root", as_root())
    table = f"bellglass_{read_installation_id(data)}"
    nft = shutil.which("nft", path=_PATH) or "nft"
    done = subprocess.run(
        [nft, "list", "table", "inet", table], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode or "skuid" not in done.stdout:
        found = f"no wall around proxy and resolver: the table inet {table} is gone"
        return Check("egress", "missing", found, f"bellglass down{data.option}, then bellglass up{data.option}")
    return Check("egress", "ok", "proxy and resolver run, the wall around them stands")
