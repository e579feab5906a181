"""The supervisor's record: whatever lies in its file, `status`, `up` and `down` go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellglass.datadir import DataDir
from bellglass.supervise.control import Record, read_record, write_record
from bellglass.supervise.processes import ProcessId


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    (tmp_path / "run").mkdir()
    return DataDir(tmp_path)


def test_what_was_written_is_read(data: DataDir) -> None:
    record = Record("1", "http://x", "now", {"node": ProcessId(7, 9)})
    write_record(data, record)
    assert read_record(data) == record


@pytest.mark.parametrize(
    "text",
    [
        *("", "garbage", "{}", "[]", "null", '{"processes": []}', '{"processes": {"node": 7}}'),
        '{"version": "1", "api_url": "u", "started_at": "t", "processes": {"node": {"pid": "x", "start_ticks": 1}}}',
    ],
)
def test_a_damaged_one_counts_as_none(data: DataDir, text: str) -> None:
    data.supervisor_file.write_text(text)
    assert read_record(data) is None
