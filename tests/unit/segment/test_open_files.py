"""Open files: how many there are, and when each is closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raftlog.segment.disk import RealDisk
from raftlog.segment.open_files import DESCRIPTORS_MAX, OpenFiles


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(b"8 bytes.")
    return str(tmp_path / "file")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_replaced_file_is_closed_after_its_last_use(path: str) -> None:
    files = OpenFiles(RealDisk())
    unused, in_use, last = (os.open(path, os.O_RDONLY) for _ in range(3))
    files.put(0, unused)
    files.put(0, in_use)
    assert not _is_open(unused)
    with files.use(0, lambda _: path) as fd:
        assert fd == in_use
        files.put(0, last)
        assert os.pread(in_use, 8, 0) == b"8 bytes."
    assert not _is_open(in_use)
    assert len(files) == 1
    files.close()
    assert not _is_open(last)


def test_file_used_least_recently_is_closed_above_the_limit(path: str) -> None:
    files = OpenFiles(RealDisk())
    with files.use(0, lambda _: path) as first:
        for start in range(1, DESCRIPTORS_MAX + 1):
            with files.use(start, lambda _: path) as fd:
                assert _is_open(fd)
        assert _is_open(first)
        assert len(files) == DESCRIPTORS_MAX
    files.close()
    assert not _is_open(first)
