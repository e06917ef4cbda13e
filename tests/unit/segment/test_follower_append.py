"""Entries that another replica framed."""

from __future__ import annotations

import pytest

from chaos.disk import MemoryDisk
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import HEADER_BYTES, LogDiverged, SegmentLog, TailEntry, scan_entries

CLUSTER = "00112233445566778899aabbccddeeff"


def open_log(name: str) -> SegmentLog:
    return SegmentLog.open(f"/{name}", cluster_id=CLUSTER, node_id=name, segment_bytes=4096, disk=MemoryDisk())


def receive(log: SegmentLog, entry: TailEntry, chain: int) -> TailEntry:
    """What a follower does with an entry whose predecessor has ``chain`` at the leader."""
    (ref,) = scan_entries(memoryview(entry.header + bytes(entry.body)), chain)
    return log.append_framed(ref, entry.header, bytes(entry.body), entry.annotation)


def test_follower_holds_the_same_bytes_and_chain() -> None:
    leader, follower = open_log("leader"), open_log("follower")
    entry = leader.append(1, LogIndex(1), Term(1), b"")
    receive(follower, entry, follower.chain)
    for index in range(2, 20):
        chain = leader.chain
        entry = leader.append(1, LogIndex(index), Term(1), bytes([index]) * 700, b"hint")
        copy = receive(follower, entry, chain)
        assert (copy.pos, copy.header, copy.body, copy.annotation) == (
            entry.pos,
            entry.header,
            entry.body,
            b"hint",
        )
    assert follower.chain == leader.chain
    assert follower.end_pos == leader.end_pos
    assert follower.pread(entry.pos + HEADER_BYTES, 700) == bytes([19]) * 700


def test_entry_not_linked_to_the_last_own_one_diverges() -> None:
    """Same index, same term, same size before it, and still another history."""
    leader, follower = open_log("leader"), open_log("follower")
    leader.append(1, LogIndex(1), Term(1), b"one history")
    follower.append(1, LogIndex(1), Term(1), b"two history")
    chain = leader.chain
    entry = leader.append(1, LogIndex(2), Term(1), b"next")
    with pytest.raises(LogDiverged, match="entry 2 does not continue this log: chain"):
        receive(follower, entry, chain)
    assert follower.last_index == 1


def test_entry_at_another_position_is_divergence() -> None:
    leader, follower = open_log("leader"), open_log("follower")
    leader.append(1, LogIndex(1), Term(1), b"long" * 10)
    follower.append(1, LogIndex(1), Term(1), b"short")
    chain = leader.chain
    entry = leader.append(1, LogIndex(2), Term(1), b"next")
    with pytest.raises(LogDiverged, match="position"):
        receive(follower, entry, chain)
    assert follower.last_index == 1
