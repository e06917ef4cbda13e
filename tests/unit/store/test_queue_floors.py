"""The file with the first offsets of queues whose older messages have expired."""

from __future__ import annotations

from pathlib import Path

from mq.protocol.numbers import QueueOffset
from mq.store.queue_floors import FLOORS_NAME, load_floors, write_floors
from raftlog.log_numbers import LogIndex

INDEX = LogIndex(40)


def test_floors_are_read_as_written(tmp_path: Path) -> None:
    assert load_floors(str(tmp_path), INDEX) is None
    write_floors(str(tmp_path), {}, INDEX)
    assert load_floors(str(tmp_path), INDEX) == {}
    floors = {("T", 0): QueueOffset(7), ("U", 3): QueueOffset(2**40)}
    write_floors(str(tmp_path), floors, INDEX)
    assert load_floors(str(tmp_path), INDEX) == floors


def test_floors_that_a_checkpoint_has_left_behind_are_unknown(tmp_path: Path) -> None:
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
