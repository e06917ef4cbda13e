"""Waiting pops, and the choice of those to serve when messages arrive."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sized
from typing import Protocol

from mq.broker.consume.long_polling import LongPolling, QueueKey
from mq.broker.context import BrokerContext
from mq.broker.pop.queue_cursor import PopQueues
from mq.broker.pop.reply import HeldPop
from mq.protocol.names import is_lite_queue
from mq.protocol.numbers import FIRST_OFFSET
from mq.protocol.requests.pop import Notification, PopMessage
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

ANY_QUEUE = -1
"""The queue id of a pop that waits for any queue of its topic."""


class WatchedLite(Sized, Container[QueueKey], Protocol):
    """The queues of lite topics that have a subscriber."""


class WaitingPops:
    """Holds pops by the queue that they wait for, or by `ANY_QUEUE` of a topic.

    Args:
        pulls_waiting: the queues that pulls wait for: the store watches these as well.
    """

    def __init__(self, context: BrokerContext, *, queues: PopQueues, pulls_waiting: Container[QueueKey]) -> None:
        self._metadata, self._store = context.metadata, context.store
        self._queues = queues
        self._pulls_waiting = pulls_waiting
        self.polling: LongPolling[HeldPop] = LongPolling(
            held_max=context.settings.long_polls_max, held_bytes_max=context.settings.long_poll_bytes_max
        )
        self._watch = _WatchedQueues(pulls_waiting, self.polling.queue_keys, frozenset())

    def hold(self, pop: HeldPop) -> bool:
        """Hold a pop until messages arrive or its deadline passes; returns False if too many are held already."""
        ext = pop.call.request.ext
        key = ext.topic, max(ext.queue_id, ANY_QUEUE)
        rivals = ext.consumer_group, isinstance(pop.call.request, Notification)
        if not self.polling.hold(key, FIRST_OFFSET, pop.deadline, pop, pop.call.connection, pop.text_bytes, rivals):
            return False
        pulls = pop.call.connection.held_pulls
        assert pulls >= 0, f"{pulls} requests of a client are held"
        pop.call.connection.held_pulls = pulls + 1
        self.watch()
        return True

    def count(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many pops of a group wait for a queue, or for any queue if ``queue_id`` is negative."""
        pops = self.polling.waiting_for((topic, max(queue_id, ANY_QUEUE)))
        return sum(pop.call.request.ext.consumer_group == group for pop in pops)

    def wake(self, topic: str, queue_id: int, entries: bytes | bytearray) -> Iterator[HeldPop]:
        """Remove and yield pops that wait for new messages of a queue. The caller serves each before the next.

        ``entries`` are consume queue entries, 20 bytes each.
        """
        if not len(self.polling):
            return
        assert len(entries) % QUEUE_ENTRY_BYTES == 0, f"{len(entries)} bytes of queue entries of {topic}"
        codes = {code for _, _, code in QUEUE_ENTRY.iter_unpack(entries)}
        count = len(entries) // QUEUE_ENTRY_BYTES
        left_of: dict[str, int] = {}

        def matches(pop: HeldPop) -> bool | None:
            if not any(map(pop.matches, codes)):
                return False
            if isinstance(pop.call.request, Notification) or pop.call.connection.closed:
                return True
            group = pop.call.request.ext.consumer_group
            count_left = left_of.get(group)
            if count_left is None:  # pops may have taken some of them already, in the round that stored them
                count_left = min(count, self._queues.count_unpopped(group, topic, queue_id))
            left_of[group] = count_left - 1
            return True if count_left > 0 else None

        for key in ((topic, queue_id), (topic, ANY_QUEUE)):
            yield from self.polling.take_matching(key, matches)

    def take_for_group(self, group: str, topic: str, count: int) -> Iterator[HeldPop]:
        """Remove and yield waiting pops of a group, for which ``count`` messages of a topic are visible again."""
        assert count > 0, f"group {group} is woken for {count} messages of {topic}"
        if not len(self.polling):
            return
        count_left = count

        def matches(pop: HeldPop) -> bool | None:
            nonlocal count_left
            if pop.call.request.ext.consumer_group != group or count_left <= 0:
                return None
            count_left -= isinstance(pop.call.request, PopMessage) and not pop.call.connection.closed
            return True

        config = self._metadata.topics.get(topic)
        for queue_id in range(ANY_QUEUE, 0 if config is None else config.read_queues):
            if count_left and (topic, queue_id) in self.polling.queue_keys:
                yield from self.polling.take_matching((topic, queue_id), matches)

    def watch(self) -> None:
        """Tell the store which queues to watch for new messages: those that pops or pulls wait for."""
        self._store.watched = self._watch if len(self.polling) or self._watch.lite else self._pulls_waiting

    def watch_lite(self, lite: WatchedLite) -> None:
        """Watch these queues of lite topics for new messages, too."""
        assert not self._watch.lite, f"{len(self._watch.lite)} queues of lite topics are watched already"
        self._watch = _WatchedQueues(self._pulls_waiting, self.polling.queue_keys, lite)
        self.watch()


class _WatchedQueues:
    """The queues that pops wait for, and the queues of subscribed lite topics."""

    def __init__(self, pulls: Container[QueueKey], pops: Container[QueueKey], lite: WatchedLite) -> None:
        self._pulls = pulls
        self._pops = pops
        self.lite = lite

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple), key
        if is_lite_queue(key[0]):
            return key in self.lite
        return key in self._pulls or key in self._pops or (key[0], ANY_QUEUE) in self._pops
