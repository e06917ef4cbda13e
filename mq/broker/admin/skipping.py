"""Request code 9010 (SKIP_MESSAGE): moves a consumer group past the message at its offset.

The message becomes a dead letter of the group, with the name of who skipped it, in one log entry with the group's new
offset: it is skipped if and only if the record of that exists. Running members are moved at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.admin.group_offsets import GroupOffsets
from mq.broker.consume.offsets import Offsets
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.produce.retry import Retries
from mq.broker.write_path.outcome import Outcome, Stored, answer_outcome
from mq.protocol.codes import ResponseCode
from mq.protocol.names import dead_letter_topic
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.properties import safe_value
from mq.protocol.requests.group_progress import MessageSkipped, SkipMessage
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY

_REASON = "skipped by an operator"


class Skips(Service):
    """Moves consumer groups past a message, and stores that message as a dead letter.

    Attributes:
        skip_count: messages skipped since the start of this replica.
    """

    def __init__(
        self, context: BrokerContext, *, retries: Retries, group_offsets: GroupOffsets, offsets: Offsets
    ) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._appender = context.appender
        self._retries = retries
        self._group_offsets = group_offsets
        self._newest = offsets.newest
        self._log = context.log
        self._under_way: set[tuple[str, str, int]] = set()
        self.skip_count = 0

    def routes(self) -> Iterator[Route]:
        yield Route(SkipMessage, self.handle, leader_only=True)

    def resign(self) -> None:
        """Forget the skips in flight, since this replica stops leading."""
        self._under_way = set()

    def check_invariants(self) -> None:
        if self._appender.is_idle:
            assert not self._under_way, f"messages of {sorted(self._under_way)} are skipped, and nothing is pending"

    def handle(self, call: Call[SkipMessage]) -> None:
        """Request code 9010: skip a message; respond once dead letter and offset are stored. Raises RequestRefused."""
        ext = call.request.ext
        self._appender.check_room()
        key = (ext.group, ext.topic, ext.queue_id)
        if key in self._under_way:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"a message of queue {ext.queue_id} is being skipped")
        queue = self._queue(ext.group, ext.topic, ext.queue_id)
        # Its members continue at the first message if the ones before are gone.
        stands_at = max(self._newest(*key), queue.min_offset)
        if ext.offset != stands_at:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"group {ext.group} stands at offset {stands_at} in queue {ext.queue_id} of {ext.topic}, not at "
                f"{ext.offset}; a group can only skip the message at its offset",
            )
        if not queue.min_offset <= ext.offset < queue.max_offset:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"there is no message {ext.offset} in queue {ext.queue_id} of {ext.topic}: it has {queue.min_offset} "
                f"to {queue.max_offset - 1}",
            )
        position = PhysicalOffset(QUEUE_ENTRY.unpack(queue.read(ext.offset, 1))[0])
        who = f"{safe_value(ext.operator) or 'an unnamed operator'} from {call.connection.peer}"
        letter = self._retries.dead_letter_of(position, ext.group, reason=_REASON, given_up_by=who)
        assert letter, f"message {ext.offset} of {ext.topic}/{ext.queue_id} would be skipped without a dead letter"
        under_way = self._under_way
        under_way.add(key)

        def respond(_: Stored) -> bytes:
            self.skip_count += 1
            self._log.warning(
                "message_skipped",
                consumer_group=ext.group,
                topic=ext.topic,
                queue_id=ext.queue_id,
                offset=ext.offset,
                operator=who,
            )
            answer = MessageSkipped(next_offset=ext.offset + 1, dead_letter_topic=dead_letter_topic(ext.group))
            return call.response(ext=answer.fields())

        def finish(outcome: Outcome) -> None:
            under_way.discard(key)
            answer_outcome(call, "a message was being skipped", respond, outcome)

        self._group_offsets.move(ext.group, ext.topic, ext.queue_id, ext.offset + 1, finish, before=letter)

    def _queue(self, group: str, topic: str, queue_id: int) -> ConsumeQueue:
        if group not in self._metadata.groups:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {group}")
        config = self._metadata.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic}")
        queue = self._store.get(topic, queue_id) if 0 <= queue_id < config.read_queues else None
        if queue is None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"queue {queue_id} of {topic} has no messages")
        return queue
