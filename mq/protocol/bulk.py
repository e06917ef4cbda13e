"""Encodes and decodes the bodies of our own requests 9006 and 9007, bulk reads; `docs/wire-protocol.md` draws them.

Brokers and Spark executors share this module: it needs only the standard library.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, cast

from mq.protocol.errors import ProtocolError
from mq.protocol.numbers import PhysicalOffset, QueueOffset

RANGES_MAX: Final = 1024
"""Maximum number of queues in one bulk read."""
BULK_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of records in one answer, unless a single one is larger."""
OFFSET_MAX: Final = 2**63 - 1

_RANGE: Final = Struct(">iqq")
_HEAD: Final = Struct(">BBHI")
_QUEUE_OFFSET: Final = Struct(">iq")
_PLAN_HEAD: Final = Struct(">II")
_PLAN_QUEUE: Final = Struct(">iqqq")
_WORD: Final = 4
_LONG: Final = 8

_WITHOUT_BODIES: Final = 1
_WITHOUT_RECORDS: Final = 2


class BulkError(ProtocolError):
    """The body of a bulk read's request or response is inconsistent."""


class ReadRange(NamedTuple):
    """The requested part of a queue: queue offsets from ``start`` up to but not including ``end``."""

    queue_id: int
    start: QueueOffset
    end: QueueOffset


class BulkStatus(IntEnum):
    """The kind of response to a bulk read. The response code is SUCCESS in all cases."""

    RECORDS = 0
    NOT_FOLLOWER = 1
    """The replica leads, and the request does not allow that."""
    BEHIND = 2
    """Nothing of the requested ranges is here yet."""
    GONE = 3
    """The first requested message of some queue was deleted."""
    BUSY = 4
    DAMAGED = 5
    """The requested part is damaged at this replica, which repairs it; other replicas have it."""
    RECREATED = 6
    """The topic was deleted and created again: its identity differs from the one in the request."""


class BulkResponse(NamedTuple):
    """The response to a bulk read: records, or the reason why there are none.

    Attributes:
        offsets: by queue id. RECORDS: where to continue, for each queue that was examined. BEHIND: the end of the queue
            here. GONE: the beginning; for queues with deleted messages.
        pause_ms: BUSY: when to retry.
        queue_ids, sizes: of each record, in log order.
        data: RECORDS: the records back to back; otherwise a text with details. NOT_FOLLOWER: the addresses of the other
            replicas, joined by commas.
        without_bodies: the records lack their bodies and are otherwise unchanged.
        without_records: no records are sent; all messages up to the returned offsets exist.
    """

    status: BulkStatus
    offsets: dict[int, QueueOffset]
    pause_ms: int
    queue_ids: array[int]
    sizes: array[int]
    data: memoryview
    without_bodies: bool = False
    without_records: bool = False

    @property
    def text(self) -> str:
        """The explanation in a response that has no records."""
        return str(self.data, "utf-8", "replace")


class PlannedQueue(NamedTuple):
    """The extent of a queue: messages from ``first`` up to but not including ``end``, about ``nbytes`` in total."""

    queue_id: int
    first: QueueOffset
    end: QueueOffset
    nbytes: int = 0


class PlannedPlace(NamedTuple):
    """A physical offset of the log, with the queue offset of the first message after it in each queue."""

    position: PhysicalOffset
    offsets: tuple[QueueOffset, ...]


# -- bulk reads ----------------------------------------------------------------------------------------------------


def encode_ranges(ranges: Iterable[ReadRange]) -> bytes:
    """Encode the body of a bulk read request."""
    return b"".join(_RANGE.pack(*each) for each in ranges)


def decode_ranges(body: bytes | memoryview) -> list[ReadRange]:
    """Decode the body of a bulk read request. Raises BulkError, also for impossible ranges."""
    count, rest = divmod(len(body), _RANGE.size)
    if rest or not 1 <= count <= RANGES_MAX:
        raise BulkError(
            f"the ranges have {len(body)} bytes; allowed: 1 to {RANGES_MAX} ranges of {_RANGE.size} bytes each"
        )
    ranges = [ReadRange(*fields) for fields in _RANGE.iter_unpack(body)]
    for each in ranges:
        if each.queue_id < 0 or not 0 <= each.start < each.end:
            raise BulkError(f"the range {each.start} to {each.end} of queue {each.queue_id} is empty or negative")
    if len({each.queue_id for each in ranges}) != count:
        raise BulkError("a queue is named twice")
    return ranges


def encode_answer_head(
    offsets: dict[int, QueueOffset],
    queue_ids: Sequence[int],
    sizes: Sequence[int],
    *,
    without_bodies: bool = False,
    flags: int = 0,
) -> bytes:
    """Encode the part before the records, of a response that has records or skips filtered ones."""
    flags |= _WITHOUT_BODIES if without_bodies else 0
    head = _HEAD.pack(BulkStatus.RECORDS, flags, len(offsets), len(sizes))
    places = b"".join(_QUEUE_OFFSET.pack(*each) for each in offsets.items())
    return b"".join((head, places, _encoded_ints(queue_ids), _encoded_ints(sizes)))


