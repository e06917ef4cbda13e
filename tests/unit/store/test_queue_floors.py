"""The file with the first offsets of queues whose older messages have expired."""

from __future__ import annotations

from pathlib import Path

from mq.protocol.numbers import QueueOffset
from mq.store.queue_floors import FLOORS_NAME, load_floors, write_floors


def test_floors_are_read_as_written(tmp_path: Path) -> None:
    assert load_floors(str(tmp_path)) is None
    write_floors(str(tmp_path), {})
    assert load_floors(str(tmp_path)) == {}
    floors = {("T", 0): QueueOffset(7), ("U", 3): QueueOffset(2**40)}
    write_floors(str(tmp_path), floors)
    assert load_floors(str(tmp_path)) == floors


def test_damaged_floors_are_unknown(tmp_path: Path) -> None:
    write_floors(str(tmp_path), {("T", 0): QueueOffset(7)})
    path = tmp_path / FLOORS_NAME
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert load_floors(str(tmp_path)) is None
        path.write_bytes(content[:at])
        assert load_floors(str(tmp_path)) is None
