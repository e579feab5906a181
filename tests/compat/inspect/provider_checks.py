"""Inspect's own checks of a sandbox provider, whole, and what they leave out. Run by ../test_inspect.py with Inspect's
own interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from inspect_ai.util import OutputLimitExceededError, SandboxEnvironmentLimits, SandboxUnavailableError
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from bellglass import AsyncSandbox
from bellglass.integrations.inspect import LABEL, BellglassConfig

CONFIG = BellglassConfig(cpus=1, memory="512MiB", disk="1GiB", lifetime="15m")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox_env() -> AsyncIterator[Any]:
    provider = registry_find_sandboxenv("bellglass")
    environments = await provider.sample_init("checks", CONFIG, {})
    yield environments["default"]
    await provider.sample_cleanup("checks", CONFIG, environments, False)


async def test_without_a_timeout_it_waits_with_input_and_output(sandbox_env: Any) -> None:
    result = await sandbox_env.exec(["sh", "-c", "sleep 0.2; cat; echo e >&2; exit 3"], input="in\n")
    assert (result.returncode, result.stdout, result.stderr) == (3, "in\n", "e\n")
    unread = await sandbox_env.exec(["true"], input=b"x" * 2_000_000)
    assert unread.success


async def test_a_cancelled_command_is_killed(sandbox_env: Any) -> None:
    running = asyncio.ensure_future(sandbox_env.exec(["sh", "-c", "touch began; sleep 61"]))
    while not (await sandbox_env.exec(["test", "-e", "began"])).success:
        assert not running.done()
    assert (await sandbox_env.exec(["pgrep", "-f", "^sleep 61"])).success
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not (await sandbox_env.exec(["pgrep", "-f", "^sleep 61"])).success


async def test_too_much_output_and_a_missing_folder(sandbox_env: Any) -> None:
    limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    fits = await sandbox_env.exec(["head", "-c", str(limit), "/dev/zero"], timeout=60)
    assert len(fits.stdout) == limit
    with pytest.raises(OutputLimitExceededError):
        await sandbox_env.exec(["head", "-c", str(limit + 1), "/dev/zero"], timeout=60)
    nowhere = await sandbox_env.exec(["true"], cwd="/nowhere")
    assert not nowhere.success
    assert "/nowhere" in nowhere.stderr


async def test_a_long_commands_file_is_gone(sandbox_env: Any) -> None:
    words = ["x" * 100_000] * 9
    result = await sandbox_env.exec(
        ["sh", "-c", 'echo "$#"; ls /tmp/.bellglass* 2>&1; id -u', "-", *words], user="root"
    )
    assert result.stdout.splitlines()[0] == "9"
    assert "No such file" in result.stdout
    assert result.stdout.splitlines()[-1] == "0"


async def test_a_sandbox_that_is_gone_is_no_output() -> None:
    provider = registry_find_sandboxenv("bellglass")
    environments = await provider.sample_init("gone", CONFIG, {})
    environment = environments["default"]
    assert (await environment.exec(["true"], timeout=5)).success
    assert environment.box.id in (await environment.connection()).command
    left = await AsyncSandbox.connect(environment.box.id)
    assert left.labels == LABEL
    await provider.cli_cleanup("sb" + "a" * 20)
    assert (await left.info()).state == "running"
    await provider.cli_cleanup(left.id)
    await left.aclose()
    for attempt in (environment.exec(["true"], timeout=5), environment.exec(["true"]), environment.read_file("x")):
        with pytest.raises(SandboxUnavailableError):
            await attempt
    with pytest.raises(ConnectionError):
        await environment.connection()
    await provider.sample_cleanup("gone", CONFIG, environments, True)


async def test_its_configuration_goes_through(tmp_path: Path) -> None:
    provider = registry_find_sandboxenv("bellglass")
    config = provider.config_deserialize(
        CONFIG.model_dump() | {"env": {"A": "b"}, "network": {"allow": ["example.com"]}, "labels": {"of": "test"}}
    )
    environments = await provider.sample_init("configured", config, {})
    box = environments["default"].box
    try:
        info = await box.info()
        assert (info.cpus, info.memory_bytes, info.env, info.labels) == (1, 2**29, {"A": "b"}, {"of": "test"} | LABEL)
        assert [rule.host for rule in (await box.network.get()).network.allow] == ["example.com"]
    finally:
        await provider.sample_cleanup("configured", config, environments, False)
    file = tmp_path / "box.yaml"
    file.write_text("{cpus: 1, memory: 256MiB, labels: {of: file}}")
    environments = await provider.sample_init("from a file", str(file), {})
    info = await environments["default"].box.info()
    await provider.sample_cleanup("from a file", str(file), environments, False)
    assert (info.memory_bytes, info.labels) == (2**28, {"of": "file"} | LABEL)
    assert provider.config_files() == ["bellglass.yaml"]
    with pytest.raises(ValueError, match="ram"):
        provider.config_deserialize({"ram": "1GiB"})
