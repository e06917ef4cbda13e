"""Selects the records of a bulk read from consume queue entries, and reads them in one pass.

Entries of several queues are merged by physical offset, so records come in log order, and each part of the log is read
once, whichever queues it contains. Runs in worker threads.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, compress, pairwise, repeat
from operator import add
from struct import Struct
from typing import Final, NamedTuple

from mq.compiled import merged_entries
from mq.protocol.bulk import encode_answer_head
from mq.protocol.messages.records import BORN_HOST_IPV6, STORE_HOST_IPV6
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.segment.verified_reads import VerifiedRun

GAP_BYTES_MAX: Final = 64 * 1024
"""A gap between two wanted records is read as well if it is shorter than this: positions are not known more precisely.
"""
LOAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of the log in memory at once for one read, unless a single record is larger."""
PIECE_BYTES_MIN: Final = 8 * 1024
"""Parts of a run that are at least so large on average are sent without another copy."""

_PLACES: Final = Struct(">qi8x").iter_unpack
_SYS_FLAG: Final = Struct(">36xi")
_BODY_LENGTH: Final = Struct(">i")
_BODY_LENGTH_AT: Final = 84
_IPV6_MORE: Final = 12

ReadRuns = Callable[[int, int], Iterable[VerifiedRun]]
"""`LogReads.read_runs`."""


class QueueSpan(NamedTuple):
    """A range of entries of one consume queue, from queue offset ``start`` on.

    ``is_whole`` says that these are all existing entries in the requested range.
    """

    queue_id: int
    start: QueueOffset
    entries: bytes
    is_whole: bool


class Selection(NamedTuple):
    """The selected records in log order, and the offsets at which to continue.

    Attributes:
        offsets: for each queue the offset after the last examined entry.
        extents: the contiguous ranges that they are in, as [begin, end). No record crosses the end of an entry.
    """

    positions: Sequence[int]
    sizes: Sequence[int]
    queue_ids: Sequence[int]
    offsets: dict[int, QueueOffset]
    extents: Sequence[tuple[int, int]]


def select(spans: Sequence[QueueSpan], codes: frozenset[int], bytes_max: int, limit_pos: PhysicalOffset) -> Selection:
    """Select records of up to ``bytes_max`` bytes; at least one if there is one.

    Args:
        codes: select only records with one of these tag codes; empty selects all.
        limit_pos: read nothing at or after this physical offset.
    """
    if not codes and (selection := _merge(spans, bytes_max, limit_pos)) is not None:
        return selection
    return select_in_python(spans, codes, bytes_max, limit_pos)


def select_in_python(
    spans: Sequence[QueueSpan], codes: frozenset[int], bytes_max: int, limit_pos: PhysicalOffset
) -> Selection:
    """Do the same as `select`, as the reference for the compiled code."""
    horizon = limit_pos
    places_of_all: list[PhysicalOffset] = []
    sizes_of_all: list[int] = []
    queues_of_all: list[int] = []
    looked_at: list[tuple[QueueSpan, tuple[PhysicalOffset, ...]]] = []
    for span in spans:
        places, sizes_of = zip(*_PLACES(span.entries), strict=True)
        looked_at.append((span, places))
        if not span.is_whole:
            # Later entries of this queue may have to come before records of other queues.
            horizon = min(horizon, places[-1] + 1)
        if codes:
            matches = [code in codes for _, _, code in QUEUE_ENTRY.iter_unpack(span.entries)]
            matching_places, sizes_of = tuple(compress(places, matches)), tuple(compress(sizes_of, matches))
        else:
            matching_places = places
        places_of_all += matching_places
        sizes_of_all += sizes_of
        queues_of_all += repeat(span.queue_id, len(matching_places))
    # Twice as fast as sorting triples: there are a million records in a GB.
    order = sorted(range(len(places_of_all)), key=places_of_all.__getitem__)
    positions = tuple(map(places_of_all.__getitem__, order))
    sizes, queue_ids = (tuple(map(numbers.__getitem__, order)) for numbers in (sizes_of_all, queues_of_all))
    assert len(positions) == len(sizes) == len(queue_ids), f"{len(positions)} records of {len(sizes)} sizes"
    count = bisect_left(positions, horizon)
    fit_count = bisect_right(list(accumulate(sizes[:count])), bytes_max)
    if fit_count < count:
        count = max(fit_count, 1)
        if count < len(positions):
            horizon = min(horizon, positions[count])
    offsets = {span.queue_id: span.start + bisect_left(places, horizon) for span, places in looked_at}
    extents = _extents(positions[:count], sizes[:count])
    return Selection(positions[:count], sizes[:count], queue_ids[:count], offsets, extents)


