"""Plans a query: divides the ranges of queues into partitions, by the options. Pure: no sockets, no clock.

A *scan* is a range of queue offsets for each queue. A Spark partition is a part of a scan within one broker group:
either a stripe, which has the messages of all queues in one part of the group's log, or a piece of one queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from mq.protocol.bulk import RANGES_MAX
from spark.option_table import EARLIEST, LATEST, AtOffsets, Bound, QueueName

SHOWN_MAX: Final = 10
"""The number of queues named in an error; the others are counted."""


class QueueEnds(NamedTuple):
    """The extent of a queue: messages from ``first`` up to but not including ``end``, about ``nbytes`` in total."""

    first: int
    end: int
    nbytes: int = 0


class QueueRange(NamedTuple):
    """Queue offsets ``start`` up to but not including ``end``."""

    queue_id: int
    start: int
    end: int

    @property
    def message_count(self) -> int:
        """Return the number of messages in the range."""
        return self.end - self.start


class ArchivedLog(NamedTuple):
    """The archive of a broker group: its URL and its log, as a broker says.

    ``end`` is a place in it that is known to be right: index and term of the last entry, the physical offset behind it,
    and the chain.
    """

    url: str
    endpoint_url: str | None
    log_identity: str
    segment_bytes: int
    end: tuple[int, int, int, int]


class ArchiveClaim(NamedTuple):
    """One replica's description of its group's archive, not confirmed by a leader."""

    address: str
    archive: ArchivedLog


class ArchivedPart(NamedTuple):
    """The part of an archive that a task reads: its files from ``begin_pos`` to the end of ``archive``."""

    archive: ArchivedLog
    begin_pos: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """One Spark partition: the messages of one broker group that one task reads. Has plain values only, to be pickled.

    ``replicas`` are addresses in the order to try. Tasks of one scan hold the log of each replica that they read from,
    from the physical offset ``lease_position`` on; without ``lease_id`` they hold none. They read the messages in
    ``archived_part`` from the archive, the others from replicas.
    """

    topic: str
    topic_id: str
    broker_name: str
    ranges: tuple[QueueRange, ...]
    replicas: tuple[str, ...]
    lease_id: str = ""
    lease_position: int = 0
    archived_part: ArchivedPart | None = None

    @property
    def message_count(self) -> int:
        """Return the number of messages in the partition."""
        return sum(each.message_count for each in self.ranges)


class PlanInvalid(Exception):
    """The options do not match the queues of the topics."""


# -- bounds --------------------------------------------------------------------------------------------------------


def resolve(
    bound: Bound, ends: Mapping[QueueName, QueueEnds], by_time: Mapping[QueueName, int | None], name: str
) -> dict[QueueName, int]:
    """Return the queue offset at which each queue begins or ends.

    Args:
        ends: of every queue that is read.
        by_time: for bounds by time: the offset found for each queue, None where no message is that late.
        name: the option, for errors.

    Raises:
        PlanInvalid: the option omits a queue or names an unknown one, or no message is as late as a time.
    """
    match bound:
        case "earliest":
            return {queue: each.first for queue, each in ends.items()}
        case "latest":
            return {queue: each.end for queue, each in ends.items()}
        case AtOffsets(offsets):
            check_same_queues(offsets, ends, name)
            edges = {EARLIEST: 0, LATEST: 1}
            return {
                queue: ends[queue][edges[offset]] if offset in edges else offset for queue, offset in offsets.items()
            }
        case _:
            late = sorted(queue for queue in ends if by_time[queue] is None)
            if late:
                raise PlanInvalid(
                    f"option {name}: no message is that late in {format_queues(late)}; "
                    f"startingOffsetsByTimestampStrategy=latest begins at the end of such queues"
                )
            return {queue: offset for queue, offset in by_time.items() if offset is not None}


def check_same_queues(queues: Iterable[QueueName], there: Iterable[QueueName], name: str) -> None:
    """Raise PlanInvalid if an option omits a queue or names an unknown one; the error names all of them."""
    queues, there = set(queues), set(there)
    faults = []
    if omitted_queues := sorted(there - queues):
        faults.append(f"says nothing of {format_queues(omitted_queues)}")
    if unknown := sorted(queues - there):
        faults.append(f"names {format_queues(unknown)}, which cannot be read")
    if faults:
        raise PlanInvalid(f"option {name} {' and '.join(faults)}")


def scan(
    starts: Mapping[QueueName, int], stops: Mapping[QueueName, int], ends: Mapping[QueueName, QueueEnds]
) -> dict[QueueName, QueueRange]:
    """Return the ranges between ``starts`` and ``stops``, without empty ones.

    Raises:
        PlanInvalid: a range begins beyond its end, or ends beyond the end of the queue.
    """
    backwards = [queue for queue in sorted(starts) if starts[queue] > stops[queue]]
    if backwards:
        shown_ranges = _join_texts([f"{_name(queue)} ({starts[queue]} to {stops[queue]})" for queue in backwards])
        raise PlanInvalid(f"the start is after the end in {shown_ranges}")
    beyond = [queue for queue in sorted(stops) if stops[queue] > ends[queue].end]
    if beyond:
        shown_ends = _join_texts([f"{_name(queue)} ({stops[queue]}, it ends at {ends[queue].end})" for queue in beyond])
        raise PlanInvalid(f"the end is after the last message in {shown_ends}")
    return {
        queue: QueueRange(queue[2], starts[queue], stops[queue]) for queue in starts if starts[queue] < stops[queue]
    }


# -- partitions ----------------------------------------------------------------------------------------------------


class Splitting(NamedTuple):
    """The size limits of partitions; None means no limit. ``pieces`` is the approximate minimum number of
    partitions.
    """

    pieces: int | None = None
    records_max: int | None = None
    bytes_max: int | None = None


def split_queue(whole: QueueRange, count: int) -> list[QueueRange]:
    """Split a queue into ``count`` pieces that differ by at most one message; fewer if it has fewer messages."""
    count = min(count, whole.message_count)
    marks = [whole.start + whole.message_count * number // count for number in range(count + 1)]
    return [QueueRange(whole.queue_id, begin, end) for begin, end in pairwise(marks)]


def queue_pieces(ranges: Sequence[QueueRange], nbytes: Sequence[int], splitting: Splitting) -> list[list[QueueRange]]:
    """Make a partition of each queue, split to stay within the limits. ``nbytes`` are approximate bytes of ranges."""
    total = sum(each.message_count for each in ranges)
    pieces: list[list[QueueRange]] = []
    for each, size in zip(ranges, nbytes, strict=True):
        count = _pieces(each.message_count, size, splitting._replace(pieces=None))
        if splitting.pieces is not None:
            count = max(count, round(splitting.pieces * each.message_count / total))
        pieces += [[piece] for piece in split_queue(each, count)]
    return pieces


def stripes(
    ranges: Sequence[QueueRange], boundaries: Sequence[Mapping[int, int]], nbytes: int, splitting: Splitting
) -> list[list[QueueRange]]:
    """Return partitions that each read one contiguous part of the log.

    Args:
        boundaries: for places in the log, ascending: the offset of each queue there. A queue that is not in it has not
            begun.
        nbytes: the approximate size of all messages in the ranges.

    Each message is in exactly one stripe. Empty stripes are left out; stripes above the limits are split queue by queue
    in proportion, which follows the log where load is steady.
    """
    inner = [
        {each.queue_id: min(max(at.get(each.queue_id, 0), each.start), each.end) for each in ranges}
        for at in boundaries
    ]
    marks = [{each.queue_id: each.start for each in ranges}, *inner, {each.queue_id: each.end for each in ranges}]
    whole = [
        stripe
        for low, high in pairwise(marks)
        if (stripe := [QueueRange(queue, low[queue], high[queue]) for queue in low if low[queue] < high[queue]])
    ]
    total = sum(each.message_count for each in ranges)
    pieces: list[list[QueueRange]] = []
    for stripe in whole:
        records = sum(each.message_count for each in stripe)
        count = _pieces(records, nbytes * records // max(total, 1), splitting._replace(pieces=None))
        if splitting.pieces is not None:
            count = max(count, round(splitting.pieces * records / total))
        pieces += _split_stripe(stripe, min(count, records))
    return pieces


def _split_stripe(stripe: Sequence[QueueRange], count: int) -> list[list[QueueRange]]:
    if count <= 1:
        return [list(stripe)]
    pieces: list[list[QueueRange]] = []
    for number in range(count):
        piece = [
            QueueRange(
                each.queue_id,
                each.start + each.message_count * number // count,
                each.start + each.message_count * (number + 1) // count,
            )
            for each in stripe
        ]
        if ranges := [each for each in piece if each.message_count]:
            pieces.append(ranges)
    return pieces


def size_of(queue_range: QueueRange, ends: QueueEnds) -> int:
    """Estimate the bytes of a range of a queue."""
    return ends.nbytes * queue_range.message_count // max(1, ends.end - ends.first)


def split_request(piece: Sequence[QueueRange]) -> list[list[QueueRange]]:
    """Split a piece by the number of queues that one request may name."""
    return [list(piece[at : at + RANGES_MAX]) for at in range(0, len(piece), RANGES_MAX)]


def _pieces(records: int, nbytes: int, splitting: Splitting) -> int:
    count = splitting.pieces or 1
    if splitting.records_max is not None:
        count = max(count, -(-records // splitting.records_max))
    if splitting.bytes_max is not None:
        count = max(count, -(-nbytes // splitting.bytes_max))
    return max(count, 1)


# -- replicas ------------------------------------------------------------------------------------------------------

ReadFrom = Literal["follower", "follower-only", "any", "leader"]


def replica_order(addresses: Mapping[int, str], leader_id: int, read_from: ReadFrom, turn: int) -> tuple[str, ...]:
    """Return the addresses of a broker group in the order in which a task tries them.

    Args:
        addresses: by broker id, the leader's under ``leader_id``.
        turn: differs between partitions, so that the replicas share the work.
    """
    followers = [address for number, address in sorted(addresses.items()) if number != leader_id]
    leader = [addresses[leader_id]] if leader_id in addresses else []
    match read_from:
        case "follower":
            return (*_rotate(followers, turn), *leader)
        case "follower-only":
            return tuple(_rotate(followers, turn))
        case "leader":
            return tuple(leader)
        case "any":
            return tuple(_rotate([*leader, *followers], turn))


def _rotate(addresses: list[str], turn: int) -> list[str]:
    at = turn % len(addresses) if addresses else 0
    return addresses[at:] + addresses[:at]


# -- texts -------------------------------------------------------------------------------------------------------------


def format_queues(queues: Sequence[QueueName]) -> str:
    """Format queues as a list for an error."""
    return _join_texts([_name(queue) for queue in queues])


def _name(queue: QueueName) -> str:
    topic, broker_name, queue_id = queue
    return f"{topic} {broker_name}:{queue_id}"


def _join_texts(texts: Sequence[str]) -> str:
    more = len(texts) - SHOWN_MAX
    return ", ".join(texts[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