def encode_offsets(offsets: dict[int, QueueOffset]) -> bytes:
    """Encode a response without records that says where to continue, after messages that all exist."""
    return encode_answer_head(offsets, (), (), flags=_WITHOUT_RECORDS)


def encode_no_records(
    status: BulkStatus, *, offsets: dict[int, QueueOffset] | None = None, pause_ms: int = 0, text: str = ""
) -> bytes:
    """Encode a response without records, with a status and an explanation."""
    offsets = offsets or {}
    head = _HEAD.pack(status, 0, len(offsets), pause_ms)
    return b"".join((head, *(_QUEUE_OFFSET.pack(*each) for each in offsets.items()), text.encode()))


def decode_answer(body: bytes | bytearray | memoryview) -> BulkResponse:
    """Decode the body of a response, without parsing its records. Raises BulkError."""
    view = memoryview(body)
    if len(view) < _HEAD.size:
        raise BulkError(f"the answer ends after {len(view)} bytes")
    code, flags, queues, number = _HEAD.unpack_from(view)
    at = _HEAD.size + queues * _QUEUE_OFFSET.size
    if code not in _STATUSES or len(view) < at:
        raise BulkError(f"the answer ends after {len(view)} bytes, with status {code} and {queues} queues")
    offsets = dict(_QUEUE_OFFSET.iter_unpack(view[_HEAD.size : at]))
    status = BulkStatus(code)
    if status is not BulkStatus.RECORDS:
        return BulkResponse(status, offsets, number, array("i"), array("i"), view[at:])
    if len(view) < at + 2 * _WORD * number:
        raise BulkError(f"the answer ends after {len(view)} bytes, and announces {number} records")
    queue_ids, at = _read_words(view, at, number), at + _WORD * number
    sizes, at = _read_words(view, at, number), at + _WORD * number
    if number and (min(sizes) <= 0 or sum(sizes) != len(view) - at):
        raise BulkError(
            f"the answer announces {number} records of {sum(sizes)} bytes together, and {len(view) - at} bytes came"
        )
    if number and flags & _WITHOUT_RECORDS:
        raise BulkError(f"an answer without records announces {number} records")
    without = bool(flags & _WITHOUT_BODIES), bool(flags & _WITHOUT_RECORDS)
    return BulkResponse(status, offsets, 0, queue_ids, sizes, view[at:], *without)


_STATUSES: Final = frozenset(map(int, BulkStatus))


# -- plans -----------------------------------------------------------------------------------------------------------


def encode_plan(queues: Sequence[PlannedQueue], places: Sequence[PlannedPlace]) -> bytes:
    """Encode the body of the response to a planning request. Each place has an offset for every queue."""
    return b"".join(
        (
            _PLAN_HEAD.pack(len(queues), len(places)),
            *(_PLAN_QUEUE.pack(*each) for each in queues),
            _longs([place.position for place in places]),
            *(_longs(place.offsets) for place in places),
        )
    )


def decode_plan(body: bytes | memoryview) -> tuple[list[PlannedQueue], list[PlannedPlace]]:
    """Decode the body of the response to a planning request. Raises BulkError."""
    view = memoryview(body)
    if len(view) < _PLAN_HEAD.size:
        raise BulkError(f"the plan ends after {len(view)} bytes")
    queues, places = _PLAN_HEAD.unpack_from(view)
    at = _PLAN_HEAD.size + queues * _PLAN_QUEUE.size
    if len(view) != at + places * (queues + 1) * _LONG:
        raise BulkError(f"a plan of {len(view)} bytes cannot have {queues} queues and {places} places")
    rows = [PlannedQueue(*fields) for fields in _PLAN_QUEUE.iter_unpack(view[_PLAN_HEAD.size : at])]
    longs = array("q", bytes(view[at:]))
    if sys.byteorder == "little":
        longs.byteswap()
    offsets = cast("Sequence[QueueOffset]", longs[places:])
    return rows, [
        PlannedPlace(PhysicalOffset(longs[number]), tuple(offsets[number * queues : (number + 1) * queues]))
        for number in range(places)
    ]


def _encoded_ints(numbers: Sequence[int]) -> bytes:
    words = array("i", numbers)
    assert words.itemsize == _WORD, "a C int has 4 bytes"
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def _read_words(view: memoryview, at: int, count: int) -> array[int]:
    words = array("i", bytes(view[at : at + _WORD * count]))
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _longs(numbers: Sequence[int]) -> bytes:
    longs = array("q", numbers)
    if sys.byteorder == "little":
        longs.byteswap()
    return longs.tobytes()
