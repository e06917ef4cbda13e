"""The system is asked what of a file is in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.segment import page_cache
from raftlog.segment.page_cache import is_cached

LENGTH = 1024 * 1024


@pytest.fixture(params=["by a count of pages", "by reading"])
def fd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    if request.param == "by reading":
        monkeypatch.setattr(page_cache, "_CACHESTAT", 100_000)  # a system without that call
    path = tmp_path / "file"
    path.write_bytes(bytes(LENGTH))
    number = os.open(path, os.O_RDWR)
    yield number
    os.close(number)


def test_what_was_written_is_in_memory_until_it_is_dropped(fd: int) -> None:
    if not is_cached(fd, LENGTH, 0):
        pytest.skip("this system does not tell")
    assert is_cached(fd, 1, LENGTH - 1)
    assert is_cached(fd, 5000, 4095)
    assert not is_cached(fd, LENGTH, 100_000), "it is not that long"
    if page_cache._CACHESTAT != 451:
        return  # to ask by reading may have it read at once
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(fd, LENGTH, 0):
        pytest.skip("this file system keeps all in memory")
    os.pread(fd, LENGTH // 2, 0)
    assert is_cached(fd, LENGTH // 2, 0)
    assert not is_cached(fd, LENGTH, 0), "what lies behind it was not read ahead"
    os.pread(fd, LENGTH, 0)
    assert is_cached(fd, LENGTH, 0)
