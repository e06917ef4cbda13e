"""`docs/formats.md` against the code: sizes, magic numbers and where fields begin."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from struct import Struct, calcsize

import pytest

from mq.protocol.messages import transaction_sets
from mq.store import checkpoint, queue_blocks
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.key_index import file as key_file
from raftlog.net import frames
from raftlog.segment import closed_file_index, codec, meta

GUIDE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()


def section(title: str) -> str:
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def offsets(layout: Struct, start: int = 0) -> list[int]:
    """Where each field of a structure begins."""
    kinds = [kind if not count else f"{count}{kind}" for count, kind in _fields(layout.format[1:])]
    return [start, *accumulate((calcsize(f">{kind}") for kind in kinds), initial=start)][1:-1]


def _fields(layout: str) -> list[tuple[str, str]]:
    found, count = [], ""
    for char in layout:
        if char.isdigit():
            count += char
        else:
            found.append((count, char))
            count = ""
    return found


def rows(text: str, table: int = 0) -> list[int]:
    """The offsets in the first column of a table, as far as there are some."""
    lines = text.split("| offset | size | field |\n|---|---|---|\n")[table + 1].split("\n\n")[0].splitlines()
    return [int(line.split("|")[1]) for line in lines if line.split("|")[1].strip()]


@pytest.mark.parametrize(
    ("title", "table", "layout", "start"),
    [
        ("The log: segment files", 0, codec.HEADER, 0),
        ("The vote file", 0, Struct(meta._PREFIX.format + meta._CRC.format[1:]), 0),
        ("Transactions of several messages", 0, transaction_sets._HEAD, 0),
        ("Consume queues", 0, QUEUE_ENTRY, 0),
        ("Consume queues", 1, queue_blocks.TRAILER, 0),
        ("The checkpoint", 0, checkpoint._HEAD, 0),
    ],
)
def test_record_fields_begin_at_the_documented_offsets(title: str, table: int, layout: Struct, start: int) -> None:
    expected = offsets(layout, start)
    assert rows(section(title), table)[: len(expected)] == expected


def test_heads_with_fields_in_groups() -> None:
    head = offsets(Struct(key_file._START.format + key_file._FIELDS.format[1:]))
    assert rows(section("The key index")) == [*head[:4], head[5], head[8], calcsize(">8sII") + key_file._FIELDS.size]
    frame = section("Frames between replicas")
    prefix = offsets(frames._PREFIX)
    assert rows(frame, 0) == [*prefix, frames._PREFIX.size]
    append = offsets(frames._APPEND)
    assert rows(frame, 1) == [append[0], append[1], append[3], append[4], *append[5:], frames._APPEND.size]


def test_magic_numbers_and_sizes() -> None:
    for text in (
        codec.HEADER_BYTES,
        key_file._MAGIC.decode(),
        checkpoint._MAGIC.decode(),
        closed_file_index._MAGIC.decode(),
        meta._MAGIC.decode().strip(),
        meta.SLOT_BYTES,
        queue_blocks.ENTRIES_PER_BLOCK,
        key_file._BLOCK_ROWS,
        queue_blocks.block_bytes(queue_blocks.ENTRIES_PER_BLOCK),
    ):
        assert str(text) in GUIDE
