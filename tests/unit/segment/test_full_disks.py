"""What Linux does with a write that does not fit, as the simulated disk and its writers assume, on real files."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.compiled.loaded import CompiledAppendQueue
from raftlog.segment.append_queue import PythonAppendQueue
from raftlog.segment.group_commit import WriteOp
from tests.support.append_queues import FORMS
from tests.support.file_size_limit import file_size_limit
from tests.support.write_ops import entry_op

PAGE_BYTES = 4096


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four pages."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={4 * PAGE_BYTES}", "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk needs a user who may mount a tmpfs: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_full_disk_takes_whole_pages_and_then_nothing(small_disk: Path) -> None:
    fd = os.open(small_disk / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert os.pwritev(fd, [bytes(10), bytes(5 * PAGE_BYTES)], 100, os.RWF_DSYNC) == 4 * PAGE_BYTES - 100
        with pytest.raises(OSError, match="No space left") as refused:
            os.pwritev(fd, [b"more"], 4 * PAGE_BYTES, os.RWF_DSYNC)
        assert refused.value.errno == errno.ENOSPC
        assert os.pwritev(fd, [b"again"], 0, os.RWF_DSYNC) == 5, "what is there can be written again"
    finally:
        os.close(fd)


def test_file_size_limit_allows_a_partial_write(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        with file_size_limit(150):
            assert os.pwritev(fd, [bytes(80), bytes(80)], 0, os.RWF_DSYNC) == 150
            with pytest.raises(OSError, match="File too large") as refused:
                os.pwritev(fd, [bytes(10)], 150, os.RWF_DSYNC)
            assert refused.value.errno == errno.EFBIG
    finally:
        os.close(fd)


@pytest.mark.parametrize("form", FORMS)
def test_writer_on_a_full_disk_reports_the_fitting_entries(
    small_disk: Path, form: type[CompiledAppendQueue | PythonAppendQueue]
) -> None:
    fd, done_fd = os.open(small_disk / "file", os.O_RDWR | os.O_CREAT), os.eventfd(0, os.EFD_NONBLOCK)
    try:
        writes = form(done_fd, 1 << 20)
        fits, exceeds = entry_op(1, 0, bytes(PAGE_BYTES)), entry_op(2, 48 + PAGE_BYTES, bytes(4 * PAGE_BYTES))
        written: list[WriteOp] = []
        for op in (fits, exceeds):
            writes.submit(op)
            assert not writes.run(fd, 0, 1 << 40, writes.end_pos, 0, True, 0.0)
            if writes.done_ticket == op.ticket:
                written.append(op)
        assert written == [fits]
        assert (writes.done_ticket, writes.end_pos, writes.failure) == (1, 48 + PAGE_BYTES, errno.ENOSPC)
        assert os.fstat(fd).st_size == 4 * PAGE_BYTES, "a part of the second one is in the file"
    finally:
        os.close(fd)
        os.close(done_fd)
