"""Corrects stored consumer offsets beyond the ends of their queues.

The leader refuses such offsets (`mq.broker.consume.offsets`), but earlier releases stored them. With one of them a
group gets nothing until the queue has passed it, and then misses what came before. So a new leader looks through all
stored offsets, and sets those beyond the end to the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.consume.offsets import Offsets
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.write_path.outcome import Outcome, Stored
from mq.protocol.numbers import QueueOffset

_SECONDS = 0.1
_ROWS_PER_STEP = 5_000
"""Stored offsets examined in one call: about a millisecond."""


class OffsetCorrections(Service):
    """Checks all stored offsets after this replica was elected, and corrects those beyond their queue's end.

    Args:
        offsets: resets the offsets.
    """

    def __init__(self, context: BrokerContext, *, offsets: Offsets) -> None:
        self._metadata = context.metadata
        self._appender = context.appender
        self._end = context.queue_tails.end_offset
        self._log = context.log
        self._offsets = offsets
        self._unseen: list[tuple[str, str]] = []

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_SECONDS, self.correct_some, lambda: now_if(self._unseen))

    def lead(self) -> None:
        """Start checking the offsets of all groups, since this replica becomes the leader."""
        self._unseen = list(self._metadata.consumer_offsets)

    def resign(self) -> None:
        """Stop checking offsets. The next leader checks all of them."""
        self._unseen.clear()

    def correct_some(self) -> None:
        """Check some stored offsets, and correct those beyond the end of their queue."""
        rows = 0
        while self._unseen and rows < _ROWS_PER_STEP and self._appender.has_room:
            group, topic = self._unseen.pop()
            offsets = self._metadata.consumer_offsets.get((group, topic), {})
            rows += 1 + len(offsets)
            ends = {queue_id: self._end(topic, queue_id) for queue_id in offsets}
            beyond = {queue_id: end for queue_id, end in ends.items() if offsets[queue_id] > end}
            if beyond:
                self._correct(group, topic, beyond, {queue_id: offsets[queue_id] for queue_id in beyond})

    def _correct(self, group: str, topic: str, ends: dict[int, QueueOffset], offsets: dict[int, QueueOffset]) -> None:
        assert ends.keys() == offsets.keys(), f"offsets of {sorted(offsets)} are corrected to ends of {sorted(ends)}"
        for queue_id, end in ends.items():
            assert end < offsets[queue_id], f"{group} goes from {offsets[queue_id]} to {end} of {topic}/{queue_id}"

        def finish(outcome: Outcome) -> None:
            if not isinstance(outcome, Stored):
                return  # this replica stopped leading, or its disk is full: then the next leader corrects them
            furthest = max(ends, key=lambda queue_id: offsets[queue_id] - ends[queue_id])
            self._log.warning(
                "offsets_beyond_end_corrected",
                consumer_group=group,
                topic=topic,
                queues=len(ends),
                queue_id=furthest,
                offset=offsets[furthest],
                end=ends[furthest],
            )

        self._offsets.reset(group, topic, ends, finish, restart=False)
