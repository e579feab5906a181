"""The SDK inside of a sandbox: it finds the API and calls as the sandbox, as the guide shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.root
GUIDE = Path(__file__).parents[2] / "docs/guides/identity.md"


def sdk_files() -> dict[str, bytes]:
    """The SDK with all that it imports beyond the standard library."""
    roots = ("bellglass", "httpcore2", "h11", "anyio", "sniffio", "idna", "certifi", "truststore", "typing_extensions")
    files = {}
    for name in roots:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            files[origin.name] = origin.read_bytes()
            continue
        for metadata in origin.parent.parent.glob(f"{name}-*.dist-info/METADATA"):
            files[str(metadata.relative_to(origin.parent.parent))] = metadata.read_bytes()
        for path in origin.parent.rglob("*.py"):
            inside = path.relative_to(origin.parent.parent)
            if inside.parts[:2] not in (("bellglass", "server"), ("bellglass", "node"), ("bellglass", "testing")):
                files[str(inside)] = path.read_bytes()
    return files


@pytest.fixture
def with_sdk(new_box: Callable[..., Any], tmp_path: Path) -> Any:
    """A sandbox in which Python finds the SDK."""
    box = new_box(env={"PYTHONPATH": "/home/user/sdk"})
    for name, content in sdk_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    box.files.upload_dir(tmp_path, "/home/user/sdk")
    return box


def test_the_guide(with_sdk: Any, api: httpx2.Client) -> None:
    """Its commands, run inside in their order."""
    printed = []
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        done = with_sdk.exec(["python3", "-c", block] if language == "python" else block)
        assert done.exit_code == 0, (block, done.stderr)
        printed.append(done.stdout)
    by_sdk, own, published = printed
    assert by_sdk.split() == [with_sdk.id, json.loads(published)["url"]]
    assert json.loads(own)["id"] == with_sdk.id
    assert api.get(f"/v1/sandboxes/{with_sdk.id}/ports").json()["items"] == [json.loads(published)]


def test_the_sdk_inside(with_sdk: Any) -> None:
    box = with_sdk
    script = (
        "import asyncio, bellglass\n"
        "box = bellglass.Sandbox.current()\n"
        "port = box.publish(8003)\n"
        "print(box.id, box.info().state, port.visibility, [each.port for each in box.ports()])\n"
        "port.unpublish()\n"
        "for what in (box.delete, lambda: box.exec(['true']), lambda: box.publish(1, visibility='public')):\n"
        "    try: what(); print('did it')\n"
        "    except bellglass.Forbidden as error: print(error.details)\n"
        "async def again():\n"
        "    box = await bellglass.AsyncSandbox.current()\n"
        "    print((await box.info()).id)\n"
        "    await box.aclose()\n"
        "asyncio.run(again())\n"
    )
    done = box.exec(["python3", "-c", script])
    assert done.stdout.splitlines() == [
        f"{box.id} running private [8003]", "{'action': 'sandbox.delete'}", "{'action': 'exec.create'}",
        "{'action': 'port.publish'}", box.id,
    ], (done.stdout, done.stderr)  # fmt: skip
