"""What a log's files say after a restart, and what to do about it. Pure: bytes come from a function passed in.

Theory of operation. Entries are verified from the first on, one behind the other, until a place is no entry. There,
four questions decide between an end that a crash left and damage to what was acknowledged:

- does it lie below what is known to have been durable or committed (`meta`)?
- are there only zeros behind it?
- is there an intact entry behind it, further away than one unsynced write reaches?
- has a later file an intact entry? A file is not touched before the one before it is synced to its end.

A torn end may be cut, because nobody was told of it. Damage must not: the entry may exist nowhere else, and its
absence must not count in a vote. It is told as ranges of bytes, so that other replicas, whose files are equal byte by
byte, can give back what is missing; an intact entry behind a range then proves by its chain that the right bytes came.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import (
    BLANK_BYTES_MIN,
    CONFIG,
    FLAGS,
    HEADER,
    HEADER_BYTES,
    NORMAL,
    SYNC_BYTES_MAX,
    EntryRef,
    is_blank,
    is_newer,
    verify_entry,
)
from raftlog.segment.errors import EntryTooNew, FrameCorrupt, SegmentError
from raftlog.segment.index import SparseIndex
from raftlog.segment.meta import MetaState

STALE_BYTES_MAX: Final = 64 * 1024
"""How much a disk may give back as it was before, so that it continues what lies before it, and nothing follows."""

Read = Callable[[int, int], bytes]
"""``read(pos, length)``: that many bytes of one file."""

WINDOW_BYTES: Final = 1024 * 1024
_BLOCK_BYTES: Final = 64 * 1024
_ZERO_BLOCK: Final = bytes(_BLOCK_BYTES)
_ZERO_WINDOW: Final = bytes(WINDOW_BYTES)
_TYPE = re.compile(rb"\x00\x00\x00[\x01-\x03]")


@dataclass(frozen=True, slots=True)
class Stop:
    """The first place that is no entry, and why not."""

    pos: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the decision rests on.

    ``end_pos`` is the end of the last good entry, ``last_index`` its index. ``intact_behind`` is the position of an
    intact entry that no torn write explains, if there is one. ``only_zeros`` says that nothing lies behind ``end_pos``,
    or behind the blank which begins there if ``has_blank``.
    """

    stop: Stop
    end_pos: int
    last_index: LogIndex
    durable_pos: int
    commit_hint: LogIndex
    only_zeros: bool
    intact_behind: int | None
    has_blank: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """The log ends in order."""


@dataclass(frozen=True, slots=True)
class TruncateAt:
    """Everything from ``pos`` on is a torn write: zero it and go on.

    If ``is_blank``, nothing is torn: the file was closed by a blank, and the next one has no entry yet. The blank goes,
    since another entry than the one it was made for may come next, and fit.
    """

    pos: int
    is_blank: bool = False


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Something acknowledged is damaged at ``pos``; leave everything as it is."""

    pos: int
    reason: str


Decision = Keep | TruncateAt | Corrupt


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes that are no entries, though they once were: from ``pos`` to ``end``.

    ``before`` is the last good entry. ``behind`` is the next intact one, which begins at ``end``; its header says which
    chain leads to it. It is None when the damage reaches to the end of the log, and nothing vouches for what was there.
    """

    before: EntryRef
    behind: EntryRef | None
    end: int

    @property
    def pos(self) -> int:
        """Where the last good entry ends."""
        return self.before.pos + self.before.size


class LogDamaged(SegmentError):
    """Opening found damage to what was once durable. Nothing was changed; see `repair.Repair` for the remedy.

    ``ranges`` is where, ascending; ``end_pos`` is the end of the last good entry, before or behind them; ``reason`` is
    what the first range was found by.
    """

    def __init__(self, directory: str, ranges: Sequence[DamagedRange], end_pos: int, reason: str) -> None:
        where = ", ".join(f"{damage.pos}..{damage.end}" for damage in ranges)
        super().__init__(f"{directory}: damaged at physical offsets {where}: {reason}")
        self.directory = directory
        self.ranges = tuple(ranges)
        self.end_pos = end_pos
        self.reason = reason


