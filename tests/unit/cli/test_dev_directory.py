"""What `raftmq dev` remembers of its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.cli.dev import SEGMENT_BYTES, remember_segment_bytes


@pytest.mark.parametrize(
    ("first", "again", "expected"),
    [
        ({}, {}, str(SEGMENT_BYTES)),
        ({"segment_bytes": "70000"}, {}, "70000"),
        ({}, {"segment_bytes": "70000"}, "70000"),  # the log itself refuses it
    ],
)
def test_the_size_of_log_files_stays(
    tmp_path: Path, first: dict[str, str], again: dict[str, str], expected: str
) -> None:
    directory = tmp_path / "new"
    remember_segment_bytes(directory, first)
    (directory / "cluster.json").write_text("{}")
    remember_segment_bytes(directory, again)
    assert again["segment_bytes"] == expected


def test_a_directory_from_before_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    settings: dict[str, str] = {}
    remember_segment_bytes(tmp_path, settings)
    assert settings == {}
