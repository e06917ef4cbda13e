"""Stores failed messages for redelivery: CONSUMER_SEND_MSG_BACK (request code 36), and sends to retry topics.

Each is redelivered through the group's retry topic after a delay that grows with the number of attempts. After the last
attempt it is stored in the group's dead letter topic, which is consumed only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct

from mq.broker.consume.fencing import Fencing
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.pop.retry_topics import PopRetryTopics
from mq.broker.produce.batch import is_copied
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.state.commands import GroupConfig, PutGroup, PutTopic, TopicConfig, encode_command
from mq.broker.write_path.outcome import OnOutcome, Outcome, Stored, answer_outcome
from mq.broker.write_path.pending import PendingCommand, PendingGroup, SendRequest
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.codes import PERM_WRITE, ResponseCode
from mq.protocol.messages.records import FIXED, MAGIC_V1, MAGIC_V2, RecordError, StoredMessage, decode_record
from mq.protocol.messages.redelivery_properties import dead_letter, with_origin
from mq.protocol.names import RETRY_PREFIX, NameRefused, check_group, dead_letter_topic, retry_topic
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.send import ConsumerSendMsgBack
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.segment import EntryGone

_PLACE = Struct(">ii20xq")
"""Size, magic number and physical offset in the first 36 bytes of a record."""

_REQUEUED = f"{props.REQUEUED_BY}{props.NAME_END}"
_FIRST_LEVEL = 3
"""Delay level before the first redelivery; each further one waits one level longer."""


class Retries(Service):
    """Stores messages that consumers send back, for redelivery or as dead letters.

    Attributes:
        wake_pops: called with a group and a topic that has a number of messages more for pops of it.
    """

    def __init__(self, context: BrokerContext, *, places: WaitingQueues, fencing: Fencing) -> None:
        self._broker_name = context.settings.group
        self._uncommitted_bytes_max = context.settings.uncommitted_bytes_max
        self._figures = context.traffic
        self._metadata = context.metadata
        self._store = context.store
        self._appender = context.appender
        self._tails = context.queue_tails
        self._log = context.records
        self._internal_messages = context.internal_messages
        self._places = places
        self._pop_retry_topics = PopRetryTopics(context)
        self._fencing = fencing
        self._record_bytes_max = context.settings.segment_bytes
        self._rng = context.rng
        self._wall_clock_ms = context.wall_clock_ms
        self.wake_pops: Callable[[str, str, int], None] = lambda group, topic, count: None

    def routes(self) -> Iterator[Route]:
        yield Route(ConsumerSendMsgBack, self.handle_send_back, leader_only=True)

    def handle_send_back(self, call: Call[ConsumerSendMsgBack]) -> bytes | None:
        """Request code 36: store a message for redelivery, or as a dead letter. Raises RequestRefused."""
        ext = call.request.ext
        if self._appender.pending_bytes > self._uncommitted_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        group: PendingGroup = []
        config = self._metadata.groups.get(ext.group)
        if config is None:
            config = self._new_group(ext.group)
            group.append(self._command(PutGroup(config=config, timestamp_ms=self._wall_clock_ms(), unless_there=True)))
        if config.retry_queues <= 0 and ext.delay_level >= 0:
            return call.response()
        message = self._message_at(ext.physical_offset)
        if (ext.group, message.topic) in self._metadata.queue_locks and self._fencing.fences(
            call.connection, ext.group, message.topic, message.queue_id, only_known=True
        ):
            raise _fenced_error(ext.group, f"queue {message.queue_id} of {message.topic}")

        limit = config.retry_times_max if ext.max_reconsume_times is None else ext.max_reconsume_times
        dead = message.reconsume_times >= limit or ext.delay_level < 0
        on_outcome = partial(
            answer_outcome, call, "a message was being stored", self._sent_back(call, message, ext.group)
        )
        if dead:
            attempts = ext.attempts or message.reconsume_times + 1
            letter = self._dead_letter(
                message,
                ext.group,
                reason=_given_up(attempts),
                attempts=attempts,
                failure=ext.failure,
                on_outcome=on_outcome,
            )
            self._appender.add_atomically([*group, *letter])
            return None
        topic = retry_topic(ext.group)
        commands, queues = self._topic(topic, config.retry_queues)
        properties = with_origin(message, self._broker_name)
        if ext.failure:
            properties[props.FAILURE] = props.safe_value(ext.failure)
        assert message.reconsume_times < limit, f"delivery {message.reconsume_times} is repeated; maximum: {limit}"
        level = max(ext.delay_level or _FIRST_LEVEL + message.reconsume_times, 1)
        queue_id = self._rng.randrange(queues)
        tail, properties = self._places.at_level(properties, topic, queue_id, level, self._wall_clock_ms())
        record = copy_record(message, tail, props.fit(properties), attempts=1, on_outcome=on_outcome)
        self._appender.add_atomically([*group, *commands, record])
        return None

    def _sent_back(
        self, call: Call[ConsumerSendMsgBack], message: StoredMessage, group: str
    ) -> Callable[[Stored], bytes]:
        topic = message.properties.get(props.RETRY_TOPIC, message.topic)

        def respond(_: Stored) -> bytes:
            self._figures.count_sent_back(topic, group)
            return call.response()

        return respond

    def dead_letter_of(
        self, physical_offset: PhysicalOffset, group: str, *, reason: str, given_up_by: str
    ) -> PendingGroup:
        """Return a group's dead letter for the message at a position, and the command that creates its topic.

        Raises RequestRefused if there is no message.
        """
        message = self._message_at(physical_offset)
        attempts = message.reconsume_times + 1
        return self._dead_letter(message, group, reason=reason, attempts=attempts, given_up_by=given_up_by)

    def _dead_letter(
        self,
        message: StoredMessage,
        group: str,
        *,
        reason: str,
        attempts: int,
        failure: str | None = None,
        given_up_by: str | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> PendingGroup:
        topic = dead_letter_topic(group)
        commands, _ = self._topic(topic, 1)
        own_properties = with_origin(message, self._broker_name)
        pop_time_ms = self._metadata.pops.get((group, message.topic, message.queue_id)).popped_at(message.queue_offset)
        if pop_time_ms is not None:
            own_properties.setdefault(props.FIRST_POP_TIME, str(pop_time_ms))
        properties = dead_letter(
            own_properties,
            group=group,
            reason=reason,
            attempts=attempts,
            now_ms=self._wall_clock_ms(),
            failure=failure,
            given_up_by=given_up_by,
        )
        tail = self._tails.get(topic, 0)
        return [*commands, copy_record(message, tail, props.fit(properties), attempts=1, on_outcome=on_outcome)]

    def _new_group(self, name: str) -> GroupConfig:
        """Return the configuration for a new group. Raises RequestRefused if it cannot be created."""
        try:
            check_group(name)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error
        if not self._metadata.has_room_for_group(name):
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group {name} does not exist and cannot be created: the broker has its maximum of "
                f"{len(self._metadata.groups)} groups",
            )
        return GroupConfig(name=name)

    def _topic(self, name: str, queues: int) -> tuple[PendingGroup, int]:
        """A command to create the topic if it is missing, and the number of its writable queues. Raises
        RequestRefused.
        """
        config = self._metadata.topics.get(name)
        if config is None:
            if not self._metadata.has_room_for_topic(name):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"topic {name} does not exist and cannot be created: the broker has its maximum of "
                    f"{len(self._metadata.topics)} topics",
                )
            config = TopicConfig(name=name, read_queues=queues, write_queues=queues)
            return [
                self._command(PutTopic(config=config, timestamp_ms=self._wall_clock_ms(), unless_there=True))
            ], queues
        if not config.perm & PERM_WRITE or config.write_queues == 0:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {name} is not writable")
        writable = min(queues, config.write_queues)
        assert writable > 0, f"{queues} of {config.write_queues} queues of {name} are to be written to"
        return [], writable

    @staticmethod
    def _command(command: PutTopic | PutGroup) -> PendingCommand:
        return PendingCommand(encode_command(command))

    def _message_at(self, physical_offset: PhysicalOffset) -> StoredMessage:
        """Return the message that begins at a physical offset. Raises RequestRefused without one."""
        refusal = RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed, no message begins at {physical_offset}"
        )
        log = self._log
        if not log.begin_pos <= physical_offset <= log.end_pos - FIXED:
            raise refusal
        try:
            size, magic, *_, stored_offset = _PLACE.unpack_from(log.pread(physical_offset, FIXED))
            if magic not in (MAGIC_V1, MAGIC_V2) or stored_offset != physical_offset:
                raise refusal
            if not FIXED <= size <= min(self._record_bytes_max, log.end_pos - physical_offset):
                raise refusal
            message = decode_record(memoryview(log.pread(physical_offset, size)))
        except (RecordError, EntryGone) as error:
            raise refusal from error
        # A body may contain bytes that look like a record; and a record may be internal or uncommitted.
        queue = self._store.get(message.topic, message.queue_id)
        entry = b"" if queue is None else queue.read(message.queue_offset, 1)
        if len(entry) != QUEUE_ENTRY.size or QUEUE_ENTRY.unpack(entry)[:2] != (physical_offset, size):
            raise refusal
        return message

    def store_elsewhere(self, call: Call[SendRequest]) -> bool:
        """Whether a message to a retry topic was stored elsewhere: as a dead letter if its attempts are used up, or for
        pops of the group if it is a requeued dead letter that the group had popped.

        Otherwise the caller stores it like any other message. Raises RequestRefused.
        """
        ext = call.request.ext
        name = ext.topic.removeprefix(RETRY_PREFIX)
        if ext.batch and is_copied(ext.properties):
            return False
        if ext.batch:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"a batch may not go to the retry topic {ext.topic}")
        config = self._metadata.groups.get(name)
        if config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group {name} does not exist")
        properties = props.decode(ext.properties)
        origin = properties.get(props.RETRY_TOPIC, "")
        if (name, origin) in self._metadata.queue_locks and self._fencing.fences_topic(call.connection, name, origin):
            raise _fenced_error(name, f"any queue of {origin}")
        limit = config.retry_times_max if ext.max_reconsume_times is None else ext.max_reconsume_times
        if ext.reconsume_times < limit:
            # Who requeued it may be empty, and then it is not among the decoded properties.
            if _REQUEUED not in ext.properties or props.FIRST_POP_TIME not in properties or not origin:
                return False
            self._requeue_to_pops(call, name, origin, properties)
            return True
        topic = dead_letter_topic(name)
        commands, _ = self._topic(topic, 1)
        letter = dead_letter(
            properties,
            group=name,
            reason=_given_up(ext.reconsume_times),
            attempts=ext.reconsume_times,
            now_ms=self._wall_clock_ms(),
        )
        self._internal_messages.add(
            call, tail=self._tails.get(topic, 0), properties=letter, queue_id=0, before=commands
        )
        return True

    def _requeue_to_pops(self, call: Call[SendRequest], group: str, origin: str, properties: dict[str, str]) -> None:
        """Store a requeued dead letter for the pops of a group: they do not read the retry topic of the group.

        Raises RequestRefused.
        """
        tail = self._pop_retry_topics.tail(group, origin, origin, properties)
        if not self._metadata.has_room_for_topic(tail.topic):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the topic {tail.topic} cannot be created: the broker has its maximum number of topics",
            )
        now_ms = self._wall_clock_ms()
        put = self._pop_retry_topics.put(tail, origin, now_ms)
        if put is None:  # changes nothing; pops are woken when it is applied
            put = PutTopic(config=self._metadata.topics[tail.topic], timestamp_ms=now_ms, unless_there=True)

        def finish(outcome: Outcome) -> None:
            if isinstance(outcome, Stored):
                self.wake_pops(group, origin, 1)

        before: PendingGroup = [PendingCommand(encode_command(put), finish)]
        self._internal_messages.add(call, tail=tail, properties=properties, queue_id=tail.queue_id, before=before)

    def creation(self, topic: str) -> PutTopic | None:
        """Return the command that creates a missing retry topic of a group; None if there are too many topics."""
        if not self._metadata.has_room_for_topic(topic):
            return None
        return PutTopic(
            config=TopicConfig(name=topic, read_queues=1, write_queues=1),
            timestamp_ms=self._wall_clock_ms(),
            unless_there=True,
        )


def _fenced_error(group: str, what: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.NO_PERMISSION, f"another client of group {group} has locked {what}, and gets the message itself"
    )


def _given_up(attempts: int) -> str:
    return f"given up after {attempts} {'delivery' if attempts == 1 else 'deliveries'}"
