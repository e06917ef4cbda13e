"""Restarts after a write that only half happened, and after bytes were left behind the end of the log."""

from __future__ import annotations

import random

import pytest

from chaos.disk import PowerCut
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, LogDamaged, SegmentLog, StorageCorrupt
from raftlog.segment.codec import SYNC_BYTES_MAX, frame, initial_chain
from tests.unit.segment.log_home import CLUSTER_ID, LogHome, all_bodies

MIB = 1024 * 1024


def filled(left: int, *, segment_bytes: int = 512) -> tuple[LogHome, list[bytes], list[int]]:
    """A home whose last entry ends ``left`` bytes before the end of its file; its bodies, and where entries end."""
    home = LogHome(segment_bytes=segment_bytes)
    log = home.open()
    bodies = [b"first", b"2", b"third"]
    last = segment_bytes - left - sum(48 + len(body) for body in bodies) - 48
    bodies.append(bytes(1 + number % 255 for number in range(last)))
    ends: list[int] = []
    for body in bodies:
        home.put(log, body)
        ends.append(log.end_pos)
    assert ends[-1] == segment_bytes - left
    home.close_all()
    return home, bodies, ends


def reopen_and_go_on(home: LogHome, expected: list[bytes]) -> None:
    """The log holds exactly ``expected``, takes more, and still has both after another restart."""
    log = home.open()
    assert all_bodies(log) == expected
    home.put(log, b"more")
    home.close_all()
    log = home.open()
    assert all_bodies(log) == [*expected, b"more"]
    home.close_all()


@pytest.mark.parametrize("garbage", [b"\0", b"\xa5"])
def test_torn_tail_every_byte(garbage: bytes) -> None:
    home, _, ends = filled(left=200)
    path = home.segment()
    whole = home.disk.content(path)
    for cut in range(ends[0], ends[-1]):
        torn = whole[:cut] + garbage * (ends[-1] - cut) + whole[ends[-1] :]
        home.disk.overwrite(path, 0, torn)
        survivors = sum(end <= cut for end in ends)
        if torn != whole:
            log = home.open()
            assert log.last_index == survivors, f"cut at {cut}"
            assert not any(home.disk.content(path)[log.end_pos :]), f"bytes left behind {log.end_pos}"
            home.close_all()


def test_log_with_a_torn_tail_continues() -> None:
    for survivors in (1, 2, 3):
        home, bodies, ends = filled(left=200)
        cut = ends[survivors - 1] + 20
        home.disk.overwrite(home.segment(), cut, bytes(512 - cut))
        reopen_and_go_on(home, bodies[:survivors])


@pytest.mark.parametrize("left", range(8, 65))
def test_cut_close_to_the_end_of_the_file(left: int) -> None:
    home, bodies, ends = filled(left)
    path = home.segment()
    whole = home.disk.content(path)
    for cut in (ends[-2] + 1, ends[-1] - 56, ends[-1] - 9, ends[-1] - 8, ends[-1] - 1):
        home.disk.overwrite(path, 0, whole[:cut] + bytes(512 - cut))
        log = home.open()
        assert all_bodies(log) == bodies[:3], f"cut at {cut}"
        home.close_all()
    reopen_and_go_on(home, bodies[:3])


@pytest.mark.parametrize("left", range(8, 65))
def test_blank_at_every_size(left: int) -> None:
    home, bodies, ends = filled(left)
    log = home.open()
    for size in (48, left + 48 - 8, 300):
        fits = size + 8 <= left
        assert log.position_for(size) == (ends[-1] if fits else 512)
    home.put(log, b"next")
    fits = left >= 52 + 8
    assert log.end_pos == (ends[-1] if fits else 512) + 52
    assert log.pread(0, log.end_pos)[:512] == home.disk.content(home.segment())[: log.end_pos]
    home.close_all()
    reopen_and_go_on(home, [*bodies, b"next"])


def test_largest_entry_fills_a_file_except_for_the_smallest_blank(home: LogHome) -> None:
    log = home.open()
    largest = bytes(4096 - 8 - 48)
    home.put(log, largest, largest, b"x")
    assert log.end_pos == 2 * 4096 + 49
    with pytest.raises(ValueError, match="4089 bytes"):
        log.append(NORMAL, LogIndex(4), Term(1), largest + b"x")
    home.close_all()
    reopen_and_go_on(home, [largest, largest, b"x"])


