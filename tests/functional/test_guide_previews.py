"""The guide on published ports does what it says: its commands and its Python are run as they stand there."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellglass.testing.stack import Stack
from tests.functional.guides import blocks, run_commands, run_python
from tests.functional.own import own_installation

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def guide_stack() -> Iterator[Stack]:
    """Of its own: the guide gives it a certificate and starts it again."""
    with own_installation() as running:
        yield running


def test_its_commands(guide_stack: Stack, tmp_path: Path) -> None:
    """They check themselves what they get, in the shell; a sandbox and its programs outlast the restart under TLS."""
    found = blocks("previews.md", "sh")
    (ca,) = (number for number, block in enumerate(found) if "previews ca" in block)
    more = {"BELLGLASS_DATA_DIR": str(guide_stack.data_dir)}
    before = "\n".join(found[: ca + 1])
    assert before.count("bellglass publish") == 9 and before.count("--http2") == 2
    printed = run_commands(guide_stack, before + '\necho "$id" >id\n', tmp_path, more)
    assert "private" in printed and "frame-ancestors https://app.example.com" in printed
    said = tomllib.loads(printed[printed.index("[previews]") :])["previews"]
    assert set(said) == {"domain", "tls_cert", "tls_key"}
    settings = guide_stack.data.settings_file
    lines = "".join(f'{name} = "{value}"\n' for name, value in said.items())
    settings.write_text(settings.read_text().replace("[previews]\n", "[previews]\n" + lines))
    guide_stack.down(sandboxes=False)
    guide_stack.up()
    after = "\n".join(found[ca + 1 :])
    assert "--cacert" in after and "--http2" in after
    run_commands(guide_stack, f'id=$(cat id)\n{after}\nbellglass rm "$id"\n', tmp_path, more)


def test_its_python(stack: Stack, no_leak: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run_python(stack, "previews.md", monkeypatch)
