"""Classifies the state of a log's files after a restart, and decides what to do. Pure: a function returns the bytes.

Theory of operation. Entries are verified from the first on, one after the other, until a place is not an entry. Then
four questions distinguish a torn end after a crash from damage to acknowledged data:

- is it below what is known to have been durable or committed (`meta`)?
- are there only zeros after it?
- is there an intact entry after it, further away than one unsynced write reaches?
- does a later file contain an intact entry? A file is not written before the previous one is synced to its end.

A torn end may be cut, because it was never acknowledged. Damage must not: the entry may exist nowhere else, and its
absence must not count in a vote. It is reported as byte ranges, so that other replicas, whose files are equal byte by
byte, can supply what is missing; an intact entry after a range then proves by its chain that the right bytes came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.log_numbers import LogIndex
from raftlog.segment.checksum import crc32
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
"""Bytes of old content that a disk may return at the end of the log, as a valid continuation with nothing behind."""

Read = Callable[[int, int], bytes]
"""``read(pos, length)``: that many bytes of one file."""

WINDOW_BYTES: Final = 1024 * 1024
_BLOCK_BYTES: Final = 64 * 1024
_ZERO_BLOCK: Final = bytes(_BLOCK_BYTES)
_ZERO_WINDOW: Final = bytes(WINDOW_BYTES)
_TYPE = re.compile(rb"\x00\x00\x00[\x01-\x03]")


@dataclass(frozen=True, slots=True)
class StopReason:
    """The physical offset at which reading entries stopped, and the reason: the bytes there are not an entry."""

    pos: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts on which the decision depends.

    ``end_pos`` is the end of the last good entry, ``last_index`` its index. ``intact_behind`` is the position of an
    intact entry that no torn write explains, if there is one. ``only_zeros`` says that nothing follows ``end_pos``, or
    the blank that begins there if ``has_blank``.
    """

    stop: StopReason
    end_pos: int
    last_index: LogIndex
    durable_pos: int
    commit_hint: LogIndex
    only_zeros: bool
    intact_behind: int | None
    has_blank: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """The end of the log is consistent."""


@dataclass(frozen=True, slots=True)
class TruncateAt:
    """Zero everything from ``pos`` on, which is a torn write, and continue.

    If ``is_blank``, nothing is torn: a blank closed the file, and the next one has no entry yet. The blank is removed,
    since another entry than the one it was made for may come next, and fit.
    """

    pos: int
    is_blank: bool = False


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Acknowledged data is damaged at ``pos``; leave everything unchanged."""

    pos: int
    reason: str


Decision = Keep | TruncateAt | Corrupt


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes that are no longer entries: from ``pos`` to ``end``.

    ``before`` is the last good entry. ``behind`` is the next intact one, which begins at ``end``; its header says which
    chain leads to it. It is None if the damage reaches to the end of the log, and nothing verifies the damaged bytes.
    """

    before: EntryRef
    behind: EntryRef | None
    end: int

    @property
    def pos(self) -> int:
        """Return the end of the last good entry."""
        return self.before.pos + self.before.size


class LogDamaged(SegmentError):
    """Opening found damage to durable data. Nothing was changed; see `repair.Repair` for the remedy.

    ``ranges`` are the damaged ranges, ascending; ``end_pos`` is the end of the last good entry, before or after them;
    ``reason`` is how the first range was detected.
    """

    def __init__(self, directory: str, ranges: Sequence[DamagedRange], end_pos: int, reason: str) -> None:
        where = ", ".join(f"{damage.pos}..{damage.end}" for damage in ranges)
        super().__init__(f"{directory}: damaged at physical offsets {where}: {reason}")
        self.directory = directory
        self.ranges = tuple(ranges)
        self.end_pos = end_pos
        self.reason = reason


