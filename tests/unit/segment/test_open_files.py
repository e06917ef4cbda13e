"""Open files: how many there are, when each is closed, and what of a file is in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.segment import page_cache
from raftlog.segment.disk import RealDisk
from raftlog.segment.open_files import DESCRIPTORS_MAX, OpenFiles
from raftlog.segment.page_cache import is_cached, pread_disk


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


def test_unwritten_pages_are_not_counted_as_disk_reads(tmp_path: Path) -> None:
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
