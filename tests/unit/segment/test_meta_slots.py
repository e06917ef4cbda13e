"""The vote file: two slots, of which one may be damaged."""

from __future__ import annotations

import random

import msgspec
import pytest

from chaos.disk import MemoryDisk, PowerCut
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import MetaCorrupt
from raftlog.segment.meta import SLOT_BYTES, MetaFile, MetaState, decode_slot, encode_slot
from raftlog.segment.note_names import ABSTAINING
from tests.unit.segment.log_home import LogHome

PATH = "/meta"
STATE = MetaState(
    "cluster", "n1", 4096, term=Term(7), voted_for="n2", commit_hint=LogIndex(3), durable_pos=99, boot_id="b"
)


def with_term(term: int) -> MetaState:
    return msgspec.structs.replace(STATE, term=term)


def written(*terms: int) -> MemoryDisk:
    disk = MemoryDisk()
    meta = MetaFile(disk, PATH)
    for term in terms:
        meta.write(with_term(term))
    meta.close()
    return disk


def read_back(disk: MemoryDisk) -> MetaState | None:
    return MetaFile(disk, PATH).state


def test_meta_slot_survives_encoding() -> None:
    data = encode_slot(STATE, 12)
    assert len(data) == SLOT_BYTES
    assert decode_slot(data) == (12, STATE)


