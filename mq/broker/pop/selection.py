"""Selects the messages of a pop or a peek: in which order it examines queues, and how much it takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from mq.broker.consume.long_polling import QueueKey
from mq.broker.context import BrokerContext
from mq.broker.net.refusals import RequestRefused
from mq.broker.pop.priority_order import PopPlan, PriorityOrder
from mq.broker.pop.queue_cursor import PopBatch, PopQueues, PopRequest, RecordsOnDisk
from mq.protocol.codes import PERM_READ, ResponseCode
from mq.protocol.names import NameRefused, check_group, pop_retry_topic

MESSAGES_MAX = 32
LOADS_MAX = 3
"""A pop or peek for which records were loaded so often reads them itself: each time, other pops took those that were
loaded.
"""

_RETRY_FIRST = 0.2
"""The fraction of pops that read the retry topic first, so that a busy topic does not starve it."""
_QUEUES_MAX = 32
_ENTRIES_MAX = 800
"""Limit on queues, and on entries of a queue, examined in one step. If none of them matched, the pop continues behind
them.
"""


class PopSelection:
    """Selects messages for a pop from queues of a topic, and from the retry topic of the group.

    Args:
        queues: takes messages of one queue.

    Attributes:
        priorities: the order of queues in topics for messages with priorities.
        bytes_max: of the messages that one pop gets; the first one may be larger.
    """

    def __init__(self, context: BrokerContext, *, queues: PopQueues) -> None:
        self._metadata = context.metadata
        self._queues = queues
        self._rng = context.rng
        self.bytes_max = context.settings.pull_bytes_max
        self.priorities = PriorityOrder(context)

    def check(self, group: str, topic: str, queue_id: int) -> None:
        """Raise RequestRefused unless the queue exists and the group may pop from it."""
        try:
            check_group(group)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        config = self._metadata.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic} does not exist")
        if not config.perm & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is not readable")
        if (group, topic) in self._metadata.forbidden:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] is forbidden for topic[{topic}]"
            )
        if queue_id >= config.read_queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue id {queue_id} is illegal, {topic} has {config.read_queues} read queues",
            )
        retry_topic = pop_retry_topic(group, topic)
        if not self._metadata.has_room_for_topic(retry_topic):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the topic {retry_topic} cannot be created: the broker has its maximum number of topics",
            )
        for name in (topic, retry_topic):
            if not self._metadata.has_room_for_offsets(group, name):
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no room for offsets of {group} in {name}")

    def check_count(self, count: int) -> None:
        """Raise RequestRefused unless a client may ask for this number of messages."""
        if not 1 <= count <= MESSAGES_MAX:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"maxMsgNums is {count}; allowed: 1 to {MESSAGES_MAX}")

    def take(
        self,
        pop_request: PopRequest,
        queue_id: int,
        count_max: int,
        *,
        may_wait_for_disk: bool,
        is_peek: bool = False,
    ) -> list[PopBatch]:
        """Return messages of one queue, or of any if ``queue_id`` is negative. Only the first may wait for the disk.

        Raises RecordsOnDisk unless it may, or takes others, and RequestRefused, SegmentError, StoreError.
        """
        if queue_id >= 0 or not self.priorities.applies(pop_request):
            candidates = ((*key, count_max) for key in self._candidates(pop_request, queue_id))
            batches = self._take(pop_request, candidates, count_max, may_wait_for_disk=may_wait_for_disk)
            if queue_id < 0 and not is_peek:
                self.priorities.count_unplanned(pop_request)
            return batches
        plan = self.priorities.plan(pop_request, self._in_random_order(pop_request, queue_id), count_max)
        batches = self._take(
            pop_request, _planned_queues(plan, count_max), count_max, may_wait_for_disk=may_wait_for_disk
        )
        order = list(plan.levels)
        batches.sort(key=lambda each: order.index(each.key[2]))
        if not is_peek:
            self.priorities.record_pop(pop_request, plan, batches)
        return batches

    def _take(
        self,
        pop_request: PopRequest,
        candidates: Iterator[tuple[str, int, int]],
        count_max: int,
        *,
        may_wait_for_disk: bool,
    ) -> list[PopBatch]:
        """Return messages of these queues. The third value of each is the most that is taken from it."""
        batches: list[PopBatch] = []
        bytes_left = self.bytes_max
        source = ""
        entries_left = _ENTRIES_MAX
        for topic, number, limit in candidates:
            if source not in ("", topic):
                break  # clients of the first 5.x releases confuse queues with equal numbers in one answer
            try:
                one = self._queues.take(
                    pop_request,
                    topic,
                    number,
                    min(count_max, limit),
                    bytes_left,
                    may_wait_for_disk=may_wait_for_disk and not batches,
                )
            except RecordsOnDisk:
                if batches:
                    break
                raise
            if one is not None:
                batches.append(one)
                source = topic if one.messages else source
                count_max -= one.messages
                assert count_max >= 0, f"{topic}/{number}: {-count_max} messages more than were wanted are popped"
                bytes_left -= one.nbytes
                entries_left -= one.command.next_offset - max(one.command.before, 0)
                if count_max <= 0 or bytes_left <= 0 or entries_left <= 0 or len(batches) == _QUEUES_MAX:
                    break
        return batches

    def _candidates(self, pop_request: PopRequest, queue_id: int) -> Iterator[QueueKey]:
        """Yield the queues to examine, first the one whose records were loaded."""
        first = None if pop_request.load_start is None else pop_request.load_start[:2]
        if first is not None:
            yield first
        for key in self._in_random_order(pop_request, queue_id):
            if key != first:
                yield key

    def _in_random_order(self, pop_request: PopRequest, queue_id: int) -> Iterator[QueueKey]:
        unread, group, retry_topic = self._queues.unread, pop_request.group, pop_request.retry_topic
        retry_first = self._rng.random() < _RETRY_FIRST
        retry = self._metadata.topics.get(retry_topic)
        retry_queues = 0
        if retry is not None and retry_topic != pop_request.topic and pop_request.attempt is None:
            retry_queues = retry.read_queues
        if retry_first:
            for number in unread(group, retry_topic, range(retry_queues), at_end=False):
                yield retry_topic, number
        if queue_id >= 0:
            yield pop_request.topic, queue_id
        elif queues := self._metadata.topics[pop_request.topic].read_queues:
            first = self._rng.randrange(queues)
            at_end = pop_request.at_end and pop_request.topic != retry_topic
            for number in unread(group, pop_request.topic, chain(range(first, queues), range(first)), at_end=at_end):
                yield pop_request.topic, number
        if not retry_first:
            for number in unread(group, retry_topic, range(retry_queues), at_end=False):
                yield retry_topic, number


def _planned_queues(plan: PopPlan, count_max: int) -> Iterator[tuple[str, int, int]]:
    """Yield the queues of a plan, each with the most messages to take; first the messages owed to a lower level."""
    assert not plan.owed or plan.owed_level in plan.levels, f"level {plan.owed_level} is owed, of {[*plan.levels]}"
    owed = plan.levels[plan.owed_level] if plan.owed else []
    for key in owed[:1]:
        yield *key, plan.owed
    for queues in plan.levels.values():
        for key in queues:
            if key not in owed[:1]:
                yield *key, count_max
