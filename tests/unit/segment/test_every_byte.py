"""Every cut and every flipped bit of small logs, all of them, against what was durable at the time.

Two things must hold in each case: what is recovered is a prefix of what was written, and what was known to be durable
is all there or reported as damaged, never cut.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import pytest

from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term
from raftlog.segment import LogDamaged
from raftlog.segment.codec import HEADER_BYTES, NORMAL, EntryRef, blank, frame, initial_chain, place
from raftlog.segment.index import SparseIndex
from raftlog.segment.recovery import (
    Corrupt,
    Decision,
    Keep,
    TruncateAt,
    damaged_ranges,
    decide,
    end_of_data,
    examine,
    scan_files,
)
from tests.unit.segment.log_home import CLUSTER_ID, LogHome, all_bodies

BASE: Final = EntryRef(NO_INDEX, NO_TERM, 0, 0, 0, initial_chain(CLUSTER_ID))
BODIES: Final = (b"first", b"", b"\x00\x00\x00\x01" * 6, b"four" * 8, b"the last one")


class Image(NamedTuple):
    """The files of a log, one behind the other, with its entries and where a blank's head lies."""

    content: bytes
    segment_bytes: int
    entries: list[EntryRef]
    blanks: list[int]

    @property
    def ends(self) -> list[int]:
        return [0, *(entry.pos + entry.size for entry in self.entries)]


