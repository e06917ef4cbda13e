"""Parses brokers' responses to pulls for filters, and builds responses with the accepted messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from mq.client.errors import UnreadableAnswer
from mq.filter.blocks import BLOCK_MAX, Block, Message, MessageSpans, block_of
from mq.protocol.messages.compression import COMPRESSED, CodecMissing, DecompressionError, inflate
from mq.protocol.messages.records import RecordError, scan_bodies


class Records(NamedTuple):
    """The positions of records, and of their parts, in the response of a broker."""

    ends: list[int]
    queue_offsets: list[int]
    sys_flags: list[int]
    places: list[MessageSpans]
    has_compressed: bool

    def begin_of(self, number: int) -> int:
        """Return the index at which record ``number`` begins."""
        return self.ends[number - 1] if number else 0


def records_in(data: bytes) -> Records:
    """Find all records in a response. Raises UnreadableAnswer."""
    records = Records([], [], [], [], has_compressed=False)
    ends, queue_offsets, sys_flags, places, _ = records
    flags = 0
    try:
        for _, end, queue_offset, sys_flag, body_begin, body_end, text_begin in scan_bodies(data):
            ends.append(end)
            queue_offsets.append(queue_offset)
            sys_flags.append(sys_flag)
            places.append((text_begin, end - text_begin, body_begin, body_end - body_begin))
            flags |= sys_flag
    except RecordError as error:
        raise UnreadableAnswer(str(error)) from error
    if len(ends) > BLOCK_MAX:
        raise UnreadableAnswer(f"{len(ends)} messages in the answer to a pull; at most {BLOCK_MAX} were asked for")
    return records._replace(has_compressed=bool(flags & COMPRESSED))


def seen_by_filter(data: bytes, records: Records, body_bytes_max: int) -> tuple[Block, dict[int, str]]:
    """Return the messages as the filter sees them, and why it does not see the bodies of some, by position.

    The records as they are, unless some are compressed.
    """
    unreadable: dict[int, str] = {}
    if not records.has_compressed:
        return Block(data, records.places, records.ends), unreadable
    messages: list[Message] = []
    heads: list[bytes] = []
    for number, (at, size, body_at, body_size) in enumerate(records.places):
        content = data[body_at : body_at + body_size]
        if records.sys_flags[number] & COMPRESSED:
            try:
                content = inflate(records.sys_flags[number], content, body_bytes_max)
            except (DecompressionError, CodecMissing) as error:
                unreadable[number] = f"its body cannot be read: {error}"
                content = b""
        messages.append(Message(data[at : at + size], content))
        heads.append(data[records.begin_of(number) : body_at])
    return block_of(messages, heads), unreadable


class FilterResult(NamedTuple):
    """The result of filtering some records.

    Attributes:
        passed: the accepted records.
        examined: how many records, from the first on, are decided; the next pull reads the others again.
        next_offset: the offset after the last decided record.
        is_cut: whether some records are not decided.
    """

    passed: list[memoryview]
    examined: int
    next_offset: int
    is_cut: bool


def pick(
    data: bytes, records: Records, passes: Sequence[bool], next_offset: int, *, count_max: int, room: int
) -> FilterResult:
    """Select accepted records: at most ``count_max`` and ``room`` bytes, but always at least one.

    ``passes`` are the decisions on the first records, ``next_offset`` is the one behind the last record.
    """
    parts: list[memoryview] = []
    view = memoryview(data)
    nbytes, count = 0, len(passes)
    for position in compress(range(len(passes)), passes):
        begin, end = records.begin_of(position), records.ends[position]
        if len(parts) == count_max or (parts and nbytes + end - begin > room):
            count = position
            break
        parts.append(view[begin:end])
        nbytes += end - begin
    is_cut = count < len(records.ends)
    return FilterResult(parts, count, records.queue_offsets[count] if is_cut else next_offset, is_cut)
