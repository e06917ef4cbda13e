"""Compares copies with their originals, by count and by a checksum of every message."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from mq.cli.mirror.clusters import ClusterAdmin
from mq.cli.mirror.copies import checksum_of
from mq.cli.mirror.state import MirroredQueue
from mq.client.errors import BrokerError
from mq.client.message import MessageQueue
from mq.protocol import properties as props

QUEUES_AT_ONCE: Final = 4


@dataclass(slots=True)
class Comparison:
    """The comparison of a source queue with its target queue.

    Attributes:
        compared: how many messages both sides have.
        expired: how many copied messages the source or the target has deleted since.
        behind: how many messages of the source were not copied yet.
        checksum: the checksum of all compared messages, in their order.
        difference: the first difference as text; None if there is none.
    """

    queue: MirroredQueue
    compared: int = 0
    expired: int = 0
    behind: int = 0
    checksum: str = ""
    difference: str | None = None

    def fields(self) -> dict[str, object]:
        """Return the result as fields for JSON."""
        return {
            "topic": self.queue.topic,
            "broker": self.queue.broker,
            "queue": self.queue.queue_id,
            "target_broker": self.queue.target_broker,
            "target_queue": self.queue.target_queue,
            "compared": self.compared,
            "expired": self.expired,
            "behind": self.behind,
            "gone": sum(behind - first for first, behind in self.queue.gone),
            "skipped": len(self.queue.skipped),
            "checksum": self.checksum,
            "difference": self.difference,
        }


async def verify(
    source: ClusterAdmin,
    target: ClusterAdmin,
    queues: Sequence[MirroredQueue],
    note: Callable[[Comparison], None] = lambda _: None,
) -> list[Comparison]:
    """Compare all queues, a few at a time. Raises ClientError."""
    comparisons = [Comparison(queue) for queue in queues]
    limiter = trio.CapacityLimiter(QUEUES_AT_ONCE)

    async def one(comparison: Comparison) -> None:
        async with limiter:
            await _compare(source, target, comparison)
            note(comparison)

    async with trio.open_nursery() as nursery:
        for each in comparisons:
            nursery.start_soon(one, each)
    return comparisons


async def _compare(source: ClusterAdmin, target: ClusterAdmin, comparison: Comparison) -> None:
    queue = comparison.queue
    origin = MessageQueue(queue.topic, queue.broker, queue.queue_id)
    goal = MessageQueue(queue.target_topic, queue.target_broker, queue.target_queue)
    try:
        ours = await source.pull(origin, 0, count_max=1)
    except BrokerError:
        if queue.next_offset is not None:
            raise
        return  # nothing was copied of a queue that the source lets no client read
    theirs = await target.pull(goal, 0, count_max=1)
    comparison.behind = max(ours.end - (queue.next_offset or ours.begin), 0)
    both, other = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    for first, target_first, count in queue.stretches:
        kept_from = max(first, ours.begin, theirs.begin - target_first + first)
        end = first + count
        comparison.expired += max(min(kept_from, end) - first, 0)
        if kept_from >= end:
            continue
        shift = target_first - first
        originals = source.read(origin, kept_from, end)
        copies = target.read(goal, kept_from + shift, end + shift)
        for offset in range(kept_from, end):
            original, copy = await originals.next(), await copies.next()
            if original is None or copy is None:
                side = "source" if original is None else "target"
                comparison.difference = f"the {side} has no message for source offset {offset}"
                return
            if (original.queue_offset, copy.queue_offset) != (offset, offset + shift):
                comparison.difference = (
                    f"source offset {original.queue_offset} and target offset {copy.queue_offset} are next, "
                    f"{offset} and {offset + shift} were expected"
                )
                return
            lacks_key = props.UNIQUE_KEY not in original.properties
            one = checksum_of(original, is_copy=False, without_key=lacks_key)
            two = checksum_of(copy, is_copy=True, without_key=lacks_key)
            both.update(one)
            other.update(two)
            if one != two:
                comparison.difference = f"source offset {offset} and target offset {offset + shift} differ"
                return
            comparison.compared += 1
    comparison.checksum = both.hexdigest()
    assert both.digest() == other.digest(), f"{queue}: equal messages with different checksums"
