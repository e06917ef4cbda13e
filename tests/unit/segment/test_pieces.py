"""Many pieces of a log at once: what a read of each alone gives, wherever their entries are."""

from __future__ import annotations

import random

import pytest

from raftlog.log_numbers import FIRST_INDEX, LogIndex, index_range
from raftlog.segment import EntryGone, SegmentLog, scattered_reads
from raftlog.segment.codec import HEADER_BYTES
from raftlog.segment.errors import StorageCorrupt
from raftlog.segment.limits import LogLimits
from raftlog.segment.verified_reads import VerifiedReads
from tests.unit.segment.log_home import LogHome


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is read of files, by position and length, from now on."""
    reads: list[tuple[int, int]] = []
    read = VerifiedReads.read

    def noted(self: VerifiedReads, pos: int, end: int, **options: bool) -> bytes:
        reads.append((pos, end - pos))
        return read(self, pos, end, **options)

    monkeypatch.setattr(VerifiedReads, "read", noted)
    return reads


def some_pieces(log: SegmentLog, rng: random.Random) -> list[tuple[int, int]]:
    """Ascending pieces of bodies, some next to each other, some whole entries apart."""
    chosen: list[tuple[int, int]] = []
    for index in range(log.first_index, log.last_index + 1):
        ref = log.locate(LogIndex(index))
        at, end = ref.pos + HEADER_BYTES, ref.pos + ref.size
        while at < end and rng.random() < 0.7:
            length = rng.randint(1, end - at)
            chosen.append((at, length))
            at += length + rng.choice([0, 0, 5])
    return chosen


@pytest.mark.parametrize("tail_bytes_max", [0, 1500, 1_000_000])
@pytest.mark.parametrize("gap_bytes_max", [0, 10, 1_000_000])
def test_batched_reads_equal_single_reads(tail_bytes_max: int, gap_bytes_max: int) -> None:
    rng = random.Random(tail_bytes_max + gap_bytes_max)
    home = LogHome(segment_bytes=1024, limits=LogLimits(gap_bytes_max=gap_bytes_max, pieces_bytes_max=700))
    log = home.open(tail_bytes_max=tail_bytes_max)
    for number in range(40):
        home.put(log, rng.randbytes(37 * number % 500 + 1))
    log.truncate(LogIndex(38))
    home.put(log, b"in place of what was cut")
    log.check_invariants()
    for _ in range(30):
        wanted = some_pieces(log, rng)
        assert log.pread_each(wanted) == [log.pread(pos, length) for pos, length in wanted]
    home.close_all()


def test_reads_are_bounded_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    home = LogHome(segment_bytes=64 * 1024, limits=LogLimits(pieces_bytes_max=700))
    log = home.open(tail_bytes_max=0)
    home.put(log, *[bytes(100) for _ in range(50)])
    reads = counted(monkeypatch)
    refs = [log.locate(LogIndex(index)) for index in range(1, 50)]
    reads.clear()
    log.pread_each([(ref.pos + HEADER_BYTES, 100) for ref in refs])
    assert max(length for _, length in reads) <= 700
    assert len(reads) <= 50 * (100 + HEADER_BYTES) // 700 * 2
    home.close_all()


def test_reads_below_the_base_raise_entry_gone() -> None:
    home = LogHome(segment_bytes=1024)
    log = home.open(tail_bytes_max=0)
    for number in range(30):
        home.put(log, bytes(37 * number % 500))
    log.drop_prefix(2048, b"", log.last_index)
    home.submit(log)
    kept = log.locate(log.last_index)
    with pytest.raises(EntryGone):
        log.pread_each([(HEADER_BYTES, 10), (kept.pos + HEADER_BYTES, 1)])
    home.close_all()


def test_gaps_between_pieces_are_cached_until_a_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    home = LogHome(segment_bytes=64 * 1024, limits=LogLimits(pieces_kept_min=100))
    log = home.open(tail_bytes_max=0)
    for _ in range(48):
        home.put(log, rng.randbytes(100))
    pread = log.files.pread
    reads = counted(monkeypatch)
    places = [(ref.pos + HEADER_BYTES, 100) for ref in map(log.locate, index_range(FIRST_INDEX, LogIndex(49)))]
    bodies = [pread(pos, length) for pos, length in places]
    reads.clear()
    for queue in range(8):
        assert log.pread_each(places[queue::8]) == bodies[queue::8]
    # The first one reads what all have in common; the others have one piece each that lies behind that.
    assert [length for _, length in reads[1:]] == [100] * 7
    log.truncate(LogIndex(45))
    for _ in range(45, 49):
        home.put(log, rng.randbytes(100))
    places = [(ref.pos + HEADER_BYTES, 100) for ref in map(log.locate, index_range(FIRST_INDEX, LogIndex(49)))]
    assert log.pread_each(places[4::8]) == [pread(pos, length) for pos, length in places[4::8]]
    assert log.pread_each(places[4::8])[-1] != bodies[44]
    home.close_all()


def test_few_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    home = LogHome(segment_bytes=64 * 1024, limits=LogLimits(pieces_kept_min=100, gap_bytes_max=700))
    log = home.open(tail_bytes_max=0)
    home.put(log, *[bytes([number]) * 100 for number in range(100)])
    reads = counted(monkeypatch)
    places = [(ref.pos + HEADER_BYTES, 100) for ref in map(log.locate, index_range(FIRST_INDEX, LogIndex(100)))]
    runs = [(places[at], places[at + 4]) for at in range(0, 90, 10)]
    for run in runs:
        log.pread_each(run)
    reads.clear()
    for run in runs[-scattered_reads.KEPT_MAX :]:
        log.pread_each(run)
    assert not reads
    log.pread_each(runs[0])
    assert reads
    home.close_all()


@pytest.mark.parametrize("damaged", [2, 3, 4, 6])
def test_damage_between_pieces_does_not_affect_their_reads(damaged: int) -> None:
    rng = random.Random(damaged)
    home = LogHome(segment_bytes=64 * 1024)
    log = home.open(tail_bytes_max=0)
    bodies = [rng.randbytes(length) for length in (100, 200, 300, 150, 400, 50, 250)]
    home.put(log, *bodies)
    home.disk.flip_bit(home.segment(), log.locate(LogIndex(damaged)).pos + HEADER_BYTES)
    wanted = [index for index in (1, 5, 7) if index != damaged]
    places = [(log.locate(LogIndex(index)).pos + HEADER_BYTES, len(bodies[index - 1])) for index in wanted]
    assert log.pread_each(places) == [bodies[index - 1] for index in wanted]
    with pytest.raises(StorageCorrupt):
        log.pread_each([*places[:1], (log.locate(LogIndex(damaged)).pos + HEADER_BYTES, len(bodies[damaged - 1]))])
    home.close_all()
