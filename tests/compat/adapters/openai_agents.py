"""OpenAI's Agents SDK with its E2B sandbox client, unmodified. A script stands in for the model: what is looked at is
the sandbox. Run by ../test_adapters.py with the interpreter of its environment."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from agents import Model, ModelResponse, RunConfig, Runner, Usage
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions, E2BSandboxType
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS: dict[str, Any] = {"timeout": 600, "on_timeout": "kill", "auto_resume": False}
MANIFEST = Manifest(entries={"essay.txt": File(content=b"one two three\n")})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[Any]:
    options = E2BSandboxClientOptions(
        E2BSandboxType.E2B, envs={"SAID": "hello"}, exposed_ports=(8000,), metadata={"of": "test"}, **OPTIONS
    )
    made = await E2BSandboxClient().create(manifest=MANIFEST, options=options)
    async with made:
        yield made
    assert not await made.running()


async def test_commands(session: Any) -> None:
    assert await session.running()
    done = await session.exec("echo $SAID; pwd; cat essay.txt; echo e >&2; exit 3", shell=True)
    assert done.exit_code == 3
    assert done.stdout == b"hello\n/workspace\none two three\n"
    assert done.stderr == b"e\n"
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 61", shell=True, timeout=1)
    assert (await session.exec("pgrep -f '^sleep 61'", shell=True)).exit_code == 1


async def test_files_and_the_whole_workspace(session: Any) -> None:
    raw = bytes(range(256)) * 1000
    await session.write(Path("data/raw.bin"), io.BytesIO(raw))
    assert (await session.read(Path("data/raw.bin"))).read() == raw
    (entry,) = await session.ls(Path("data"))
    assert (entry.path, entry.size, entry.owner) == ("/workspace/data/raw.bin", len(raw), "user")
    await session.mkdir(Path("empty/inside"), parents=True)
    kept = (await session.persist_workspace()).read()
    with tarfile.open(fileobj=io.BytesIO(kept)) as archive:
        assert "./empty/inside" in archive.getnames()
    await session.exec("rm -rf data empty", shell=True)
    await session.hydrate_workspace(io.BytesIO(kept))
    assert (await session.read(Path("data/raw.bin"))).read() == raw


async def test_a_terminal(session: Any) -> None:
    typing = await session.pty_exec_start("cat", shell=True, tty=True)
    told = typing.output
    told += (await session.pty_write_stdin(session_id=typing.process_id, chars="typed\n")).output
    while told.count(b"typed") < 2:  # the terminal's echo, and the program's own
        told += (await session.pty_write_stdin(session_id=typing.process_id, chars="")).output
    await session.pty_terminate_all()
    assert (await session.exec("pgrep -x cat", shell=True)).exit_code == 1


async def test_an_exposed_port_has_a_host_of_its_own(session: Any) -> None:
    place = await session.resolve_exposed_port(8000)
    assert place.host.startswith("8000-")


async def test_another_process_resumes_the_session(session: Any) -> None:
    client = E2BSandboxClient()
    state = client.deserialize_session_state(json.loads(session.state.model_dump_json()))
    again = await client.resume(state)
    assert again.state.sandbox_id == session.state.sandbox_id
    assert (await again.exec("cat essay.txt", shell=True)).stdout == b"one two three\n"


class Script(Model):
    """Says its lines, one at each turn: a call of a tool, or the answer."""

    def __init__(self, *lines: tuple[str, dict[str, Any]] | str) -> None:
        self.lines = list(lines)
        self.heard: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *others: Any, **more: Any) -> ModelResponse:
        self.heard = input
        line = self.lines.pop(0)
        if isinstance(line, str):
            text = ResponseOutputText(text=line, type="output_text", annotations=[])
            said: Any = ResponseOutputMessage(
                id="m", role="assistant", status="completed", type="message", content=[text]
            )
        else:
            name, arguments = line
            said = ResponseFunctionToolCall(
                call_id=f"c{len(self.lines)}", name=name, arguments=json.dumps(arguments), type="function_call"
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *others: Any, **more: Any) -> Any:
        raise NotImplementedError


async def test_an_agent_runs_commands() -> None:
    model = Script(("exec_command", {"cmd": "wc -w essay.txt"}), "three")
    agent = SandboxAgent(name="counter", model=model, capabilities=[Shell()], default_manifest=MANIFEST)
    sandbox = SandboxRunConfig(
        client=E2BSandboxClient(), options=E2BSandboxClientOptions(E2BSandboxType.E2B, **OPTIONS)
    )
    result = await Runner.run(agent, "How many words?", run_config=RunConfig(sandbox=sandbox, tracing_disabled=True))
    assert result.final_output == "three"
    (told,) = [item["output"] for item in model.heard if item.get("type") == "function_call_output"]
    assert "exited with code 0" in told
    assert "3 essay.txt" in told