def _merge(spans: Sequence[QueueSpan], bytes_max: int, limit_pos: PhysicalOffset) -> Selection | None:
    """Do the same as `select` for all tags, in compiled code and a thirtieth of the time; None without it."""
    queue_ids = [span.queue_id for span in spans]
    merge = merged_entries(
        [span.entries for span in spans], queue_ids, [span.is_whole for span in spans], bytes_max, limit_pos
    )
    if merge is None:
        return None
    counts, positions, sizes, ids, bounds = merge
    ends = array("q", bounds)
    return Selection(
        array("q", positions),
        array("i", sizes),
        array("i", ids),
        {span.queue_id: QueueOffset(span.start + count) for span, count in zip(spans, counts, strict=True)},
        list(zip(ends[::2], ends[1::2], strict=True)),
    )


def read_answer(selection: Selection, read_runs: ReadRuns, *, bodies: bool) -> tuple[bytes, list[bytes | memoryview]]:
    """Read the selected records, and return the head and the records of the response, in one or more pieces.

    Raises raftlog.SegmentError if records cannot be read or are damaged.
    """
    sizes = selection.sizes
    pieces: list[bytes | memoryview] = list(_read(selection, read_runs))
    nbytes, expected = sum(map(len, pieces)), sum(sizes)
    assert nbytes == expected, f"{nbytes} bytes of records were read, and {expected} by their queues"
    if not bodies:
        cut, sizes = _without_bodies(b"".join(pieces), sizes)
        pieces = [cut]
    head = encode_answer_head(selection.offsets, selection.queue_ids, sizes, without_bodies=not bodies)
    return head, pieces


def _read(selection: Selection, read_runs: ReadRuns) -> Iterator[bytes | memoryview]:
    """The records: parts of the runs that were read, or, where these are small, a copy that is made while the run is in
    the CPU cache.
    """
    for group in _groups(selection.extents):
        end = group[-1][1]
        runs = iter(read_runs(group[0][0], end - group[0][0]))
        run = next(runs)
        records: list[memoryview] = []
        for begin, stop in group:
            while run.next <= begin:
                yield from _whole_or_joined(records, len(run.data))
                records = []
                run = next(runs)
            records.append(memoryview(run.data)[begin - run.begin : stop - run.begin])
        yield from _whole_or_joined(records, len(run.data))


def _whole_or_joined(records: list[memoryview], run_bytes: int) -> Iterable[bytes | memoryview]:
    """Return the records as they are, or joined if they are small or keep much larger runs in memory."""
    nbytes = sum(map(len, records))
    if nbytes >= PIECE_BYTES_MIN * len(records) and nbytes * 4 >= run_bytes * 3:
        return records
    return (b"".join(records),) if records else ()


def _extents(positions: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the contiguous ranges of records."""
    if not positions:
        return []
    ends = list(map(add, positions, sizes))
    breaks = [number for number, (end, at) in enumerate(zip(ends, positions[1:], strict=False), 1) if end != at]
    return [(positions[first], ends[last - 1]) for first, last in pairwise([0, *breaks, len(ends)])]


def _groups(extents: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield groups of ranges to read together: their gaps are small and their total size is limited."""
    group: list[tuple[int, int]] = []
    for extent in extents:
        if group and (extent[0] - group[-1][1] > GAP_BYTES_MAX or extent[1] - group[0][0] > LOAD_BYTES_MAX):
            yield group
            group = []
        group.append(extent)
    if group:
        yield group


def _without_bodies(data: bytes, sizes: Sequence[int]) -> tuple[bytes, list[int]]:
    """Return the records without their bodies, and their new sizes."""
    parts: list[bytes] = []
    rests: list[int] = []
    at = 0
    for size in sizes:
        head = _BODY_LENGTH_AT
        (sys_flag,) = _SYS_FLAG.unpack_from(data, at)
        if sys_flag & BORN_HOST_IPV6:
            head += _IPV6_MORE
        if sys_flag & STORE_HOST_IPV6:
            head += _IPV6_MORE
        (body_bytes,) = _BODY_LENGTH.unpack_from(data, at + head)
        head += _BODY_LENGTH.size
        parts += (data[at : at + head], data[at + head + body_bytes : at + size])
        rests.append(size - body_bytes)
        at += size
    cut = b"".join(parts)
    assert len(cut) == sum(rests), f"records without bodies have {len(cut)} bytes, {sum(rests)} by their sizes"
    return cut, rests
