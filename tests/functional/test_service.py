"""`bellglass up` under a service manager, as the unit in the operator's guide has it: this test is the manager."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from bellglass import Sandbox
from bellglass.testing.stack import START_TIMEOUT_S, bellglass_command
from tests.conftest import SANDBOX_OPTIONS
from tests.functional.guides import blocks, environment
from tests.functional.own import own_installation, status_code

pytestmark = pytest.mark.root
GRACE_S = 90


def test_the_unit_of_the_guide_starts_and_stops_and_sandboxes_run_on(tmp_path: Path) -> None:
    (text,) = blocks("operate.md", "ini")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    service = unit["Service"]
    assert service["Type"] == "notify" and service["KillMode"] == "process"
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "bellglass"
    with own_installation() as stack, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        box = stack.sandbox(**SANDBOX_OPTIONS)
        box.exec("echo kept > file", check=True)
        stack.down(sandboxes=False)
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(START_TIMEOUT_S)
        started = subprocess.Popen(
            [*bellglass_command(), *arguments, "--data-dir", str(stack.data_dir), "--port", "0"],
            env=environment(stack, {"NOTIFY_SOCKET": str(tmp_path / "notify")}),
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            told = manager.recv(4096).decode()
            found = re.fullmatch(r"READY=1\nSTATUS=up at (http://\S+)\n", told)
            assert found, told
            again = Sandbox.connect(box.id, api_url=found[1], api_key=stack.api_key)
            assert again.exec("cat file").stdout == "kept\n"
            assert status_code(stack) == 0
        finally:
            os.kill(started.pid, signal.SIGTERM)  # to the main process alone
            printed, _ = started.communicate(timeout=GRACE_S)
        assert started.returncode == 0
        assert f"bellglass is up at {found[1]}" in printed
        assert status_code(stack) == 3
        assert stack.data.machines() == [box.id]
        stack.up()
        box.close()
