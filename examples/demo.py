"""The demo: a real installation on this box, and a model's script run on a CSV in a sandbox of it.

`make demo` runs it. It brings up server, node and helper in a scratch data folder on a free port, does the job through
the SDK as any program would, then another one without network (filings.py), prints what it did and how long each step
took, and takes everything down again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import filings

from bellglass import Sandbox

SALES = "region,amount\neu,120\nus,80\neu,95\nus,210\napac,40\n"
MODEL_WRITTEN = """\
import csv
from collections import defaultdict

amounts = defaultdict(list)
with open("sales.csv", newline="") as file:
    for row in csv.DictReader(file):
        amounts[row["region"]].append(float(row["amount"]))
for region in sorted(amounts):
    values = amounts[region]
    print(region, len(values), sum(values) / len(values))
"""
EXPECTED = "apac 1 40.0\neu 2 107.5\nus 2 145.0\n"
T = TypeVar("T")


def step(what: str, act: Callable[[], T]) -> T:
    begun = time.perf_counter()
    result = act()
    print(f"  {(time.perf_counter() - begun) * 1e3:9.1f} ms  {what}", flush=True)
    return result


def cli(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bellglass.cli", *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"bellglass {' '.join(arguments)} failed with exit code {done.returncode}")
    return json.loads(done.stdout)


def check(what: str, *, true: bool) -> None:
    if not true:
        sys.exit(f"the demo failed: {what}")


def job(api_url: str, api_key: str) -> None:
    """What a program does with Bellglass."""
    connection = {"api_url": api_url, "api_key": api_key}
    box = step("create a sandbox (base: Debian 12, Python 3.11)", lambda: Sandbox("base", lifetime="10m", **connection))
    try:
        step("write job/sales.csv", lambda: box.files.write_text("job/sales.csv", SALES))
        step("write job/main.py", lambda: box.files.write_text("job/main.py", MODEL_WRITTEN))
        result = step("run the model's script", lambda: box.exec(["python3", "main.py"], cwd="job", timeout=20))
        print("".join(f"                {line}\n" for line in result.stdout.splitlines()), end="")
        check(f"the script printed {result.stdout!r}", true=result.ok and result.stdout == EXPECTED)

        endless = step("run an endless loop with a timeout of 5 s",
                       lambda: box.exec("while :; do :; done", timeout=5))  # fmt: skip
        print(f"                exit code {endless.exit_code}, timed_out {endless.timed_out}")
        check("the loop was to be ended by its timeout", true=endless.exit_code == 137 and endless.timed_out)

        again = step("and the sandbox answers at once", lambda: box.exec(["echo", "still here"]))
        check("the sandbox was to answer", true=again.stdout == "still here\n")
    finally:
        step("delete the sandbox", box.delete)

    small = step("create one with 512 MiB of memory", lambda: Sandbox("base", memory="512MiB", **connection))
    try:
        hog = step("allocate 1 GiB in it", lambda: small.exec(["python3", "-c", "b = bytearray(1 << 30)"]))
        print(f"                exit code {hog.exit_code}, oom_killed {hog.oom_killed}")
        check("the hog was to be killed for memory", true=hog.exit_code == 137 and hog.oom_killed)
        check("its sandbox was to live on", true=small.exec(["true"]).ok)
    finally:
        step("delete it", small.delete)
    step("read filings, one of which wants what it must not have", lambda: filings.analyse(**connection))


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("the demo starts the container tier, which needs root: sudo make demo")
    begun = time.perf_counter()
    scratch = Path(tempfile.mkdtemp(prefix="bellglass-demo-", dir="/var/tmp"))
    scratch.chmod(0o711)
    # The demo's installation is nobody's default: its profile stays in its own folder.
    os.environ["BELLGLASS_PROFILE"] = str(scratch / "profile.json")
    data_dir = scratch / "data"
    up = False
    try:
        print("bellglass up", flush=True)  # its steps come on standard error
        installation = cli("up", "--detach", "--data-dir", str(data_dir), "--port", "0")
        up = True
        print("the job, through the SDK")
        job(installation["api_url"], installation["api_key"])
    finally:
        if up:
            print("bellglass down --sandboxes")
            outcome = step("stop the daemons", lambda: cli("down", "--sandboxes", "--data-dir", str(data_dir)))
            check(f"{outcome['left_running']} sandboxes were left", true=outcome["left_running"] == 0)
        left = leftovers(data_dir)
        if not left:
            shutil.rmtree(scratch)
    check(f"left behind: {left}", true=not left)
    print(f"done in {time.perf_counter() - begun:.1f} s; no mount, loop device, cgroup or process is left")


def leftovers(data_dir: Path) -> list[str]:
    """What of the installation the kernel still has."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [line.split()[4] for line in mounts if str(data_dir) in line]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        if str(data_dir) in backing.read_text():
            found.append(backing.parts[3])
    installation = data_dir / "installation.json"
    if installation.exists():
        identifier = json.loads(installation.read_text())["id"]
        found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/bellglass-{identifier}*")]
    return found


if __name__ == "__main__":
    main()