def test_every_flipped_bit_invalidates_a_slot() -> None:
    data = encode_slot(STATE, 12)
    used = len(data.rstrip(b"\0"))
    for bit in range(used * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_slot(bytes(damaged)) is None, f"bit {bit}"


def test_empty_and_short_slots_are_none() -> None:
    assert decode_slot(b"") is None
    assert decode_slot(bytes(SLOT_BYTES)) is None
    assert decode_slot(encode_slot(STATE, 1)[:100]) is None


def test_newest_write_is_read_back() -> None:
    for count in range(1, 6):
        assert read_back(written(*range(count))) == with_term(count - 1)


@pytest.mark.parametrize("writes", [2, 3, 4, 5])
@pytest.mark.parametrize("slot", [0, 1])
def test_vote_file_survives_one_damaged_slot(writes: int, slot: int) -> None:
    disk = written(*range(1, writes + 1))
    disk.flip_bit(PATH, slot * SLOT_BYTES + 50)
    newest_slot = (writes - 1) % 2
    survivor = writes - 1 if slot == newest_slot else writes
    assert read_back(disk) == with_term(survivor)


@pytest.mark.parametrize("slot", [0, 1])
def test_writing_continues_in_the_damaged_slot(slot: int) -> None:
    """Otherwise the next torn write would take the last good one."""
    disk = written(1, 2, 3)
    disk.flip_bit(PATH, slot * SLOT_BYTES + 50)
    MetaFile(disk, PATH).write(with_term(9))
    disk.flip_bit(PATH, (1 - slot) * SLOT_BYTES + 50)
    assert read_back(disk) == with_term(9)


@pytest.mark.parametrize("operations", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_power_cut_leaves_the_old_or_the_new_vote_state(operations: int, seed: int) -> None:
    disk = MemoryDisk()
    meta = MetaFile(disk, PATH)
    disk.sync_directory("/")
    meta.write(with_term(1))
    meta.write(with_term(2))
    disk.cut_power_after(operations)
    with pytest.raises(PowerCut):
        meta.write(with_term(3))
    disk.crash(random.Random(seed))
    assert read_back(disk) in (with_term(2), with_term(3))


def flip_slots(home: LogHome, *slots: int) -> None:
    for slot in slots:
        home.disk.flip_bit("/data/log/meta", slot * SLOT_BYTES + 40)


def test_bit_flip_meta_one_slot(home: LogHome) -> None:
    for slot in (0, 1):
        log = home.open()
        home.submit(log, term=5, voted_for="n2")
        home.put(log, b"body", term=5)
        log.close(clean=True)
        flip_slots(home, slot)
        log = home.open()
        assert (log.meta.term, log.meta.voted_for) == (5, "n2")
        log.close(clean=True)
        home.disk = MemoryDisk()


def test_vote_in_a_damaged_slot_is_not_given_twice(home: LogHome) -> None:
    """The slot that held the vote is gone; of this term nothing is known but that a vote may have been given."""
    log = home.open()
    home.submit(log, term=5)
    home.submit(log, term=5, voted_for="n2")
    home.close_all()
    newest = max((0, 1), key=lambda slot: slot_seq(home, slot))
    flip_slots(home, newest)
    log = home.open()
    assert (log.meta.term, log.meta.voted_for) == (5, "n1")


def test_term_is_never_behind_the_log(home: LogHome) -> None:
    log = home.open()
    home.submit(log, term=5)
    home.put(log, b"body", term=5)
    home.close_all()
    newest = max((0, 1), key=lambda slot: slot_seq(home, slot))
    flip_slots(home, newest)
    log = home.open()
    assert (log.meta.term, log.meta.voted_for) == (5, "n1")


def slot_seq(home: LogHome, slot: int) -> int:
    decoded = decode_slot(home.disk.content("/data/log/meta")[slot * SLOT_BYTES :][:SLOT_BYTES])
    return -1 if decoded is None else decoded[0]


def test_bit_flip_meta_both_slots(home: LogHome) -> None:
    log = home.open()
    home.submit(log, term=5, voted_for="n2")
    home.close_all()
    flip_slots(home, 0, 1)
    with pytest.raises(MetaCorrupt, match="/data/log/meta: no valid slot"):
        home.open()


def test_missing_meta_file_with_segments_is_refused(home: LogHome) -> None:
    home.open()
    home.close_all()
    home.disk.unlink("/data/log/meta")
    with pytest.raises(MetaCorrupt):
        home.open()


def test_term_and_vote_survive_a_power_cut(home: LogHome) -> None:
    log = home.open()
    home.submit(log, term=5, voted_for="n2")
    home.submit(log, term=6)
    home.disk.crash(random.Random(0))
    meta = home.open().meta
    assert (meta.term, meta.voted_for) == (6, None)


def test_markers_never_run_ahead_of_the_log(home: LogHome) -> None:
    """Others may commit what is not durable here; a torn write of it is no damage."""
    log = home.open()
    home.put(log, b"one", b"two")
    home.submit(log, commit_hint=50)
    log.close(clean=True)
    meta = home.open().meta
    assert (meta.commit_hint, meta.durable_pos) == (2, 102)


def test_stop_without_closing_is_noticed(home: LogHome) -> None:
    log = home.open()
    assert not log.stopped_unclean
    home.disk.kill()
    assert home.open().stopped_unclean, "what a killed process had in its memory is gone"
    home.disk.crash(random.Random(0))
    assert home.open().stopped_unclean
    home.opened[-1].close(clean=True)
    home.disk.crash(random.Random(0))
    assert not home.open().stopped_unclean, "a clean stop had synced everything"


@pytest.mark.parametrize("power_cut", [True, False])
@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True), (False, False)])
def test_unsynced_log_abstains_after_a_disorderly_stop(
    home: LogHome, power_cut: bool, before: bool, after: bool
) -> None:
    """Whichever mode it goes on with: entries that were acknowledged may have been in that process's memory only."""
    log = home.open(acknowledges_unsynced=before)
    assert ABSTAINING not in log.notes
    home.put(log, b"one")
    log.close(clean=True)
    log = home.open(acknowledges_unsynced=before)
    assert ABSTAINING not in log.notes, "a clean stop loses nothing"
    if power_cut:
        home.disk.crash(random.Random(0))
    else:
        home.disk.kill()
    log = home.open(acknowledges_unsynced=after)
    assert (ABSTAINING in log.notes) == (before or after)
    home.disk.kill()
    assert (ABSTAINING in home.open().notes) == (before or after), "until somebody removes the note"


@pytest.mark.parametrize("lost", [0, 1])
def test_unreadable_slot_is_reported_as_damaged(lost: int) -> None:
    disk = written(7, 8)
    terms = [slot[1].term for at in (0, SLOT_BYTES) if (slot := decode_slot(disk.content(PATH)[at : at + SLOT_BYTES]))]
    disk.lose_sectors(PATH, lost * SLOT_BYTES, SLOT_BYTES)
    meta = MetaFile(disk, PATH)
    assert meta.state == with_term(terms[1 - lost])
    assert meta.damaged_slots == 1
    meta.write(with_term(9))
    meta.write(with_term(10))
    assert read_back(disk) == with_term(10)
    assert MetaFile(disk, PATH).damaged_slots == 0


def test_unreadable_vote_file_raises_meta_corrupt(home: LogHome) -> None:
    home.open().close()
    home.disk.lose_sectors("/data/log/meta", 0, 2 * SLOT_BYTES)
    with pytest.raises(MetaCorrupt):
        home.open()
