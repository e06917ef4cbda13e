"""Nothing that a disk has damaged is read out of a log."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from raftlog.log_numbers import FIRST_INDEX, LogIndex, Term, index_range
from raftlog.segment import CONFIG, HEADER_BYTES, NORMAL, EntryGone, RealDisk, SegmentLog, StorageCorrupt
from raftlog.segment.codec import EntryRef
from raftlog.segment.limits import LogLimits
from tests.unit.segment.log_home import LogHome

TAIL_BYTES = 1
"""Of memory: nearly all entries are on disk only."""


def filled(home: LogHome, count: int = 60, seed: int = 1) -> tuple[SegmentLog, list[EntryRef], list[bytes]]:
    log = home.open(tail_bytes_max=TAIL_BYTES)
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.randint(1, 900)) for _ in range(count)]
    for body in bodies:
        home.put(log, body)
    return log, [log.locate(LogIndex(index)) for index in range(1, count + 1)], bodies


def read_all(log: SegmentLog, ref: EntryRef) -> list[bytes]:
    """The body of an entry, read in each way there is."""
    pos, length = ref.pos + HEADER_BYTES, ref.size - HEADER_BYTES
    (piece,) = log.pread_each([(pos, length)])
    return [log.pread(pos, length), log.pread(pos, length, trusts_page_cache=True), bytes(piece)]


def test_every_read_returns_the_appended_bytes(home: LogHome) -> None:
    log, refs, bodies = filled(home)
    for ref, body in zip(refs, bodies, strict=True):
        assert read_all(log, ref) == [body] * 3
    for ref, body in zip(refs[:-1], bodies, strict=False):
        assert log.read_range(ref.pos + HEADER_BYTES, ref.size - HEADER_BYTES) == body
    home.close_all()


def test_reads_across_files_have_the_blanks_in_between(home: LogHome) -> None:
    log, refs, _ = filled(home)
    end = refs[-2].pos + refs[-2].size
    stored = b"".join(home.disk.content(home.segment(start)) for start in log.files.starts)
    rng = random.Random(2)
    for _ in range(300):
        begin = rng.randrange(end)
        stop = rng.randint(begin + 1, min(end, begin + 9000))
        assert log.pread(begin, stop - begin) == stored[begin:stop], (begin, stop)
        assert log.read_range(begin, stop - begin) == stored[begin:stop], (begin, stop)
    home.close_all()


@pytest.mark.parametrize("run_bytes", [1, 3000, 1 << 20])
def test_verified_runs_are_whole_entries(home: LogHome, run_bytes: int) -> None:
    home.limits = LogLimits(verified_run_bytes=run_bytes)
    log, refs, _ = filled(home)
    end = refs[-2].pos + refs[-2].size
    begins, ends = {ref.pos for ref in refs}, {ref.pos + ref.size for ref in refs}
    stored = b"".join(home.disk.content(home.segment(start)) for start in log.files.starts)
    rng = random.Random(3)
    for _ in range(100):
        begin = rng.randrange(end)
        stop = rng.randint(begin + 1, min(end, begin + 9000))
        found = list(log.read_runs(begin, stop - begin))
        assert found[0].begin <= begin
        assert found[-1].next >= stop
        for run in found:
            assert run.data == stored[run.begin : run.end]
            assert not run.data or (run.begin in begins and run.end in ends)
        assert all(before.next == behind.begin for before, behind in pairwise(found))
    home.close_all()


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bit_is_never_read(seed: int) -> None:
    home = LogHome()
    log, refs, bodies = filled(home, seed=seed)
    rng = random.Random(seed)
    victim = rng.randrange(len(refs) - 1)
    told: list[int] = []
    log.set_damage_handler(lambda damage: told.append(damage.physical_offset))
    at = refs[victim].pos + rng.randrange(HEADER_BYTES, refs[victim].size)
    start = log.files.start_of(at)
    home.disk.flip_bit(home.segment(start), at - start, rng.randrange(8))
    for read in (log.pread, log.read_range, lambda pos, length: list(log.read_runs(pos, length))):
        with pytest.raises(StorageCorrupt, match="checksum of the body differs") as caught:
            read(refs[victim].pos + HEADER_BYTES, 1)
        assert caught.value.physical_offset == refs[victim].pos
    with pytest.raises(StorageCorrupt):
        log.pread_each([(refs[victim].pos + HEADER_BYTES, 1)])
    assert told == [refs[victim].pos] * 4
    others = [number for number in range(len(refs)) if log.files.start_of(refs[number].pos) != start]
    for number in others:
        assert read_all(log, refs[number]) == [bodies[number]] * 3
    home.close_all()


def test_entries_around_a_damaged_one_are_read() -> None:
    home = LogHome(segment_bytes=1 << 16)
    log, refs, bodies = filled(home, count=40)
    told: list[int] = []
    log.set_damage_handler(lambda damage: told.append(damage.physical_offset))
    for victim in (7, 8, 20):
        home.disk.flip_bit(home.segment(), refs[victim].pos + HEADER_BYTES)
    for number in range(39):
        if number in (7, 8, 20):
            with pytest.raises(StorageCorrupt):
                log.pread(refs[number].pos + HEADER_BYTES, 1)
        else:
            assert read_all(log, refs[number]) == [bodies[number]] * 3
            assert log.read_range(refs[number].pos, 1) == b"\0"
    with pytest.raises(StorageCorrupt):
        log.pread(refs[6].pos, refs[9].pos - refs[6].pos)
    assert set(told) == {refs[7].pos, refs[8].pos, refs[20].pos}
    home.close_all()


def test_verified_reads_detect_flipped_header_bits(home: LogHome) -> None:
    log, refs, _ = filled(home)
    second = next(n for n in range(1, 60) if log.files.start_of(refs[n].pos) == log.files.start_of(refs[n - 1].pos) > 0)
    first = next(n for n in range(60) if refs[n].pos == log.files.start_of(refs[second].pos))
    start = refs[first].pos
    for number, field in [(first, 19), (first, 7), (first, 30), (second, 3), (second, 38)]:
        at = refs[number].pos - start + field
        home.disk.flip_bit(home.segment(start), at)
        with pytest.raises(StorageCorrupt):
            log.pread(refs[number].pos + HEADER_BYTES, 1)
        home.disk.flip_bit(home.segment(start), at)
        assert log.pread(refs[number].pos, 1) == b"\0"
        log.truncate(log.last_index)  # forget what was just verified
        home.put(log, b"x")
        log.files.reopen()
        home.close_all()
        log = home.open(tail_bytes_max=TAIL_BYTES)
    home.close_all()


@pytest.mark.parametrize("kind", [NORMAL, CONFIG])
def test_verified_reads_detect_a_flipped_entry_type(kind: int) -> None:
    """No chain is known there. As a configuration, its records would be left out by whoever goes through the log."""
    home = LogHome(segment_bytes=1 << 20)
    log = home.open(tail_bytes_max=TAIL_BYTES)
    for _ in range(20):
        log.append(kind, log.last_index + 1, Term(1), bytes(70_000))
        home.submit(log)
    log.close()
    log = home.open(tail_bytes_max=TAIL_BYTES)
    ref = log.locate(LogIndex(8))
    assert next(iter(log.read_runs(ref.pos, ref.size))).data[:4] == kind.to_bytes(4, "big")
    home.disk.flip_bit(home.segment(), ref.pos + 3, 1)
    with pytest.raises(StorageCorrupt, match="type differs from the index"):
        list(log.read_runs(ref.pos, ref.size))
    with pytest.raises(StorageCorrupt, match="type differs from the index"):
        log.pread(ref.pos + HEADER_BYTES, 1)
    home.close_all()


def test_verified_bytes_are_read_from_disk_once(home: LogHome) -> None:
    log, refs, bodies = filled(home)
    ref, body = refs[3], bodies[3]
    assert not log.has(ref.pos, ref.size)
    log.load(ref.pos, ref.size)
    assert log.has(ref.pos, ref.size)
    home.disk.flip_bit(home.segment(log.files.start_of(ref.pos)), ref.pos + HEADER_BYTES - log.files.start_of(ref.pos))
    assert read_all(log, ref) == [body] * 3
    home.close_all()


def test_memory_is_bounded(home: LogHome) -> None:
    home.limits = LogLimits(verified_bytes_max=9000)
    log, refs, bodies = filled(home)
    order = list(range(59))
    random.Random(3).shuffle(order)
    for number in order:
        assert log.pread(refs[number].pos + HEADER_BYTES, len(bodies[number])) == bodies[number]
        assert log.kept_bytes <= 9000
    assert log.kept_bytes > 0
    home.close_all()


def test_reads_after_a_truncation_return_the_new_entries(home: LogHome) -> None:
    log, refs, _ = filled(home)
    log.load(0, refs[-2].pos)
    log.truncate(LogIndex(30))
    for number in range(30, 61):
        home.put(log, b"new %d" % number * 20)
    for number in range(30, 61):
        ref = log.locate(LogIndex(number))
        assert log.pread(ref.pos + HEADER_BYTES, ref.size - HEADER_BYTES) == b"new %d" % number * 20
    home.close_all()


def test_truncation_during_a_read_is_not_damage(home: LogHome, monkeypatch: pytest.MonkeyPatch) -> None:
    log, refs, _ = filled(home)
    told: list[StorageCorrupt] = []
    log.set_damage_handler(told.append)
    pread, begun = log.files.pread, list[int]()

    def slow(pos: int, length: int) -> bytes:
        if not begun:
            begun.append(pos)
            log.truncate(LogIndex(31))
            for _ in range(31, 61):
                home.put(log, b"n" * 300)
        return pread(pos, length)

    monkeypatch.setattr(log.files, "pread", slow)
    log.load(refs[30].pos, 10)
    assert begun
    assert not told
    for number in range(31, 60):
        ref = log.locate(LogIndex(number))
        assert log.pread(ref.pos + HEADER_BYTES, 300) == b"n" * 300
    home.close_all()


def test_unwritten_blank_is_not_damage() -> None:
    home = LogHome(segment_bytes=1024)
    log = home.open(tail_bytes_max=1)
    home.put(log, b"a" * 500, b"b" * 100)
    log.append(NORMAL, LogIndex(3), Term(1), b"c" * 500)  # it begins the next file, and nothing of it is on disk
    assert log.memory_pos == 1024
    log.load(0, log.memory_pos)
    assert log.has(0, log.memory_pos)
    stored = log.pread(0, 1100)
    home.submit(log)
    assert stored == log.pread(0, 1100)
    home.close_all()


def test_reads_below_the_base_raise_entry_gone(home: LogHome) -> None:
    log, refs, _ = filled(home)
    second = log.segments()[1]
    log.drop_prefix(second.start, b"", log.last_index)
    home.submit(log)
    with pytest.raises(EntryGone):
        log.read_range(refs[0].pos, 10)
    with pytest.raises(EntryGone):
        log.load(refs[0].pos, 10)
    home.close_all()


@pytest.mark.slow
def test_many_threads_read_while_the_log_grows_and_is_cut(tmp_path: Path) -> None:
    home = LogHome(disk=RealDisk(), segment_bytes=1 << 18)  # type: ignore[arg-type]
    log = SegmentLog.open(
        str(tmp_path / "log"), cluster_id="c", node_id="n", segment_bytes=1 << 18, disk=home.disk, tail_bytes_max=1
    )
    rng = random.Random(4)
    for _ in range(800):
        home.put(log, bytes([rng.randrange(256)]) * rng.randint(100, 3000))
    stable = [
        (ref.pos + HEADER_BYTES, ref.size - HEADER_BYTES)
        for ref in map(log.locate, index_range(FIRST_INDEX, LogIndex(400)))
    ]
    wrong: list[object] = []
    log.set_damage_handler(wrong.append)
    over = threading.Event()

    def read(seed: int) -> None:
        chance = random.Random(seed)
        while not over.is_set():
            pos, length = chance.choice(stable)
            if len(set(log.read_range(pos, length))) != 1:
                wrong.append(pos)
            log.load(pos, length)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        log.truncate(LogIndex(rng.randint(401, log.last_index)))
        for _ in range(20):
            home.put(log, bytes([rng.randrange(256)]) * rng.randint(100, 3000))
    over.set()
    for thread in threads:
        thread.join()
    log.close()
    assert not wrong


def test_page_cache_is_trusted_only_for_own_writes(tmp_path: Path) -> None:
    directory = tmp_path / "log"

    def opened() -> SegmentLog:
        return SegmentLog.open(
            str(directory), cluster_id="c", node_id="n", segment_bytes=1 << 16, disk=RealDisk(), tail_bytes_max=1
        )

    home = LogHome(disk=RealDisk())  # type: ignore[arg-type]
    log = opened()
    for _ in range(30):
        home.put(log, b"o" * 1000)
    log.close()
    log = opened()
    home.ticket = 0
    for _ in range(60):
        home.put(log, b"n" * 1000)
    old, new = log.locate(LogIndex(3)), log.locate(LogIndex(40))
    before = log.loaded_bytes
    is_told = log.files.pread_cached(new.pos, 10) is not None
    assert log.pread(new.pos + HEADER_BYTES, 1000, trusts_page_cache=True) == b"n" * 1000
    assert (log.loaded_bytes == before) == is_told, "what the page cache has of our own was verified again"
    before = log.loaded_bytes
    assert log.pread(new.pos + HEADER_BYTES, 1000) == b"n" * 1000
    assert (log.loaded_bytes > before) == is_told, "what may be appended again was taken from the page cache"
    log.pread(old.pos + HEADER_BYTES, 1000, trusts_page_cache=True)
    assert log.loaded_bytes > before
    log.close()


def test_bytes_dropped_by_the_page_cache_are_verified_again(tmp_path: Path) -> None:
    log = SegmentLog.open(
        str(tmp_path / "log"), cluster_id="c", node_id="n", segment_bytes=1 << 16, disk=RealDisk(), tail_bytes_max=1
    )
    home = LogHome(disk=RealDisk())  # type: ignore[arg-type]
    for _ in range(60):
        home.put(log, b"n" * 1000)
    ref = log.locate(LogIndex(10))
    with open(log.files.path(0), "r+b") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if log.files.pread_cached(ref.pos, ref.size) is not None:
            pytest.skip("this file system keeps its pages")
        assert not log.has(ref.pos, ref.size)
        # The kernel reads the page again, from a disk that has damaged it.
        file.seek(ref.pos + HEADER_BYTES + 7)
        file.write(b"?")
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(2):  # the first read brings the page back
            with pytest.raises(StorageCorrupt):
                log.pread(ref.pos + HEADER_BYTES, 1000, trusts_page_cache=True)
    log.close()


@pytest.mark.parametrize("progress", ["cut", "cut on disk", "others in memory", "others on disk"])
def test_read_planned_before_a_truncation_returns_remaining_entries(home: LogHome, progress: str) -> None:
    """Another thread loads what was planned before a new leader's log took the place of some of it."""
    _, refs, _ = filled(home, 30)
    home.close_all()
    log = home.open(tail_bytes_max=TAIL_BYTES)
    damage: list[StorageCorrupt] = []
    log.set_damage_handler(damage.append)
    begin, end = refs[20].pos, refs[-1].pos + refs[-1].size
    log.truncate(LogIndex(24))
    if progress != "cut":
        home.submit(log)
    if progress.startswith("others"):
        for index in range(24, 29):
            log.append(NORMAL, LogIndex(index), Term(2), b"other" * index)
        if progress == "others on disk":
            home.submit(log)
    with contextlib.suppress(EntryGone):
        log.load(begin, end - begin)
    for pos in (ref.pos for ref in refs[20:]):
        with contextlib.suppress(EntryGone):
            log.load(pos, end - pos)
    assert not damage
    # Nothing of what was cut off is kept, so that it is not read for what comes to lie there.
    bodies = [b"new %d" % index * 40 for index in range(log.last_index + 1, 40)]
    home.put(log, *bodies, term=3)
    for index, body in zip(range(40 - len(bodies), 40), bodies, strict=True):
        assert read_all(log, log.locate(LogIndex(index))) == [body] * 3
    assert not damage
    home.close_all()
