"""Our own request 9030: ends of many queues, store times of their newest messages, and offsets by time."""

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
    """Request code 9030, our own: return the ends of the queues of the topics in the body."""


class QueueQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The requested queues of a topic; all of its queues if ``queues`` is None.

    ``since_ms``: for each of these queues, also the offset of the first message that was stored at this time or later,
    in epoch milliseconds; a single time is used for all queues. ``position``: also the offset of the first message at
    this physical offset of the log or behind it.
    """

    topic: str
    queues: Sequence[int] | None = None
    since_ms: Sequence[int] = ()
    position: PhysicalOffset | None = None


class QueueQuestions(Body, kw_only=True):
    """The requested queues of many topics (body of request code 9030)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    topics: Sequence[QueueQuestion]


class QueueSight(msgspec.Struct, frozen=True, array_like=True):
    """A queue: its first offset, the offset after its last message, that message's store time (0: none), and the
    offsets by time and by position if requested.
    """

    queue_id: int
    min_offset: QueueOffset
    max_offset: QueueOffset
    last_update_ms: int
    since_offset: QueueOffset | None = None
    position_offset: QueueOffset | None = None


class QueueSights(Body, kw_only=True):
    """The queues of as many topics as fit, in the order of the request; an unknown topic has none.

    Left out are queues that this replica cannot tell about now: some of their messages are in an archive, or gone.
    """

    topics: Sequence[Sequence[QueueSight]]