def decide(evidence: Evidence) -> Decision:
    """What to do about the end of a log; the first row that fits holds.

    A. Good entries end below the durable position: a sync had covered what is bad now.
    B. Good entries end at or before an index known to be committed and synced here.
    C. An intact entry lies behind, beyond the reach of one unsynced write: the bad place had been synced before that
       entry was written.
    D. Only zeros lie behind, maybe with a blank before them: the last write was complete.
    E. Otherwise the last write before the crash was torn, and nobody was told that it happened.
    """
    stop = evidence.stop
    if evidence.end_pos < evidence.durable_pos:
        return Corrupt(stop.pos, f"{stop.reason}; durable up to {evidence.durable_pos}")
    if evidence.last_index < evidence.commit_hint:
        return Corrupt(stop.pos, f"{stop.reason}; committed up to index {evidence.commit_hint}")
    if evidence.intact_behind is not None:
        return Corrupt(stop.pos, f"{stop.reason}; an intact entry follows at {evidence.intact_behind}")
    if evidence.only_zeros:
        return TruncateAt(evidence.end_pos, is_blank=True) if evidence.has_blank else Keep()
    return TruncateAt(evidence.end_pos)


def in_words(decision: Decision, evidence: Evidence) -> str:
    """What `decide` found, for people."""
    good = f"entries are good up to index {evidence.last_index}, which ends at {evidence.end_pos}"
    match decision:
        case Keep():
            return f"intact: {good}"
        case TruncateAt(is_blank=True):
            return f"intact: {good}; its file was closed after it, and the next one has no entry"
        case TruncateAt(pos):
            return f"torn end: {good}; the bytes after {pos} are a write that a crash interrupted"
        case Corrupt(pos, reason):
            return f"damaged: {good}; at {pos}: {reason}"


def scan_file(
    read: Read, start: int, segment_bytes: int, last: EntryRef, index: SparseIndex, pos: int | None = None
) -> tuple[EntryRef, Stop | None]:
    """Verify the entries of one file.

    Args:
        start: where the file begins.
        last: the entry before the first one.
        index: takes each good entry.
        pos: where the first entry begins; None for the file's beginning.

    Returns:
        The last good entry, and where the scan stopped, or None when the file ends in a blank and the next one follows.

    Raises:
        EntryTooNew: an entry is intact, and of a format version that is not known here.
    """
    end = start + segment_bytes
    pos = start if pos is None else pos
    while True:
        window = memoryview(read(pos, min(WINDOW_BYTES, end - pos)))
        window_pos = pos
        while True:
            at = pos - window_pos
            rest = len(window) - at
            if is_blank(window[at : at + 8], end - pos):
                return last, None
            if rest >= HEADER_BYTES:
                size = HEADER.unpack_from(window, at)[1]
                if rest < size <= end - pos:
                    if at == 0:
                        window = memoryview(read(pos, size))
                        continue
                    break
            elif window_pos + len(window) < end:
                break
            try:
                last = verify_entry(window, at, last.index + 1, last.term, pos, last.chain)
            except EntryTooNew:
                raise
            except FrameCorrupt as error:
                reason = f"{error.reason}: expected {error.expected}, found {error.actual}"
                return last, Stop(pos, reason)
            index.note(last.index, last.term, pos)
            if last.kind == CONFIG:
                index.note_config(last.index, bytes(window[at + HEADER_BYTES : at + last.size]))
            pos += last.size


def end_of_data(read: Read, pos: int, end: int) -> int:
    """Where the last byte that is not zero ends in ``pos..end``; ``pos`` when there is none."""
    found = pos
    for block_pos, block in _blocks(read, pos, end):
        found = block_pos + len(block.rstrip(b"\0"))
    return found


def end_of_all(read: Read, pos: int, starts: Sequence[int], segment_bytes: int) -> int:
    """Like `end_of_data`, over all files behind ``pos``, of which the last ones may have no data yet."""
    end = pos
    for start in starts:
        begin, file_end = max(start, pos), start + segment_bytes
        if begin < file_end and (found := end_of_data(read, begin, file_end)) > begin:
            end = found
    return end


def find_intact(read: Read, pos: int, end: int) -> int | None:
    """Position of the first intact entry that begins in ``pos..end``, wherever it may begin.

    An entry names its own position, and its body has a checksum, so hardly anything else passes for one. The chain
    cannot be checked, since what comes before is not readable.
    """
    # Blocks that are zero throughout are skipped; a header may begin in the last bytes of the block before.
    for block_pos, block in _blocks(read, pos, end):
        begin = max(pos, block_pos - HEADER_BYTES)
        window = read(begin, min(block_pos + len(block) + HEADER_BYTES, end) - begin)
        for match in _TYPE.finditer(window):
            if is_intact(read, begin + match.start(), end):
                return begin + match.start()
    return None


