"""The decision table of recovery, row by row, and the evidence it rests on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment.codec import HEADER_BYTES, NORMAL, frame, initial_chain
from raftlog.segment.recovery import (
    Corrupt,
    Decision,
    Evidence,
    Keep,
    StopReason,
    TruncateAt,
    decide,
    end_of_data,
    find_intact,
)

CALM = Evidence(
    stop=StopReason(1000, "unknown type"),
    end_pos=1000,
    last_index=LogIndex(10),
    durable_pos=1000,
    commit_hint=LogIndex(10),
    only_zeros=True,
    intact_behind=None,
)


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, Keep()),
        ({"durable_pos": 900, "commit_hint": 8}, Keep()),
        ({"only_zeros": False}, TruncateAt(1000)),
        ({"durable_pos": 1001}, Corrupt(1000, "unknown type; durable up to 1001")),
        ({"durable_pos": 1001, "only_zeros": False}, Corrupt(1000, "unknown type; durable up to 1001")),
        ({"commit_hint": 11}, Corrupt(1000, "unknown type; committed up to index 11")),
        ({"commit_hint": 11, "only_zeros": False}, Corrupt(1000, "unknown type; committed up to index 11")),
        (
            {"intact_behind": 5000, "only_zeros": False},
            Corrupt(1000, "unknown type; an intact entry follows at 5000"),
        ),
        ({"has_blank": True, "stop": StopReason(4096, "the segment file is missing")}, TruncateAt(1000, is_blank=True)),
        ({"has_blank": True, "stop": StopReason(4096, "unknown type"), "only_zeros": False}, TruncateAt(1000)),
        # Behind a blank that nothing follows, the scan stops in the next file, but the log ends before the blank.
        ({"stop": StopReason(4096, "the segment file is missing"), "only_zeros": False}, TruncateAt(1000)),
    ],
)
def test_recovery_decides_by_its_table(changes: dict[str, object], decision: Decision) -> None:
    assert decide(replace(CALM, **changes)) == decision  # type: ignore[arg-type]


@pytest.mark.parametrize("pos", [0, 1, 65_500, 65_536 - 47, 65_536 - 3, 200_000, 1_048_576 - 20, 1_100_000])
def test_recovery_finds_an_intact_entry_at_any_position(pos: int) -> None:
    content = bytearray(1_200_000)
    header, _ = frame(NORMAL, LogIndex(5), Term(2), pos, b"body", initial_chain("c"))
    content[pos : pos + HEADER_BYTES + 4] = header + b"body"

    def read(at: int, length: int) -> bytes:
        return bytes(content[at : at + length])

    assert find_intact(read, 0, len(content)) == pos
    assert find_intact(read, pos, len(content)) == pos
    assert find_intact(read, pos + 1, len(content)) is None
    assert end_of_data(read, 0, len(content)) == pos + HEADER_BYTES + 4
    content[pos + HEADER_BYTES] ^= 1
    assert find_intact(read, 0, len(content)) is None


def test_copy_of_an_entry_at_another_position_is_not_intact() -> None:
    """A message may hold a copy of an entry; only at its own position it counts."""
    header, _ = frame(NORMAL, LogIndex(5), Term(2), 700, b"body", initial_chain("c"))
    content = random.Random(1).randbytes(500) + header + b"body" + bytes(1000)
    assert find_intact(lambda at, length: content[at : at + length], 0, len(content)) is None


def test_end_of_data_of_nothing() -> None:
    assert end_of_data(lambda at, length: bytes(length), 300, 200_000) == 300
