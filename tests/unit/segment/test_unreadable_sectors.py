"""Sectors that a disk does not give any more: damage like any other, found by whoever reads them, and repaired."""

from __future__ import annotations

import random
from functools import partial

import pytest

from raftlog.log_numbers import LogIndex
from raftlog.net.frames import RangeReq
from raftlog.range_server import DAMAGED_HERE, RangeRefused
from raftlog.repair_dialogue import damaged_log_bytes
from raftlog.segment import LogDamaged, SegmentLog, StorageCorrupt, StorageFailed
from raftlog.segment.codec import HEADER_BYTES
from raftlog.segment.repair import Repair
from tests.unit.segment.log_home import DIRECTORY, LogHome, all_bodies

SEGMENT_BYTES = 32 * 1024
BLOCK_BYTES = 4096


def filled(home: LogHome) -> tuple[SegmentLog, list[bytes]]:
    """Three files; hardly anything is in memory."""
    home.segment_bytes = SEGMENT_BYTES
    log = home.open(tail_bytes_max=1)
    rng = random.Random(1)
    bodies = [rng.randbytes(rng.randrange(100, 900)) for _ in range(150)]
    for body in bodies:
        home.put(log, body)
    assert len(log.files.starts) >= 3
    return log, bodies


def lose(home: LogHome, block: int, start: int = 0) -> None:
    home.disk.lose_sectors(home.segment(start), block * BLOCK_BYTES, BLOCK_BYTES)


def test_running_log_reports_an_unreadable_sector_as_damage(home: LogHome) -> None:
    log, bodies = filled(home)
    hurt = next(index for index in range(1, 150) if log.locate(LogIndex(index)).pos > 2 * BLOCK_BYTES)
    ref = log.locate(LogIndex(hurt))
    told: list[StorageCorrupt] = []
    log.set_damage_handler(told.append)
    lose(home, 2)
    for read in (
        lambda: log.pread(ref.pos + HEADER_BYTES, 1),
        lambda: log.read_range(ref.pos, ref.size),
        lambda: log.read_entries(LogIndex(hurt), 1000),
        lambda: log.files.pread_disk(2 * BLOCK_BYTES, 100),
    ):
        with pytest.raises(StorageCorrupt, match="the disk cannot read it"):
            read()
    assert told
    other = log.locate(LogIndex(140))
    assert log.pread(other.pos + HEADER_BYTES, other.size - HEADER_BYTES) == bodies[139]


@pytest.mark.parametrize(("block", "start"), [(0, 0), (2, 0), (7, 0), (3, SEGMENT_BYTES), (0, 2 * SEGMENT_BYTES)])
def test_unreadable_sectors_found_at_start_are_refetched_from_peers(home: LogHome, block: int, start: int) -> None:
    peer = LogHome()
    source, _ = filled(peer)
    log, bodies = filled(home)
    log.set_note("damaged", b"")  # as a running node does that came across it
    home.submit(log)
    log.close()
    lose(home, block, start)
    with pytest.raises(LogDamaged) as caught:
        home.open()
    begin = start + block * BLOCK_BYTES
    (hole,) = caught.value.ranges
    assert hole.pos <= begin
    assert hole.end >= begin + BLOCK_BYTES or hole.end % SEGMENT_BYTES == 0
    repair = Repair(home.disk, caught.value, peers=["n2"])
    while (wanted := repair.next_request()) is not None:
        assert repair.offer(wanted[0], source.read_range(*wanted), "n2")
    repair.finish()
    assert all_bodies(home.open()) == bodies
    peer.close_all()


def test_damaged_log_serves_readable_sectors_and_notes_unreadable_ones(home: LogHome) -> None:
    """Another sector is lost while the repair is under way, and a peer asks for it."""
    peer = LogHome()
    source, _ = filled(peer)
    log, bodies = filled(home)
    log.set_note("damaged", b"")
    home.submit(log)
    log.close()
    lose(home, 2)
    with pytest.raises(LogDamaged) as caught:
        home.open()
    repair = Repair(home.disk, caught.value, peers=["n2"])
    lose(home, 3, SEGMENT_BYTES)
    lost = SEGMENT_BYTES + 3 * BLOCK_BYTES
    ask = partial(RangeReq, "log")
    at, parts = SEGMENT_BYTES, list[bytes]()
    while at < lost:
        parts.append(damaged_log_bytes(repair, ask(at, 6 * BLOCK_BYTES)))
        at += len(parts[-1])
    assert at == lost
    assert b"".join(parts) == source.read_range(SEGMENT_BYTES, lost - SEGMENT_BYTES)
    for pos in (lost, lost + BLOCK_BYTES - 1):
        with pytest.raises(RangeRefused, match=DAMAGED_HERE):
            damaged_log_bytes(repair, ask(pos, 1))
    assert len(damaged_log_bytes(repair, ask(lost + BLOCK_BYTES, 100))) == 100
    for _ in range(2):
        while (wanted := repair.next_request()) is not None:
            assert repair.offer(wanted[0], source.read_range(*wanted), "n2")
        repair.finish()
        if repair.replaced_ranges[0].pos >= SEGMENT_BYTES:
            break
        with pytest.raises(LogDamaged) as caught:
            home.open()
        repair = Repair(home.disk, caught.value, peers=["n2"])
    assert all_bodies(home.open()) == bodies
    peer.close_all()


def test_damage_of_acknowledged_bytes_is_not_a_torn_end(home: LogHome) -> None:
    """Behind the stored durable position only the bytes themselves tell what was there."""
    log, _ = filled(home)
    stored = log.durable_pos
    log.close(clean=False)
    assert home.disk.content(f"{DIRECTORY}/meta")
    start = stored - stored % SEGMENT_BYTES
    lose(home, (stored - start) // BLOCK_BYTES, start)
    with pytest.raises((LogDamaged, StorageFailed)):
        home.open()
