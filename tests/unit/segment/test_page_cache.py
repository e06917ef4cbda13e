"""The system is asked what of a file is in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.segment import page_cache
from raftlog.segment.page_cache import is_cached, pread_disk

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


def test_written_pages_are_cached_until_dropped(fd: int) -> None:
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


def _disk_bytes() -> int:
    """How many bytes this process has caused to be fetched from disks."""
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def test_disk_read_bypasses_and_preserves_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(LENGTH)
    path.write_bytes(content)
    fd = os.open(path, os.O_RDWR)
    os.fdatasync(fd)
    before = _disk_bytes()
    data, came_from_disk = pread_disk(fd, LENGTH, 0)
    assert data == content
    if not came_from_disk:
        pytest.skip("this file system keeps all in memory, or the system does not tell")
    assert _disk_bytes() - before >= LENGTH
    assert is_cached(fd, LENGTH, 0), "what was hot is so still"
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(fd, 4096, 8192)
    before = _disk_bytes()
    assert pread_disk(fd, LENGTH, 0) == (content, True)
    assert _disk_bytes() - before >= LENGTH
    assert not is_cached(fd, 1, 100_000), "what was cold is so still"
    os.close(fd)


def test_unwritten_pages_do_not_count_as_read_from_disk(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.fdatasync(fd)
    for _ in range(20):  # the kernel may write it back at any time
        os.pwrite(fd, b"x" * 10_000, 0)
        data, came_from_disk = pread_disk(fd, 10_000, 0)
        assert data == b"x" * 10_000
        if not came_from_disk:
            break
    else:
        pytest.fail("pages that were not written back were dropped 20 times")
    os.close(fd)
