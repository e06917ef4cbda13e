"""Request code 9009: first and last offsets of all queues of many topics, in one response.

Streams send it many times a second. It reads no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.protocol.codes import PERM_READ, ResponseCode
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.bulk import AskTopicEnds, TopicEndsReply
from mq.protocol.topic_ends import TopicEnds, decode_topics, encode_ends

_PLANNED_AT_ONCE: Final = 16
"""Topics between two checks of the clock."""
_NAMED_MAX: Final = 10
"""Maximum number of topics named in a remark."""


class TopicEndQueries(Service):
    """Answers queries for the first and last offsets of the queues of many topics."""

    def __init__(self, context: BrokerContext) -> None:
        self._queues_max = context.limits.bulk.ends_queues_max
        self._replica = context.replica
        self._beginning = context.beginning
        self._metadata = context.metadata
        self._store = context.store
        self._read = context.reads.read
        self._gradually = context.slow_responses

    def routes(self) -> Iterator[Route]:
        yield Route(AskTopicEnds, self.handle)

    def handle(self, call: Call[AskTopicEnds]) -> None:
        """Request code 9009: return the first and last offsets of the topics' queues. Raises RequestRefused."""
        topics = decode_body(decode_topics, call.body)

        def respond() -> ResponseSteps:
            return self._answer(call, topics)

        if call.request.ext.current:
            self._gradually.when_current(self._read, call, respond)
        else:
            self._gradually.work(call, respond())

    def _answer(self, call: Call[AskTopicEnds], topics: list[str]) -> ResponseSteps:
        configs = self._metadata.topics
        if unknown := [topic for topic in topics if topic not in configs]:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"no such topic: {_format(unknown)}")
        if unreadable := [topic for topic in topics if not configs[topic].perm & PERM_READ]:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"not readable: {_format(unreadable)}")
        ends: list[TopicEnds] = []
        budget = self._queues_max
        for topic in topics:
            config = configs.get(topic)
            if config is None:  # deleted while the answer was built
                raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"no such topic: {_format([topic])}")
            budget -= config.read_queues
            if budget < 0 and ends:
                break
            ends.append(self._ends(topic, config.read_queues))
            if len(ends) % _PLANNED_AT_ONCE == 0:
                yield
        role = "leader" if self._replica.is_leader else "follower"
        return call.response(ext=TopicEndsReply(role=role).fields(), body=encode_ends(ends))

    def _ends(self, topic: str, queues: int) -> TopicEnds:
        get = self._store.get
        firsts: list[QueueOffset] = []
        ends: list[QueueOffset] = []
        for queue_id in range(queues):
            queue = get(topic, queue_id)
            first = FIRST_OFFSET if queue is None else queue.min_offset
            self._beginning.check(first)
            firsts.append(first)
            # A queue that was just dropped has no end.
            ends.append(FIRST_OFFSET if queue is None else max(first, queue.max_offset))
        return TopicEnds(self._metadata.topic_identity(topic), firsts, ends)


def _format(topics: list[str]) -> str:
    more = len(topics) - _NAMED_MAX
    return ", ".join(topic[:127] for topic in islice(topics, _NAMED_MAX)) + (f" and {more} more" if more > 0 else "")
