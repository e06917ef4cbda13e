"""Many queues in one request: their ends, when their newest messages were stored, and offsets by time. Our own 9030."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.wire.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.wire.request import Request

TOPICS_MAX: Final = 500
"""Topics in one request."""
QUEUES_MAX: Final = 32 * 1024
"""Queues of one topic in a request."""


class AskQueues(Request, tag=int(Code.ASK_QUEUES)):
    """Request code 9030, our own: return the ends of many queues; the topics are in the body."""


class QueueQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Queues of a topic; all without ``queues``.

    ``since_ms``: for each of these queues, also the offset of the first message that was stored at this time or later,
    in epoch milliseconds; a single time is used for all queues. ``position``: also the offset of the first message at
    this physical offset of the log or behind it.
    """

    topic: str
    queues: Sequence[int] | None = None
    since_ms: Sequence[int] = ()
    position: PhysicalOffset | None = None


class QueueQuestions(Body, kw_only=True):
    """The topics to look at (request code 9030)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    topics: Sequence[QueueQuestion]


class QueueSight(msgspec.Struct, frozen=True, array_like=True):
    """A queue: its first offset, the one after its last, the store time of its last message (0: none), and the offsets
    by time and by position, if they were asked for.
    """

    queue_id: int
    min_offset: QueueOffset
    max_offset: QueueOffset
    last_update_ms: int
    since_offset: QueueOffset | None = None
    position_offset: QueueOffset | None = None


class QueueSights(Body, kw_only=True):
    """The queues of the topics that fit, in the order of the request; none of an unknown topic.

    Left out are queues that this replica cannot tell about now: some of their messages are in an archive, or gone.
    """

    topics: Sequence[Sequence[QueueSight]]
