"""Extracts the queues, offsets, tags and store times of a log entry with ordinary messages, for an archive's index.

One pass with little work for each message: the reference, `mq.store.dispatch.scan_runs`, makes queue entries first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from mq.protocol.messages.delay import TURNS_MS
from mq.protocol.messages.records import IN_LITE_TOPIC, TRANSACTION_MASK, tag_code_of
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.record_layout import ANY_HOST_IPV6, FIXED, HEAD, MAGIC_V1
from mq.store.dispatch import META_TOPIC

_FIELDS: Final = struct.Struct(">ii4xi4xqqi16xq20xi")
_SPECIAL: Final = ANY_HOST_IPV6 | TRANSACTION_MASK | IN_LITE_TOPIC
_HEAD_BYTES: Final = HEAD.size
_TAGS: Final = b"TAGS\x01"
_SPECIAL_TOPICS: Final = frozenset(each.encode() for each in (META_TOPIC, *TURNS_MS))


@dataclass(slots=True)
class ConsecutiveMessages:
    """Consecutive messages of one queue, up to before ``end_offset``, and their tag codes."""

    first_offset: QueueOffset
    end_offset: int
    tags: set[int]


def consecutive_messages(
    body: bytes, begin: PhysicalOffset
) -> tuple[dict[tuple[bytes, int], ConsecutiveMessages], int] | None:
    """The messages of a log entry by topic and queue, in the order of their first ones, and the latest time at which
    one was stored, 0 without messages. None if a record is not an ordinary one: then the reference decides.

    Args:
        body: of the entry.
        begin: the physical offset of its first byte.
    """
    runs: dict[tuple[bytes, int], ConsecutiveMessages] = {}
    fields, find = _FIELDS.unpack_from, body.find
    at, newest_ms, body_end = 0, 0, len(body)
    while at < body_end:
        if body_end - at < FIXED:
            return None
        size, magic, queue_id, queue_offset, position, sys_flag, stored_ms, length = fields(body, at)
        end, topic_start = at + size, at + _HEAD_BYTES + length + 1
        is_usual = magic == MAGIC_V1 and not sys_flag & _SPECIAL and 0 <= length <= size - FIXED
        if not is_usual or end > body_end or position != begin + at:
            return None
        text_start = topic_start + body[topic_start - 1] + 2
        if text_start > end or text_start + (body[text_start - 2] << 8 | body[text_start - 1]) != end:
            return None
        tag_code = tag_code_of(body[text_start:end]) if find(_TAGS, text_start, end) >= 0 else 0
        key = body[topic_start : text_start - 2], queue_id
        if (run := runs.get(key)) is None:
            if key[0] in _SPECIAL_TOPICS:
                return None
            runs[key] = ConsecutiveMessages(queue_offset, queue_offset + 1, {tag_code})
        elif run.end_offset == queue_offset:
            run.end_offset += 1
            run.tags.add(tag_code)
        else:
            return None
        if stored_ms > newest_ms:
            newest_ms = stored_ms
        at = end
    return runs, newest_ms
