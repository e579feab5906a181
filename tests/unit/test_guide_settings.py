"""Each block of settings in the guides is taken by the loader as it stands there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from bellglass import settings
from bellglass.errors import InvalidRequest

GUIDES = Path(__file__).parents[2] / "docs/guides"
SECTIONS = "|".join(sorted({setting.name.split(".")[0] for setting in settings.SETTINGS}))
BLOCKS = [
    pytest.param(block, id=f"{guide.stem}-{number}")
    for guide in sorted(GUIDES.glob("*.md"))
    for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_it_is_loaded_and_says_what_is_not_so_anyway(block: str, tmp_path: Path) -> None:
    file = tmp_path / "bellglass.toml"
    file.write_text(block)
    found, default = settings.load(file, {}), settings.load(None, {})
    said = [f"{section}.{key}" for section, table in tomllib.loads(block).items() for key in table]
    assert said and [name for name in said if found[name] == default[name]] in ([], ["previews.port"])
    # The loader would have told of a name that it does not know.
    file.write_text(block.replace(f"{said[0].partition('.')[2]} =", "no_such_setting =", 1))
    with pytest.raises(InvalidRequest, match="no_such_setting"):
        settings.load(file, {})


def test_all_of_them_are_found() -> None:
    """Settings in another form than a block would be looked at by nobody."""
    pages = {guide.stem: guide.read_text() for guide in GUIDES.glob("*.md")}
    lines = [line for text in pages.values() for line in re.findall(rf"^ *\[(?:{SECTIONS})\] *$", text, re.MULTILINE)]
    assert len(lines) == len(BLOCKS) > 5 and {"network-0", "previews-0", "events-0"} <= {block.id for block in BLOCKS}
