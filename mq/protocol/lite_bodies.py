"""Bodies about lite topics."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import ClassVar

import msgspec

from mq.protocol.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.wire_names import I64, wire


class Action(Enum):
    """What a client says of its subscriptions: a change, or all of them."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


class OffsetKind(Enum):
    """How a client says where its group continues."""

    POLICY = "POLICY"
    OFFSET = "OFFSET"
    TAIL_N = "TAIL_N"
    TIMESTAMP = "TIMESTAMP"


class Policy(IntEnum):
    """The values of `OffsetKind.POLICY`."""

    LAST = 0
    """Where the group left off; a group that was not there before begins at the first message."""
    MIN = 1
    MAX = 2


class OffsetOption(Body):
    """Where a group continues in the lite topics of a request: at an offset, so many messages before the end, or at the
    first message that was stored at a time (ms since the epoch) or later.
    """

    type: OffsetKind
    value: I64 = 0


class LiteSubscription(Body, rename=wire(lite_topics="liteTopicSet")):
    """What one client subscribes to, or does not any more. ``topic`` is the parent."""

    action: Action
    client_id: str
    group: str
    topic: str
    lite_topics: list[str] = msgspec.field(default_factory=list)
    offset_option: OffsetOption | None = None
    version: I64 = 0


class LiteSubscriptionSet(Body, rename=wire(subscriptions="subscriptionSet")):
    """The body of request code 200071."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    subscriptions: list[LiteSubscription] = msgspec.field(default_factory=list)
