"""What `doctor` says of the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from bellglass import settings
from bellglass.datadir import DataDir
from bellglass.supervise import doctor


def test_a_disk_below_the_mark_of_this_installation_is_no_disk_for_sandboxes(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    data = DataDir(tmp_path / "not yet there")
    assert doctor._disk(data, settings.load(None, {"BELLGLASS_NODE_DISK_LOW_WATER": "1MiB"})).outcome in ("ok", "warn")
    above = settings.load(None, {"BELLGLASS_NODE_DISK_LOW_WATER": str(free + (1 << 40))})
    found = doctor._disk(data, above)
    assert found.outcome == "missing" and "node.disk_low_water" in found.found and str(tmp_path) in found.found