def test_truncating_committed_entries_raises(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"one", b"two", b"three")
    home.submit(log, commit_hint=2)
    with pytest.raises(AssertionError, match="cut at 2, committed is 2"):
        log.truncate(LogIndex(2))
    log.truncate(LogIndex(3))
    home.submit(log)
    assert all_bodies(log) == [b"one", b"two"]


def test_restart_with_stale_bytes_after_tail(home: LogHome) -> None:
    log = home.open()
    home.put(log, *(b"old-%d" % number for number in range(20)))
    log.truncate(LogIndex(6))
    home.submit(log)
    assert not any(home.disk.content(home.segment())[log.end_pos :])
    home.close_all()
    reopen_and_go_on(home, [b"old-%d" % number for number in range(5)])


def test_truncated_entries_do_not_reappear_behind_shorter_entries(home: LogHome) -> None:
    """The old sixth entry is as long as the new fifth one is, so it would lie just where the new sixth would."""
    log = home.open()
    home.put(log, *(b"old-%d" % number for number in range(9)))
    log.truncate(LogIndex(5))
    home.put(log, b"new-5", term=2)
    home.close_all()
    reopen_and_go_on(home, [b"old-0", b"old-1", b"old-2", b"old-3", b"new-5"])


def test_stale_entries_of_another_history_do_not_link(home: LogHome) -> None:
    """Index, position, term and checksum of the stale entry are right; only the chain tells it from a real one."""
    log = home.open()
    home.put(log, b"mine")
    end_pos = log.end_pos
    home.close_all()
    _, foreign_chain = frame(NORMAL, LogIndex(1), Term(1), 0, b"his!", initial_chain(CLUSTER_ID))
    header, _ = frame(NORMAL, LogIndex(2), Term(1), end_pos, b"stale", foreign_chain)
    home.disk.overwrite(home.segment(), end_pos, header + b"stale")
    reopen_and_go_on(home, [b"mine"])


def test_trailing_blank_is_dropped(home: LogHome) -> None:
    """The next file's first write was lost; another leader may send a smaller entry that still fits the old file."""
    log = home.open()
    home.put(log, b"a" * 4000, b"b" * 4000)
    home.close_all()
    home.disk.overwrite(f"{home.segment(4096)}", 0, bytes(4096))
    home.disk.overwrite("/data/log/meta", 0, home_meta_without_markers(home))
    log = home.open()
    assert log.last_index == 1
    assert not any(home.disk.content(home.segment())[log.end_pos :])
    assert log.position_for(40) == log.end_pos
    assert log.position_for(48) == 4096


def test_torn_first_write_of_a_file_is_discarded_completely(home: LogHome) -> None:
    """The first entry of the file is damaged, the second is intact; it must not lie behind what comes next."""
    log = home.open()
    home.put(log, b"a" * 4000)
    home.put(log, b"b" * 100, b"c" * 100)
    home.close_all()
    home.disk.overwrite("/data/log/meta", 0, home_meta_without_markers(home))
    damage_at(home, 4096 + 60)
    log = home.open()
    assert log.last_index == 1
    home.put(log, b"B" * 100)
    assert not any(home.disk.content(home.segment(4096))[148:])


@pytest.mark.parametrize("seed", range(8))
def test_entries_that_a_killed_process_left_unsynced_are_made_durable(home: LogHome, seed: int) -> None:
    log = home.open()
    home.disk.cut_power_after(1)
    with pytest.raises(PowerCut):
        home.put(log, b"written, not synced")
    home.disk.kill()
    log = home.open()
    assert (log.last_index, log.durable_index) == (1, 1)
    home.disk.crash(random.Random(seed))
    assert all_bodies(home.open()) == [b"written, not synced"]


def home_meta_without_markers(home: LogHome) -> bytes:
    """The vote file as it was before the markers of the second file were written."""
    fresh = LogHome(segment_bytes=home.segment_bytes)
    fresh.open()
    return fresh.disk.content("/data/log/meta").ljust(8192, b"\0")


def damage_at(home: LogHome, pos: int) -> None:
    home.disk.flip_bit(home.segment(pos - pos % home.segment_bytes), pos % home.segment_bytes)