def decide(evidence: Evidence) -> Decision:
    """Decide about the end of a log; the first matching row applies.

    A. Good entries end below the durable position: the bad part had been synced.
    B. Good entries end at or before an index known to be committed and synced here.
    C. An intact entry follows beyond the reach of one unsynced write: the bad place had been synced before that
       entry was written.
    D. Only zeros follow, maybe after a blank: the last write was complete.
    E. Otherwise the last write before the crash was torn, and was never acknowledged.
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
    """Describe the result of `decide` as text."""
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
) -> tuple[EntryRef, StopReason | None]:
    """Verify the entries of one file.

    Args:
        start: where the file begins.
        last: the entry before the first one.
        index: receives each good entry.
        pos: where the first entry begins; None for the file's beginning.

    Returns:
        The last good entry, and where the scan stopped, or None if the file ends in a blank and the next one follows.

    Raises:
        EntryTooNew: an intact entry of an unsupported, newer format version.
    """
    end = start + segment_bytes
    pos = start if pos is None else pos
    assert start <= pos < end, f"entries from {pos} on in the file {start}..{end}"
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
                return last, StopReason(pos, reason)
            index.append(last.index, last.term, pos)
            if last.kind == CONFIG:
                index.add_config(last.index, bytes(window[at + HEADER_BYTES : at + last.size]))
            pos += last.size


def end_of_data(read: Read, pos: int, end: int) -> int:
    """Return the end of the last nonzero byte in ``pos..end``; ``pos`` if there is none."""
    data_end = pos
    for block_pos, block in _blocks(read, pos, end):
        data_end = block_pos + len(block.rstrip(b"\0"))
    return data_end


def end_of_all(read: Read, pos: int, starts: Sequence[int], segment_bytes: int) -> int:
    """Find the end like `end_of_data`, over all files after ``pos``; the last ones may have no data yet."""
    end = pos
    for start in starts:
        begin, file_end = max(start, pos), start + segment_bytes
        if begin < file_end and (data_end := end_of_data(read, begin, file_end)) > begin:
            end = data_end
    return end


def find_intact(read: Read, pos: int, end: int) -> int | None:
    """Position of the first intact entry that begins anywhere in ``pos..end``.

    An entry contains its own position, and its body has a checksum, so hardly anything else passes for one. The chain
    cannot be verified, since what precedes it is unreadable.
    """
    # Blocks of zeros are skipped; a header may begin in the last bytes of the previous block.
    for block_pos, block in _blocks(read, pos, end):
        begin = max(pos, block_pos - HEADER_BYTES)
        window = read(begin, min(block_pos + len(block) + HEADER_BYTES, end) - begin)
        for match in _TYPE.finditer(window):
            if is_intact(read, begin + match.start(), end):
                return begin + match.start()
    return None


def is_intact(read: Read, pos: int, end: int) -> bool:
    """Whether a consistent entry begins at ``pos``, ignoring its chain."""
    if end - pos < HEADER_BYTES:
        return False
    kind, size, _, _, its_pos, flags, _, body_crc, body_len = HEADER.unpack(read(pos, HEADER_BYTES))
    return bool(
        NORMAL <= kind <= CONFIG
        and its_pos == pos
        and (flags == FLAGS or is_newer(flags))
        and size == HEADER_BYTES + body_len
        and size <= end - pos
        and crc32(read(pos + HEADER_BYTES, body_len)) == body_crc
    )


def gather(
    read: Read, stop: StopReason, end_pos: int, starts: Sequence[int], segment_bytes: int, sync_bytes_max: int
) -> tuple[bool, int | None]:
    """Examine everything from ``end_pos`` on: whether it is all zero, and `Evidence.intact_behind`."""
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
            # Within the reach of one write, an intact entry after a torn one is normal.
            intact = find_intact(read, min(stop.pos + sync_bytes_max, file_end), file_end)
        elif start > stop_start and is_intact(read, start, file_end):
            intact = start
        if intact is not None:
            return only_zeros, intact
    return only_zeros, None


def scan_files(
    read: Read, pos: int, starts: Sequence[int], segment_bytes: int, last: EntryRef, index: SparseIndex
) -> tuple[EntryRef, StopReason]:
    """Verify the entries from ``pos`` on, file after file; ``last`` is the one before. See `scan_file`."""
    present = set(starts)
    while (start := pos - pos % segment_bytes) in present:
        last, stop = scan_file(read, start, segment_bytes, last, index, pos)
        if stop is not None:
            return last, stop
        pos = start + segment_bytes
    return last, StopReason(pos, "the segment file is missing")


def examine(
    read: Read,
    stop: StopReason,
    last: EntryRef,
    starts: Sequence[int],
    segment_bytes: int,
    durable_pos: int,
    commit_hint: LogIndex,
    sync_bytes_max: int = SYNC_BYTES_MAX,
) -> Evidence:
    """Gather the evidence for `decide`; ``last`` and ``stop`` come from the scan, the rest from `gather`."""
    end_pos = last.pos + last.size
    assert end_pos <= stop.pos, f"the last entry ends at {end_pos}, the scan stopped at {stop.pos}"
    # The scan continues in the next file only after a blank.
    has_blank = stop.pos - stop.pos % segment_bytes > end_pos
    behind = end_pos + BLANK_BYTES_MIN if has_blank else end_pos
    only_zeros, intact_behind = gather(read, stop, behind, starts, segment_bytes, sync_bytes_max)
    return Evidence(stop, end_pos, last.index, durable_pos, commit_hint, only_zeros, intact_behind, has_blank)


def stale_end(read: Read, index: SparseIndex, last: EntryRef, state: MetaState) -> DamagedRange | None:
    """The range in doubt if no entry ends at the durable end in the vote file, with the chain noted there.

    An old sector at the very end of the log continues what is before it; only the vote file can tell. Which of the last
    entries are old is unknown, so all candidates are uncertain.

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
    """The chain after the entry that ends at ``end``, if that is ``entry`` or a later one in the same file."""
    while (pos := entry.pos + max(entry.size, BLANK_BYTES_MIN)) < end:
        entry = _entry_at(read, pos, segment_bytes)
    return entry.chain if pos == end else None