def is_intact(read: Read, pos: int, end: int) -> bool:
    """Whether an entry begins at ``pos`` that agrees with itself, its chain aside."""
    if end - pos < HEADER_BYTES:
        return False
    kind, size, _, _, its_pos, flags, _, body_crc, body_len = HEADER.unpack(read(pos, HEADER_BYTES))
    return bool(
        NORMAL <= kind <= CONFIG
        and its_pos == pos
        and (flags == FLAGS or is_newer(flags))
        and size == HEADER_BYTES + body_len
        and size <= end - pos
        and zlib.crc32(read(pos + HEADER_BYTES, body_len)) == body_crc
    )


def gather(read: Read, stop: Stop, end_pos: int, starts: Sequence[int], segment_bytes: int) -> tuple[bool, int | None]:
    """Look at everything from ``end_pos`` on: whether it is all zero, and `Evidence.intact_behind`."""
    stop_start = stop.pos - stop.pos % segment_bytes
    only_zeros = True
    for start in starts:
        file_end = start + segment_bytes
        if file_end <= end_pos:
            continue
        behind = max(start, end_pos)
        only_zeros = only_zeros and end_of_data(read, behind, file_end) == behind
        intact: int | None = None
        if start == stop_start:
            # Within the reach of one write, an intact entry behind a torn one is no surprise.
            intact = find_intact(read, min(stop.pos + SYNC_BYTES_MAX, file_end), file_end)
        elif start > stop_start and is_intact(read, start, file_end):
            intact = start
        if intact is not None:
            return only_zeros, intact
    return only_zeros, None


def scan_files(
    read: Read, pos: int, starts: Sequence[int], segment_bytes: int, last: EntryRef, index: SparseIndex
) -> tuple[EntryRef, Stop]:
    """Verify the entries from ``pos`` on, file after file; ``last`` is the one before. See `scan_file`."""
    present = set(starts)
    while (start := pos - pos % segment_bytes) in present:
        last, stop = scan_file(read, start, segment_bytes, last, index, pos)
        if stop is not None:
            return last, stop
        pos = start + segment_bytes
    return last, Stop(pos, "segment is missing")


def examine(
    read: Read,
    stop: Stop,
    last: EntryRef,
    starts: Sequence[int],
    segment_bytes: int,
    durable_pos: int,
    commit_hint: LogIndex,
) -> Evidence:
    """Everything that `decide` asks for; ``last`` and ``stop`` come from the scan, the rest from `gather`."""
    end_pos = last.pos + last.size
    # The scan goes on in the next file only if a blank led it there.
    has_blank = stop.pos - stop.pos % segment_bytes > end_pos
    behind = end_pos + BLANK_BYTES_MIN if has_blank else end_pos
    only_zeros, intact_behind = gather(read, stop, behind, starts, segment_bytes)
    return Evidence(stop, end_pos, last.index, durable_pos, commit_hint, only_zeros, intact_behind, has_blank)


def stale_end(read: Read, index: SparseIndex, last: EntryRef, state: MetaState) -> DamagedRange | None:
    """What is in doubt, if no entry ends where the vote file says that a durable one does, with the chain it had.

    A sector at the very end of the log as it was before continues what lies before it; only the vote file knows better.
    Which of the last entries are old cannot be told, so all of them are in doubt that may be.

    Args:
        index: of all entries, ``last`` the last good one.
    """
    base, durable_pos = state.starts_at.ref, state.durable_pos
    if state.durable_chain is None or not base.pos < durable_pos <= last.pos + last.size:
        return None
    anchors = (_entry_at(read, pos, index.segment_bytes) for pos in index.anchors_before(durable_pos))
    nearest = next(anchors)
    if _chain_at(read, nearest, durable_pos, index.segment_bytes) == state.durable_chain:
        return None
    certain = (entry for entry in (nearest, *anchors) if entry.pos + entry.size <= durable_pos - STALE_BYTES_MAX)
    return DamagedRange(next(certain, base), None, durable_pos)


