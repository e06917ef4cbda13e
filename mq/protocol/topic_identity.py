"""The identity of a topic, which tells it from a deleted topic of the same name and from one in another cluster.

The number of the change of topics and groups that created it, and the time of that change in epoch milliseconds, joined
by a hyphen. If an earlier topic had its name, another hyphen and the first offsets of its queues follow, joined by
dots: `17-1700000000000-100.96`. An empty one stands for a topic from before there were identities.
"""

from __future__ import annotations

from collections.abc import Iterable

from mq.protocol.numbers import FIRST_OFFSET, QueueOffset


def topic_identity(change: int, timestamp_ms: int, first_offsets: Iterable[QueueOffset] = ()) -> str:
    """Compute the identity of a topic that this change creates. ``first_offsets``: by queue id, no trailing zeros."""
    return "-".join(filter(None, (str(change), str(timestamp_ms), ".".join(map(str, first_offsets)))))


def first_offset(identity: str, queue_id: int) -> QueueOffset:
    """Return the offset at which a queue of the topic with this identity began."""
    _, _, offsets = identity.partition("-")[2].partition("-")
    each = offsets.split(".")
    return QueueOffset(each[queue_id]) if queue_id < len(each) and each[queue_id].isdecimal() else FIRST_OFFSET
