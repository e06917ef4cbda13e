"""Files of many queues: the first offsets of those whose messages expired, and their writing back before a sync."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mq.protocol.numbers import QueueOffset
from mq.store import queue_files
from mq.store.queue_files import Changes, sync
from mq.store.queue_floors import FLOORS_NAME, load_floors, write_floors
from mq.store.write_back import begin_write_back
from raftlog.log_numbers import LogIndex

INDEX = LogIndex(40)


def test_floors_are_read_as_written(tmp_path: Path) -> None:
    assert load_floors(str(tmp_path), INDEX) is None
    write_floors(str(tmp_path), {}, INDEX)
    assert load_floors(str(tmp_path), INDEX) == {}
    floors = {("T", 0): QueueOffset(7), ("U", 3): QueueOffset(2**40)}
    write_floors(str(tmp_path), floors, INDEX)
    assert load_floors(str(tmp_path), INDEX) == floors


def test_floors_older_than_the_checkpoint_are_ignored(tmp_path: Path) -> None:
    write_floors(str(tmp_path), {("T", 0): QueueOffset(7)}, INDEX)
    assert load_floors(str(tmp_path), LogIndex(INDEX - 1)) == {("T", 0): 7}, "a crash came before the checkpoint"
    assert load_floors(str(tmp_path), LogIndex(INDEX + 1)) is None, "a former release wrote the checkpoint"


def test_damaged_floors_are_unknown(tmp_path: Path) -> None:
    write_floors(str(tmp_path), {("T", 0): QueueOffset(7)}, INDEX)
    path = tmp_path / FLOORS_NAME
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert load_floors(str(tmp_path), INDEX) is None
        path.write_bytes(content[:at])
        assert load_floors(str(tmp_path), INDEX) is None


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
