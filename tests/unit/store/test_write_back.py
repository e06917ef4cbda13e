"""Writing back the files of many queues: before any of them is synced, and only if there are many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mq.store import queue_files
from mq.store.queue_files import Changes, sync
from mq.store.write_back import begin_write_back


def changes(root: Path, count: int) -> Changes:
    files = {f"{number:020d}" for number in range(count)}
    for name in files:
        (root / name).write_bytes(bytes(8192))
    return Changes(files=files, directories={""}, retired=set(), forgotten=set())


@pytest.mark.parametrize("count", [1, 15, 16, 40])
def test_many_files_are_written_back_before_the_first_one_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    steps: list[str] = []
    fdatasync = os.fdatasync

    def begin(descriptor: int) -> None:
        steps.append("begin")
        begin_write_back(descriptor)

    def synced(descriptor: int) -> None:
        steps.append("sync")
        fdatasync(descriptor)

    monkeypatch.setattr(queue_files, "begin_write_back", begin)
    monkeypatch.setattr(os, "fdatasync", synced)
    sync(str(tmp_path), changes(tmp_path, count))
    assert steps == ["begin"] * (count if count >= 16 else 0) + ["sync"] * count


def test_write_back_call_exists_here_and_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    descriptor = os.open(path, os.O_RDWR)
    begin_write_back(descriptor)
    os.close(descriptor)
    assert path.read_bytes() == b"x" * 100_000