def image(segment_bytes: int, files: int, bodies: tuple[bytes, ...] = BODIES) -> Image:
    content = bytearray(segment_bytes * files)
    entries: list[EntryRef] = []
    blanks: list[int] = []
    last = BASE
    for index, body in enumerate(bodies, 1):
        end, size = last.pos + last.size, HEADER_BYTES + len(body)
        pos = place(end, size, segment_bytes)
        if pos != end:
            content[end : end + 8] = blank(pos - end)
            blanks.append(end)
        header, chain = frame(NORMAL, LogIndex(index), Term(1 + index // 3), pos, body, last.chain)
        content[pos : pos + size] = header + body
        last = EntryRef(LogIndex(index), Term(1 + index // 3), NORMAL, pos, size, chain)
        entries.append(last)
    return Image(bytes(content), segment_bytes, entries, blanks)


ONE_FILE: Final = image(512, 1)
TWO_FILES: Final = image(256, 2)


def recovered(content: bytes, like: Image, durable_pos: int) -> tuple[EntryRef, Decision]:
    """What opening such files finds, after a crash that left this marker."""

    def read(pos: int, length: int) -> bytes:
        return content[pos : pos + length]

    starts = range(0, len(content), like.segment_bytes)
    index = SparseIndex(like.segment_bytes)
    last, stop = scan_files(read, 0, starts, like.segment_bytes, BASE, index)
    if stop.pos == last.pos + last.size == durable_pos and end_of_data(read, stop.pos, len(content)) == stop.pos:
        return last, Keep()
    evidence = examine(read, stop, last, starts, like.segment_bytes, durable_pos, NO_INDEX)
    decision = decide(evidence)
    if isinstance(decision, Corrupt):
        ranges, good_end = damaged_ranges(read, evidence, last, starts, like.segment_bytes)
        assert ranges
        assert ranges[0].before == last
        assert all(one.end <= other.pos for one, other in pairwise(ranges))
        assert good_end >= last.pos + last.size
    return last, decision


def check(content: bytes, like: Image, durable_pos: int, survivors: int, case: str) -> None:
    """``survivors`` entries are untouched; they and only they are recovered."""
    last, decision = recovered(content, like, durable_pos)
    assert last == ([BASE, *like.entries])[survivors], f"{case}: {last}"
    if like.ends[survivors] < durable_pos:
        assert isinstance(decision, Corrupt), f"{case}: {decision}"
    elif isinstance(decision, TruncateAt):
        assert decision.pos == like.ends[survivors], f"{case}: {decision}"


@pytest.mark.parametrize("like", [ONE_FILE, TWO_FILES], ids=["one file", "two files"])
def test_recovery_handles_a_flip_of_every_bit(like: Image) -> None:
    cases = 0
    for pos in range(like.ends[-1]):
        holder = sum(end <= pos for end in like.ends[1:])
        in_blank = next((start for start in like.blanks if start <= pos), None)
        in_entry = holder < len(like.entries) and like.entries[holder].pos <= pos
        unused = not in_entry and in_blank is not None and pos >= in_blank + 8
        for bit in range(8):
            content = bytearray(like.content)
            content[pos] ^= 1 << bit
            damaged = bytes(content)
            for durable_pos in like.ends:
                # What lies behind the head of a blank is never looked at.
                survivors = len(like.entries) if unused else holder
                check(damaged, like, durable_pos, survivors, f"bit {bit} of {pos}, durable {durable_pos}")
                cases += 1
    assert cases >= 15_000


@pytest.mark.parametrize("garbage", [0x00, 0xA5, 0xFF])
@pytest.mark.parametrize("like", [ONE_FILE, TWO_FILES], ids=["one file", "two files"])
def test_torn_tail_every_byte_at_any_durable_position(like: Image, garbage: int) -> None:
    for cut in range(like.ends[-1] + 1):
        torn = like.content[:cut] + bytes([garbage]) * (like.ends[-1] - cut) + like.content[like.ends[-1] :]
        untouched = next((at for at in range(cut, len(torn)) if torn[at] != like.content[at]), len(torn))
        survivors = sum(end <= untouched for end in like.ends[1:])
        for start in like.blanks:
            if start < untouched < start + 8:
                survivors = min(survivors, sum(end <= start for end in like.ends[1:]))
        for durable_pos in like.ends:
            check(torn, like, durable_pos, survivors, f"cut at {cut}, durable {durable_pos}")


@pytest.mark.parametrize("left", range(8, 65))
def test_torn_tail_every_byte_before_the_end_of_a_file(left: int) -> None:
    """The last entry ends ``left`` bytes before the end of its file; cut within its last 56 bytes."""
    bodies = (b"1", b"2" * (512 - 49 - HEADER_BYTES - left))
    like = image(512, 1, bodies)
    assert like.ends[-1] == 512 - left
    for back in range(57):
        cut = like.ends[-1] - back
        for garbage in (b"\0", b"\xa5"):
            torn = like.content[:cut] + garbage * back + bytes(left)
            for durable_pos in like.ends:
                check(torn, like, durable_pos, 1 + (not back), f"{back} before the end, durable {durable_pos}")


@pytest.mark.parametrize("clean", [False, True])
def test_flip_of_every_byte_through_the_whole_stack(clean: bool) -> None:
    """The same with real opening: what it lets through is right, and going on leaves nothing behind."""
    home = LogHome(segment_bytes=512)
    log = home.open()
    home.put(log, *BODIES)
    log.close(clean=clean)
    path, end = home.segment(), log.end_pos
    segment, meta = home.disk.content(path), home.disk.content("/data/log/meta")
    for pos in range(512):
        home.disk.overwrite(path, 0, segment)
        home.disk.overwrite("/data/log/meta", 0, meta)
        home.disk.flip_bit(path, pos, pos % 8)
        try:
            log = home.open()
        except LogDamaged:
            assert clean, f"flip at {pos}: nothing was marked durable"
            assert pos < end, f"flip at {pos}: nothing lies there"
            continue
        finally:
            home.close_all()
        log = home.open()
        assert all_bodies(log) == list(BODIES[: log.last_index]), f"flip at {pos}"
        assert not clean or log.last_index == 5, f"flip at {pos}: cut what was durable"
        assert not any(home.disk.content(path)[log.end_pos :]) or pos >= end, f"flip at {pos}"
        home.close_all()
