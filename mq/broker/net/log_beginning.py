"""Decides whether this replica may answer from the beginning of its log: not while another one has older messages.

Segment files are deleted by each replica for itself. A replica that deleted more than others, on a full disk, must not
tell a reader that older messages are gone: the reader would continue behind them, and never see them.
"""

from __future__ import annotations

from typing import Protocol

from mq.broker.base.archive_tier import Tier
from mq.broker.net.refusals import RequestRefused
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from raftlog import Beginning, NodeId


class HasBeginning(Protocol):
    """The part of a replica that `LogBeginning` needs."""

    def beginning(self) -> tuple[Beginning, NodeId | None]:
        """Compare this log's beginning with the others', and name a replica with older messages; see
        `RaftCore.beginning`.
        """


class LogBeginning:
    """Decides whether this replica may answer from the beginning of its own log.

    Args:
        tier: where archived messages are; None if they are not served. With them it does not matter which replica has
            deleted more, but whether the queues of this one reach back to the first archived message.

    Attributes:
        refused_count: number of answers that were refused or sent elsewhere for this reason.
    """

    def __init__(self, replica: HasBeginning, tier: Tier | None = None) -> None:
        self._replica = replica
        self._tier = tier
        self.refused_count = 0

    @property
    def is_first(self) -> bool:
        """Whether no replica has messages from before this log, as far as the group knows."""
        if self._tier is not None and self._tier.begin_pos is not None:
            return not self._tier.lacks_older
        return self._replica.beginning()[0] is Beginning.FIRST

    @property
    def holder(self) -> NodeId | None:
        """A replica that has older messages, or that knows which one has them; None if none is known."""
        if self._tier is not None and self._tier.begin_pos is not None:
            return None
        return self._replica.beginning()[1]

    def may_be_elsewhere(self, min_offset: QueueOffset, offset: QueueOffset = FIRST_OFFSET) -> bool:
        """Return whether ``offset`` is before ``min_offset`` here, and another replica may have that message."""
        return offset < min_offset and not self.is_first

    def check(self, min_offset: QueueOffset, offset: QueueOffset = FIRST_OFFSET) -> None:
        """Raise RequestRefused if another replica may have the message at ``offset``, before ``min_offset``.

        The client may retry, here or at another replica.
        """
        if self.may_be_elsewhere(min_offset, offset):
            raise self.refusal()

    def refusal(self) -> RequestRefused:
        """Count a refused request, and return the error that says why."""
        self.refused_count += 1
        if self._tier is not None and self._tier.lacks_older:
            return RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"archived messages begin at position {self._tier.begin_pos}, and queue entries of this replica at "
                f"{self._tier.queues_from}: ask another replica, or try again later",
            )
        state, holder = self._replica.beginning()
        assert state is not Beginning.FIRST, f"messages are said to be with {holder}, and no log begins earlier"
        if state is Beginning.LATER and holder is not None:
            where = f"{holder} has older messages, or knows which replica has them"
        else:
            where = "it is not known yet whether another replica has older messages"
        return RequestRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the log of this replica begins later than the log of another replica, and {where}; try again later",
        )