def _entry_at(read: Read, pos: int, segment_bytes: int) -> EntryRef:
    """The header at ``pos``, which may also be a blank's."""
    header = read(pos, min(HEADER_BYTES, segment_bytes - pos % segment_bytes)).ljust(HEADER_BYTES, b"\0")
    kind, size, index, term, _, _, chain, _, _ = HEADER.unpack(header)
    return EntryRef(index, term, kind, pos, size, chain)


def damaged_ranges(
    read: Read, evidence: Evidence, last: EntryRef, starts: Sequence[int], segment_bytes: int
) -> tuple[list[DamagedRange], int]:
    """The damaged ranges of a log, ascending, and the end of its last good entry, which may be after all of them.

    After each range the scan continues with the chain in the header of the next intact entry. A torn end after the last
    range is not included.

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
    """The first intact entry from ``pos`` on that can follow ``last``, with the chain in its header.

    One that the next entry confirms is preferred to one that damage follows: index, term and chain in a header are only
    proven by its neighbours.
    """
    doubtful: EntryRef | None = None
    for start in starts:
        end = start + segment_bytes
        at = max(start, pos)
        while at < end and (entry_pos := find_intact(read, at, end)) is not None:
            kind, size, index, term, _, _, chain, _, _ = HEADER.unpack(read(entry_pos, HEADER_BYTES))
            if index > last.index and term >= last.term:
                entry = EntryRef(index, term, kind, entry_pos, size, chain)
                if _is_confirmed(read, entry, starts, segment_bytes):
                    return entry
                doubtful = doubtful or entry
            at = entry_pos + 1
    return doubtful


def _is_confirmed(read: Read, entry: EntryRef, starts: Sequence[int], segment_bytes: int) -> bool:
    """Whether the bytes after an entry continue it, or there are none."""
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
    """Yield the blocks that are not all zero, with their positions."""
    while pos < end:
        window = read(pos, min(WINDOW_BYTES, end - pos))
        if window != _ZERO_WINDOW[: len(window)]:
            for at in range(0, len(window), _BLOCK_BYTES):
                block = window[at : at + _BLOCK_BYTES]
                if block != _ZERO_BLOCK[: len(block)]:
                    yield pos + at, block
        pos += len(window)
