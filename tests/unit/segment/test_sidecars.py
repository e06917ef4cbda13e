"""What lies beside a closed file saves reading it, and is never believed against the entries."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from chaos.disk import MemoryDisk, PowerCut
from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term
from raftlog.segment import CONFIG, NORMAL, Base, LogDamaged, SegmentLog, initial_chain
from raftlog.segment.closed_file_index import ClosedFileIndex, agrees, decode_sidecar, encode_sidecar
from raftlog.segment.codec import EntryRef
from raftlog.segment.index import ANCHOR_BYTES, SparseIndex
from tests.unit.segment.log_home import CLUSTER_ID, DIRECTORY, LogHome, all_bodies

KEPT = ("first_index", "last_index", "last_term", "end_pos", "chain", "term_runs", "base", "configs")


class CountingDisk(MemoryDisk):
    """Counts the bytes that are read."""

    nbytes = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        self.nbytes += len(data)
        return data


@pytest.fixture
def home() -> Iterator[LogHome]:
    home = LogHome(disk=CountingDisk(), segment_bytes=4096)
    yield home
    home.close_all()


def fill(home: LogHome, count: int = 60) -> SegmentLog:
    """Ten files; the term rises in the middle of some of them and at the start of others."""
    log = home.open()
    for index in range(1, count + 1):
        log.append(CONFIG if index % 9 == 0 else NORMAL, LogIndex(index), Term(1 + index // 6), bytes([index]) * 600)
        home.submit(log)
    return log


def state(log: SegmentLog) -> list[object]:
    anchors = [log._index.anchor(LogIndex(index)) for index in range(1, log.last_index + 1)]
    return [*(getattr(log, name) for name in KEPT), log.segments(), anchors]


def sidecars(home: LogHome) -> list[str]:
    return sorted(name for name in home.disk.listdir(DIRECTORY) if name.endswith(".index"))


def bytes_read(home: LogHome) -> int:
    assert isinstance(home.disk, CountingDisk)
    return home.disk.nbytes


def test_opening_reads_the_last_file_only(home: LogHome) -> None:
    log = fill(home)
    expected, bodies = state(log), all_bodies(log)
    assert sidecars(home) == [f"{start:020d}.index" for start in range(0, 9 * 4096, 4096)]
    log.close()
    before = bytes_read(home)
    log = home.open()
    # The vote file, the last file, and of each other file its sidecar and two headers.
    assert bytes_read(home) - before < 20_000
    assert state(log) == expected
    assert all_bodies(log) == bodies
    log.check_invariants()


def test_missing_and_bad_sidecars_are_rebuilt(home: LogHome) -> None:
    log = fill(home)
    expected = state(log)
    log.close()
    contents = {name: home.disk.content(f"{DIRECTORY}/{name}") for name in sidecars(home)}
    home.disk.unlink(f"{DIRECTORY}/{sidecars(home)[2]}")
    for number, name in enumerate(sidecars(home)):
        path = f"{DIRECTORY}/{name}"
        match number % 4:
            case 0:
                home.disk.flip_bit(path, random.Random(number).randrange(len(home.disk.content(path))))
            case 1:
                home.disk.truncate(home.disk.open(path), 0)
            case 2:
                home.disk.overwrite(path, 0, b"of a later version")
    log = home.open()
    assert state(log) == expected
    assert {name: home.disk.content(f"{DIRECTORY}/{name}") for name in sidecars(home)} == contents


def test_sidecar_truncated_anywhere_is_rebuilt(home: LogHome) -> None:
    log = fill(home)
    expected = state(log)
    log.close()
    path = f"{DIRECTORY}/{sidecars(home)[0]}"
    whole = home.disk.content(path)
    for length in range(len(whole)):
        assert decode_sidecar(whole[:length]) is None, f"{length} bytes"
    for length in (0, 4, 8):
        fd = home.disk.open(path, create=True)
        home.disk.truncate(fd, 0)
        home.disk.pwritev(fd, [whole[:length]], 0)
        home.disk.fdatasync(fd)
        home.disk.close(fd)
        log = home.open()
        assert state(log) == expected
        log.close()


def test_sidecars_of_another_content_are_ignored(home: LogHome) -> None:
    """They have a valid checksum and fit the names; only the entries tell that they are of an older log."""
    fill(home).close()
    stale = {name: home.disk.content(f"{DIRECTORY}/{name}") for name in sidecars(home)}
    log = home.open()
    log.truncate(LogIndex(2))
    for index in range(2, 61):
        log.append(NORMAL, LogIndex(index), Term(50), bytes([index + 1]) * 600)
    home.submit(log, term=50)
    expected = state(log)
    log.close()
    base = Base(NO_INDEX, NO_TERM, 0, initial_chain(CLUSTER_ID)).ref
    first = home.disk.content(home.segment())
    for content, is_right in ((home.disk.content(f"{home.segment()}.index"), True), (stale[sidecars(home)[0]], False)):
        sidecar = decode_sidecar(content)
        assert sidecar is not None
        assert agrees(lambda pos, length: first[pos : pos + length], sidecar, 0, 4096, base) is is_right
    for name, content in stale.items():
        home.disk.overwrite(f"{DIRECTORY}/{name}", 0, content)
    log = home.open()
    assert state(log) == expected


def test_sidecar_with_a_false_chain_is_exposed_by_the_next_file(home: LogHome) -> None:
    """Data and sidecar agree, but the file was replaced: the next one does not continue it."""
    fill(home).close()
    other = LogHome(segment_bytes=4096)
    log = other.open()
    for index in range(1, 61):
        log.append(NORMAL, LogIndex(index), Term(1 + index // 6), bytes([index + 100]) * 600)
        other.submit(log)
    for name in (f"{8 * 4096:020d}", f"{8 * 4096:020d}.index"):
        home.disk.overwrite(f"{DIRECTORY}/{name}", 0, other.disk.content(f"{DIRECTORY}/{name}"))
    with pytest.raises(LogDamaged):
        home.open()


def test_unlinked_entry_after_sidecars_makes_everything_be_read(home: LogHome) -> None:
    log = fill(home)
    expected = state(log)
    log.close()
    path = f"{DIRECTORY}/{8 * 4096:020d}.index"
    sidecar = decode_sidecar(home.disk.content(path))
    assert sidecar is not None
    assert isinstance(home.disk, CountingDisk)
    before = bytes_read(home)
    # What no crash does: the sidecar and the last header of its file agree on a chain that is wrong.
    wrong = ClosedFileIndex(sidecar.chain_before, replace_chain(sidecar.last, 1), sidecar.part)
    home.disk.overwrite(path, 0, encode_sidecar(wrong).ljust(len(home.disk.content(path)), b"\0"))
    assert state(home.open()) == expected
    assert bytes_read(home) - before > 4096


def replace_chain(ref: EntryRef, chain: int) -> EntryRef:
    return EntryRef(ref.index, ref.term, ref.kind, ref.pos, ref.size, chain)


def test_cut_and_drop_also_remove_the_sidecars(home: LogHome) -> None:
    log = fill(home)
    home.submit(log, commit_hint=20)
    log.drop_prefix(2 * 4096, b"")
    log.truncate(LogIndex(30))
    home.submit(log)
    assert sidecars(home) == [f"{start * 4096:020d}.index" for start in (2, 3)]
    expected = state_above(log)
    log.close()
    assert state_above(home.open()) == expected


def state_above(log: SegmentLog) -> list[object]:
    return [*(getattr(log, name) for name in KEPT), log.segments()]


def test_entries_that_are_appended_after_a_cut_get_new_sidecars(home: LogHome) -> None:
    log = fill(home)
    log.truncate(LogIndex(10))
    for index in range(10, 40):
        log.append(NORMAL, LogIndex(index), Term(20), b"new" * 200)
    log.truncate(LogIndex(35))
    home.submit(log, term=20)
    expected = state(log)
    assert len(sidecars(home)) == len(log.segments()) - 1
    log.close()
    before = bytes_read(home)
    assert state(home.open()) == expected
    assert bytes_read(home) - before < 20_000


def test_full_disk_prevents_only_the_sidecar(home: LogHome) -> None:
    log = home.open()
    home.put(log, bytes(4000), bytes(100))
    home.disk.fail("rename", 28, after=2)
    home.put(log, bytes(4000), bytes(100))
    assert log.durable_index == 4
    assert len(sidecars(home)) == 2  # of three


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["roll", "truncate"])
def test_segment_roll_crash_each_step_with_sidecars(operation: str) -> None:
    """Whatever subset of sidecars and data survives, the log is what it was, or what it became."""

    def prepared() -> tuple[LogHome, SegmentLog]:
        home = LogHome(segment_bytes=1024)
        log = home.open()
        for index in range(1, 9):
            home.put(log, bytes([index]) * 400)
        return home, log

    def run(home: LogHome, log: SegmentLog) -> None:
        if operation == "truncate":
            log.truncate(LogIndex(4))
        for _ in range(6):
            home.put(log, b"new" * 140, term=7)

    home, log = prepared()
    old = all_bodies(log)
    before = home.disk.operations
    run(home, log)
    new = all_bodies(log)
    steps = home.disk.operations - before
    for step in range(steps):
        for seed in range(6):
            home, log = prepared()
            home.disk.cut_power_after(step)
            with pytest.raises(PowerCut):
                run(home, log)
            home.disk.crash(random.Random(seed * 1000 + step))
            log = home.open()
            found = all_bodies(log)
            assert found in (old[: len(found)], new[: len(found)]), f"step {step}, seed {seed}"
            assert len(found) >= (3 if operation == "truncate" else len(old))
            log.check_invariants()
            trusted = state(log)
            home.close_all()
            home.distrust()
            assert state(home.open()) == trusted, f"step {step}, seed {seed}: sidecars tell another story"
            home.close_all()


def test_part_and_extend_are_inverse() -> None:
    segment_bytes = 4 * ANCHOR_BYTES
    index, copy = SparseIndex(segment_bytes), SparseIndex(segment_bytes)
    firsts = []
    for number in range(1, 101):
        pos = (number - 1) // 10 * segment_bytes + (number - 1) % 10 * ANCHOR_BYTES // 3
        index.append(LogIndex(number), Term(number // 7), pos)
        if number % 10 == 1:
            firsts.append(number)
        if number % 13 == 0:
            index.add_config(LogIndex(number), b"%d" % number)
    for first in firsts:
        copy.extend(index.part(LogIndex(first), LogIndex(first + 10)))
    assert (copy.term_runs, copy.configs) == (index.term_runs, index.configs)
    assert [copy.anchor(LogIndex(n)) for n in range(1, 101)] == [index.anchor(LogIndex(n)) for n in range(1, 101)]
