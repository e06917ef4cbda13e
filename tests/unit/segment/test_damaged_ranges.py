"""Which bytes of a damaged log are named: from the last good entry to the next one that can be trusted."""

from __future__ import annotations

import pytest

from raftlog.log_numbers import LogIndex
from raftlog.segment import LogDamaged
from raftlog.segment.codec import HEADER, HEADER_BYTES
from tests.unit.segment.log_home import LogHome

BODY = b"b" * 52
SIZE = HEADER_BYTES + len(BODY)


@pytest.fixture
def full(home: LogHome) -> LogHome:
    """130 entries of 100 bytes in four files, 40 each in the first three, closed in order."""
    log = home.open()
    home.put(log, *[BODY] * 130, term=3)
    home.submit(log, commit_hint=130)
    log.close(clean=True)
    return home


def flip(home: LogHome, index: int, offset: int) -> None:
    pos = position(index) + offset
    home.disk.flip_bit(home.segment(pos - pos % 4096), pos % 4096)


def position(index: int) -> int:
    return (index - 1) // 40 * 4096 + (index - 1) % 40 * SIZE


def found(home: LogHome) -> list[tuple[int, int, int | None]]:
    """Each range as start, end, and index of the entry behind it."""
    home.distrust()
    with pytest.raises(LogDamaged) as caught:
        home.open()
    return [
        (damage.pos, damage.end, None if damage.behind is None else damage.behind.index)
        for damage in caught.value.ranges
    ]


@pytest.mark.parametrize("offset", [0, 5, 12, 20, 30, 35, 38, 41, 47, 48, 99])
def test_one_flipped_bit_condemns_one_entry(full: LogHome, offset: int) -> None:
    """Whatever field it hits: the entry behind shows where the damage ends."""
    flip(full, 7, offset)
    assert found(full) == [(position(7), position(8), 8)]


def test_several_places_are_several_ranges(full: LogHome) -> None:
    for index in (3, 4, 41, 100):
        flip(full, index, 60)
    # Where a file begins with a bad entry, the range begins at the last good one's end, before the blank.
    assert found(full) == [(200, 400, 5), (4000, 4196, 42), (position(100), position(101), 101)]


def test_verify_finds_a_damaged_blank(full: LogHome) -> None:
    full.disk.flip_bit(full.segment(), 4003)
    assert found(full) == [(4000, 4096, 41)]


def test_missing_file_between_two_others(full: LogHome) -> None:
    full.disk.unlink(full.segment(4096))
    assert found(full) == [(4000, 8192, 81)]


def test_damage_up_to_the_end_has_no_next_good_entry(full: LogHome) -> None:
    end = position(130) + SIZE
    flip(full, 130, 60)
    assert found(full) == [(position(130), end, None)]
    full.disk.unlink(full.segment(3 * 4096))
    assert found(full) == [(8192 + 4000, end, None)]


def test_entry_that_only_itself_vouches_for_is_passed_over(full: LogHome) -> None:
    """Entry 8 is whole, but the chain in its header is not the one that entry 9 continues."""
    flip(full, 7, 60)
    flip(full, 8, 37)
    assert found(full) == [(position(7), position(9), 9)]


def test_torn_end_behind_a_damaged_range_is_none_itself(home: LogHome) -> None:
    log = home.open()
    home.put(log, *[BODY] * 10)
    log.close(clean=True)
    flip(home, 3, 60)
    header = HEADER.pack(1, 200, 11, 1, 1000, 1, 0, 0, 152)
    home.disk.overwrite(home.segment(), 1000, header + b"torn")
    assert found(home) == [(200, 300, 4)]


def test_foreign_files_are_left_alone(home: LogHome) -> None:
    for name in ("README", "00000000000000000123", "000000000000000099999999999999"):
        home.disk.mkdir("/data/log")
        home.disk.open(f"/data/log/{name}", create=True)
    log = home.open()
    home.put(log, *[BODY] * 100)
    log.truncate(LogIndex(2))
    home.submit(log)
    assert {"README", "00000000000000000123"} <= set(home.disk.listdir("/data/log"))