def assert_refused_untouched(home: LogHome, reason: str) -> None:
    before = {name: home.disk.content(f"/data/log/{name}") for name in home.disk.listdir("/data/log")}
    with pytest.raises(LogDamaged, match=reason):
        home.open()
    after = {name: home.disk.content(f"/data/log/{name}") for name in home.disk.listdir("/data/log")}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"LOCK"}


def test_bit_flip_last_batch() -> None:
    home, bodies, ends = filled(left=100)
    damage_at(home, ends[-2] + 60)
    reopen_and_go_on(home, bodies[:3])


def test_flipped_bit_below_the_durable_position_is_refused(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"one", b"two", b"three")
    log.close(clean=True)
    damage_at(home, 60)
    assert_refused_untouched(home, "physical offsets 51..102: .*durable up to 155")


def test_bit_flip_in_committed_entry_is_refused(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"one", b"two", b"three")
    home.submit(log, commit_hint=2)
    log.close(clean=True)
    damage_at(home, 10)
    assert_refused_untouched(home, "physical offsets 0..51: .*durable up to")


@pytest.mark.parametrize("before_end", [4000, 1, -3])
def test_damage_before_a_later_file_is_refused(home: LogHome, before_end: int) -> None:
    """A file is synced to its end before the next one is begun, whatever the markers say."""
    log = home.open()
    home.put(log, b"a" * 4000)
    end_pos = log.end_pos
    home.put(log, b"b" * 400)
    home.close_all()
    home.disk.overwrite("/data/log/meta", 0, home_meta_without_markers(home))
    damage_at(home, end_pos - before_end)  # in the entry, or in the blank behind it
    assert_refused_untouched(home, "an intact entry follows at 4096")


def test_damage_far_before_an_intact_entry_is_refused() -> None:
    """At most one write of 1 MiB is ever unsynced, so an entry further behind proves that this one was synced."""
    home = LogHome(segment_bytes=8 * MIB)
    log = home.open()
    for _ in range(8):
        home.put(log, random.Random(1).randbytes(MIB // 4))
    home.close_all()
    damage_at(home, 100)
    assert_refused_untouched(home, f"an intact entry follows at {(MIB // 4 + 48) * 4}")


def test_damage_within_one_write_of_the_end_is_cut() -> None:
    home = LogHome(segment_bytes=8 * MIB)
    log = home.open()
    body = bytes(MIB // 8)
    for _ in range(16):
        home.put(log, body)
    home.close_all()
    # Of the entries behind it, none begins more than one write away.
    damaged = next(n for n in range(16) if 15 * (len(body) + 48) - n * (len(body) + 48) < SYNC_BYTES_MAX)
    damage_at(home, damaged * (len(body) + 48) + 100)
    reopen_and_go_on(home, [body] * damaged)


def test_missing_segment_is_refused(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"a" * 4000, b"b" * 4000, b"c" * 4000)
    log.close(clean=True)
    home.disk.unlink(home.segment(4096))
    assert_refused_untouched(home, "offsets 4048..8192: the segment file is missing; durable up to")


def test_shortened_segment_is_refused(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"a" * 1000, b"b" * 1000)
    log.close(clean=True)
    home.disk.truncate(home.disk.open(home.segment()), 1500)
    assert_refused_untouched(home, "physical offsets 1048..2096")


def test_entry_damaged_while_the_log_is_open_is_never_returned(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"a" * 100, b"b" * 100, b"c" * 100)
    log.close(clean=True)
    log = home.open()
    damage_at(home, 200)
    assert [ref.index for ref in log.read_entries(LogIndex(1), 100)[0]] == [1]
    with pytest.raises(StorageCorrupt, match="checksum of the body differs"):
        log.read_entries(LogIndex(1), 1000)


def test_recovered_log_equals_the_log_before_the_restart(home: LogHome) -> None:
    log = home.open()
    for term in (1, 3, 4):
        home.put(log, *(bytes([term]) * size for size in (0, 1, 900, 1500, 77)), term=term)
    before: list[SegmentLog] = [log]
    home.close_all()
    after = home.open()
    for name in ("first_index", "last_index", "last_term", "end_pos", "chain", "term_runs", "base"):
        assert getattr(after, name) == getattr(before[0], name), name
    assert after.durable_pos == after.end_pos
    after.check_invariants()
