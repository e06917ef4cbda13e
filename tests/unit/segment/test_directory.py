"""Directories that are not ours, not free, or not usable."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import DirectoryLocked, DirectoryMismatch, DirectoryUnusable, RealDisk, SegmentLog, StorageFailed
from tests.unit.segment.log_home import CLUSTER_ID, LogHome, all_bodies


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cluster_id", "other", f"/data/log: made for cluster_id '{CLUSTER_ID}', opened with 'other'"),
        ("node_id", "n2", "made for node_id 'n1', opened with 'n2'"),
        ("segment_bytes", 8192, "made for segment_bytes 4096, opened with 8192"),
    ],
)
def test_directory_of_another_log_is_refused(home: LogHome, field: str, value: Any, message: str) -> None:
    home.put(home.open(), b"body")
    home.close_all()
    with pytest.raises(DirectoryMismatch, match=message):
        home.open(**{field: value})
    assert all_bodies(home.open()) == [b"body"], "the refusal changed something"


def test_directory_is_opened_once(home: LogHome) -> None:
    log = home.open()
    with pytest.raises(DirectoryLocked, match=f"in use by process {os.getpid()}") as caught:
        home.open()
    assert caught.value.pid == os.getpid()
    log.close()
    home.open()


def test_refused_open_releases_the_directory(home: LogHome) -> None:
    home.open().close()
    for _ in range(2):
        with pytest.raises(DirectoryMismatch):
            home.open(node_id="n2")
    home.open()


def test_too_small_segments_are_refused(home: LogHome) -> None:
    with pytest.raises(ValueError, match="segments of 100 bytes, at least 256"):
        home.open(segment_bytes=100)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["mkdir", "open", "pwritev", "sync_directory"])
def test_unusable_directory_is_reported(home: LogHome, operation: str, number: int) -> None:
    home.disk.fail(operation, number)
    with pytest.raises(DirectoryUnusable, match=f"/data/log: cannot hold a log: {os.strerror(number)}"):
        home.open()
    home.open()


def test_full_disk_is_refused_before_any_promise(home: LogHome) -> None:
    home.disk.capacity_bytes = 10_000
    with pytest.raises(DirectoryUnusable, match="No space left"):
        home.open()
    home.disk.capacity_bytes = None
    home.open()


def test_io_error_while_opening_is_a_failure_of_the_disk(home: LogHome) -> None:
    home.put(home.open(), b"body")
    home.close_all()
    home.disk.fail("pread", errno.EIO, after=3)
    with pytest.raises(StorageFailed, match="errno 5"):
        home.open()


def open_real(path: Path) -> SegmentLog:
    return SegmentLog.open(str(path), cluster_id="c", node_id="n1", segment_bytes=4096, disk=RealDisk())


def test_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    with pytest.raises(DirectoryUnusable, match="File exists"):
        open_real(tmp_path / "log")
    with pytest.raises(DirectoryUnusable):
        open_real(tmp_path / "log" / "below")


def test_real_directory_is_made_locked_and_reopened(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    log = open_real(path)
    with pytest.raises(DirectoryLocked):
        open_real(path)
    log.append(1, LogIndex(1), Term(1), b"body")
    log.submit(1)
    log.close()
    log = open_real(path)
    assert all_bodies(log) == [b"body"]
    log.close()
    assert sorted(name.name for name in path.iterdir()) == ["0" * 20, "LOCK", "meta"]


def test_start_removes_unfinished_files_and_keeps_unknown_ones(home: LogHome) -> None:
    """A preparation that was cut off goes; what is not one of ours stays."""
    home.put(home.open(), b"body")
    home.close_all()
    home.disk.close(home.disk.open("/data/log/00000000000000004096.tmp", create=True))
    home.disk.close(home.disk.open("/data/log/notes.txt", create=True))
    assert all_bodies(home.open()) == [b"body"]
    assert sorted(home.disk.listdir("/data/log")) == ["0" * 20, "LOCK", "meta", "notes.txt"]