def _chain_at(read: Read, entry: EntryRef, end: int, segment_bytes: int) -> int | None:
    """The chain after the entry that ends at ``end``, ``entry`` or one behind it in the same file, if there is one."""
    while (pos := entry.pos + max(entry.size, BLANK_BYTES_MIN)) < end:
        entry = _entry_at(read, pos, segment_bytes)
    return entry.chain if pos == end else None


def _entry_at(read: Read, pos: int, segment_bytes: int) -> EntryRef:
    """What the header at ``pos`` says, which may also be a blank's."""
    header = read(pos, min(HEADER_BYTES, segment_bytes - pos % segment_bytes)).ljust(HEADER_BYTES, b"\0")
    kind, size, index, term, _, _, chain, _, _ = HEADER.unpack(header)
    return EntryRef(index, term, kind, pos, size, chain)


def damaged_ranges(
    read: Read, evidence: Evidence, last: EntryRef, starts: Sequence[int], segment_bytes: int
) -> tuple[list[DamagedRange], int]:
    """Where a damaged log is damaged, ascending, and where its last good entry ends, which may be behind all of them.

    The scan goes on behind each range with the chain that the next intact entry claims. A torn end behind the last
    range is not one of them.

    Args:
        evidence: of a `Corrupt` decision.
        last: the last good entry before the damage.
    """
    ranges: list[DamagedRange] = []
    while isinstance(decide(evidence), Corrupt):
        behind = next_entry(read, evidence.stop.pos + 1, starts, segment_bytes, last)
        if behind is None:
            end = end_of_all(read, max(evidence.durable_pos, evidence.end_pos), starts, segment_bytes)
            ranges.append(DamagedRange(last, None, end))
            break
        ranges.append(DamagedRange(last, behind, behind.pos))
        pos = behind.pos + behind.size
        last, stop = scan_files(read, pos, starts, segment_bytes, behind, SparseIndex(segment_bytes))
        evidence = examine(read, stop, last, starts, segment_bytes, evidence.durable_pos, evidence.commit_hint)
    return ranges, evidence.end_pos


def next_entry(read: Read, pos: int, starts: Sequence[int], segment_bytes: int, last: EntryRef) -> EntryRef | None:
    """The first intact entry from ``pos`` on that can come after ``last``, with the chain that its header claims.

    One that the next entry confirms is preferred to one that damage follows: index, term and chain of a header are
    proven by its neighbours only.
    """
    doubtful: EntryRef | None = None
    for start in starts:
        end = start + segment_bytes
        at = max(start, pos)
        while at < end and (found := find_intact(read, at, end)) is not None:
            kind, size, index, term, _, _, chain, _, _ = HEADER.unpack(read(found, HEADER_BYTES))
            if index > last.index and term >= last.term:
                entry = EntryRef(index, term, kind, found, size, chain)
                if _is_confirmed(read, entry, starts, segment_bytes):
                    return entry
                doubtful = doubtful or entry
            at = found + 1
    return doubtful


def _is_confirmed(read: Read, entry: EntryRef, starts: Sequence[int], segment_bytes: int) -> bool:
    """Whether the bytes behind an entry continue it, or there are none."""
    pos = entry.pos + entry.size
    end = entry.pos - entry.pos % segment_bytes + segment_bytes
    if is_blank(read(pos, min(BLANK_BYTES_MIN, end - pos)), end - pos):
        pos, end = end, end + segment_bytes
        if pos not in starts:
            return True
    header = read(pos, min(HEADER_BYTES, end - pos))
    if not any(header):
        return True
    if len(header) < HEADER_BYTES:
        return False
    size = min(max(HEADER_BYTES, HEADER.unpack(header)[1]), end - pos)
    try:
        verify_entry(memoryview(read(pos, size)), 0, entry.index + 1, entry.term, pos, entry.chain)
    except FrameCorrupt:
        return False
    return True


def _blocks(read: Read, pos: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The blocks that are not all zero."""
    while pos < end:
        window = read(pos, min(WINDOW_BYTES, end - pos))
        if window != _ZERO_WINDOW[: len(window)]:
            for at in range(0, len(window), _BLOCK_BYTES):
                block = window[at : at + _BLOCK_BYTES]
                if block != _ZERO_BLOCK[: len(block)]:
                    yield pos + at, block
        pos += len(window)
