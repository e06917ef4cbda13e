"""Transactions of several messages and consumer offsets: STAGE_TRANSACTION (request code 9011).

Theory of operation. A *set* is one half message, whose body has the messages and the offsets. So it is stored, checked
back, given up, resumed and deleted as a whole, and END_TRANSACTION ends it like any other half message: the entry with
the mark has the copies of all its messages, and a command for all its offsets.

Offsets are checked when the set is staged, so that a late transaction is refused early, and again when it is committed:
in between, another transaction may have consumed the same messages. The second check decides. It and the command are in
the same turn, and every other commit of offsets follows in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mq.broker.consume.offsets import Offsets
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.schedule.visible_queues import tail_of, wanted_priority
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import Command, encode_command
from mq.broker.state.format_level import LEVEL_OF_COMPACTION, LEVEL_OF_TRANSACTION_SETS
from mq.broker.state.topic_rules import auto_create, explain_missing_topic
from mq.broker.transaction.half_messages import HALF_QUEUE_ID
from mq.broker.write_path.internal_messages import check_sent_bytes
from mq.broker.write_path.outcome import Outcome, Stored, answer_outcome
from mq.broker.write_path.pending import InternalRecord, PendingCommand
from mq.protocol import properties as props
from mq.protocol.codes import PERM_WRITE, ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.messages.message_types import lowest_level, stored_priority, takes_priorities
from mq.protocol.messages.records import COMMITTED, IPV4_HOST_BYTES, NO_HOST, RawRecord, tag_code_of
from mq.protocol.messages.transaction_sets import SetMessage, TransactionSet
from mq.protocol.names import (
    AUTO_CREATE_TEMPLATE,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    NameRefused,
    check_group,
)
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, COMPACTION, is_compacted
from mq.protocol.requests.transactions import StageTransaction, TransactionStaged

_AUTO_CREATE_QUEUES = 4
"""Queues of a topic that a transaction creates, as for a message of the SDK."""
_NOT_IN_A_SET = (props.TRANSACTION_PREPARED, props.TRANSACTION_SET, props.SEQUENCE, props.POP_CK, props.LITE_TOPIC)


class StagedSets(Service):
    """Stores sets as half messages, and builds what the commit of a set appends.

    Attributes:
        set_count: sets stored since the start of this replica.
    """

    def __init__(self, context: BrokerContext, *, places: WaitingQueues, offsets: Offsets) -> None:
        self._settings = context.settings
        self._metadata = context.metadata
        self._appender = context.appender
        self._tails = context.queue_tails
        self._places = places
        self._offsets = offsets
        self._suffix = props.encode(props.of_cluster(context.settings.cluster)).encode()
        self._wall_clock_ms = context.wall_clock_ms
        self.set_count = 0

    def routes(self) -> Iterator[Route]:
        yield Route(StageTransaction, self.handle, leader_only=True)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Apply new settings: whether the first message of a topic creates the topic."""
        self._settings = settings

    def counters(self) -> dict[str, int]:
        return {"transaction_sets_staged": self.set_count}

    # -- staging -------------------------------------------------------------------------------------------------------

    def handle(self, call: Call[StageTransaction]) -> None:
        """Request code 9011: store a set as a half message, and answer with its place. Raises RequestRefused."""
        ext = call.request.ext
        self._check_allowed(ext.producer_group)
        if self._appender.pending_bytes > self._settings.uncommitted_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        message_set = decode_body(TransactionSet.decode, call.body)
        creations = self._creations(message_set)
        self._check(message_set, len(call.body))
        self._offsets.check_consumed(message_set.offsets)
        topic, queue_id = _first_queue(message_set)
        properties = {
            props.TRANSACTION_PREPARED: "true",
            props.PRODUCER_GROUP: ext.producer_group,
            props.UNIQUE_KEY: ext.transaction_id,
            props.TRANSACTION_SET: str(len(message_set.messages)),
            props.REAL_TOPIC: topic,
            props.REAL_QUEUE_ID: str(queue_id),
        }
        encoded_properties = props.encode(properties).encode() + self._suffix
        check_sent_bytes(len(encoded_properties))

        def respond(record: Stored) -> bytes:
            self.set_count += 1
            at = TransactionStaged(half_queue_offset=record.queue_offset, half_physical_offset=record.physical_offset)
            return call.response(ext=at.fields())

        def finish(outcome: Outcome) -> None:
            answer_outcome(call, "a transaction was being staged", respond, outcome)

        half = InternalRecord(
            tail=self._tails.get(HALF_TOPIC, HALF_QUEUE_ID),
            body=call.body,
            properties=encoded_properties,
            born_timestamp_ms=ext.born_timestamp_ms,
            born_host=call.connection.host,
            on_outcome=finish,
        )
        self._appender.add_atomically([*map(PendingCommand, map(encode_command, creations)), half])

    def _check_allowed(self, group: str) -> None:
        level = self._metadata.format_level.level
        if level < LEVEL_OF_TRANSACTION_SETS:
            raise RequestRefused(
                ResponseCode.VERSION_NOT_SUPPORTED,
                f"transactions of several messages need format level {LEVEL_OF_TRANSACTION_SETS}, but the broker group "
                f"is at level {level}: upgrade all its replicas first",
            )
        if not self._settings.transactions:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "transactional messages are not allowed by this broker")
        try:
            check_group(group)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"invalid producer group: {error}") from error

    def _creations(self, message_set: TransactionSet) -> list[Command]:
        """Return the commands that create topics for their first messages. Raises RequestRefused."""
        topics = sorted({message.topic for message in message_set.messages} - self._metadata.topics.keys())
        commands: list[Command] = []
        for topic in topics:
            command = None
            if self._settings.auto_create_topics and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
                now_ms = self._wall_clock_ms()
                command = auto_create(self._metadata, topic, AUTO_CREATE_TEMPLATE, _AUTO_CREATE_QUEUES, now_ms)
            if command is None:
                raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, explain_missing_topic(self._metadata, topic))
            commands.append(command)
        return commands

    def _check(self, message_set: TransactionSet, nbytes: int) -> None:
        """Raise RequestRefused unless all messages of the set can become visible together."""
        if not message_set.messages and not message_set.offsets:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the transaction has no messages and no offsets")
        places = [(each.group, each.topic, each.queue_id) for each in message_set.offsets]
        if len(set(places)) < len(places):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "a transaction names a queue of a group twice")
        for each in message_set.offsets:
            if each.end < each.first:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"a transaction consumed from {each.first} to {each.end}: its end is before its start",
                )
            try:
                check_group(each.group)
            except NameRefused as error:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        for number, message in enumerate(message_set.messages):
            self._check_message(number, message)
            nbytes += 100 + len(message.topic) + len(self._suffix)  # a record's bytes besides its part of the body
        if nbytes > self._settings.message_bytes_max:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the messages of a transaction have {nbytes} bytes together; maximum: "
                f"{self._settings.message_bytes_max}, as for one message. Divide it",
            )

    def _check_message(self, number: int, message: SetMessage) -> None:
        topic = message.topic
        if topic in SEND_FORBIDDEN_TOPICS or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"sending to topic {topic} in a transaction is forbidden")
        config = self._metadata.topics.get(topic)
        queues = _AUTO_CREATE_QUEUES
        if config is not None:
            if not config.perm & PERM_WRITE or config.write_queues == 0:
                raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is not writable")
            queues = max(config.write_queues, config.read_queues)
            if is_compacted(config.attributes) and self._metadata.format_level.level >= LEVEL_OF_COMPACTION:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"topic {topic} has {CLEANUP_POLICY}={COMPACTION} and refuses messages of transactions: these "
                    "become visible in another order than they were sent",
                )
        if not 0 <= message.queue_id < queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"queue id {message.queue_id} is illegal, {topic} has {queues} queues"
            )
        properties = props.decode(message.properties)
        if not properties.get(props.UNIQUE_KEY):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"message {number} of a transaction has no UNIQ_KEY")
        if odd := [name for name in _NOT_IN_A_SET if name in properties]:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message {number} of a transaction has the property {odd[0]}, which is not allowed in transactions",
            )
        wanted_priority(properties)
        check_sent_bytes(len(message.properties.encode()) + len(self._suffix), number)
        self._places.place(properties, topic, message.queue_id, self._wall_clock_ms())

    # -- the commit ----------------------------------------------------------------------------------------------------

    def commit(
        self, position: PhysicalOffset, raw: RawRecord
    ) -> tuple[list[InternalRecord], bytes | None, Callable[[], None] | None]:
        """Return what the commit of the set at ``position`` appends: its messages, and the command for its offsets.

        With that command comes what to call when its outcome is known; see `Offsets.advance`. Raises RequestRefused;
        then nothing has changed.
        """
        try:
            message_set = TransactionSet.decode(raw.body)
        except BodyError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the half message cannot be read: {error}") from error
        assert message_set.messages or message_set.offsets, f"the set at {position} has no messages and no offsets"
        copies = [self._copy(position, raw, message) for message in message_set.messages]
        if not message_set.offsets:
            return copies, None, None
        return copies, *self._offsets.advance(message_set.offsets)

    def _copy(self, position: PhysicalOffset, raw: RawRecord, message: SetMessage) -> InternalRecord:
        properties = props.decode(message.properties)
        priority, queue_id = stored_priority(properties), message.queue_id
        config = self._metadata.topics.get(message.topic)
        if config is not None and config.write_queues and takes_priorities(config.attributes):
            queue_id = lowest_level(config.write_queues, ascending=self._settings.priority_order_asc)
        tail = tail_of(message.topic, queue_id, self._metadata, self._tails, since=position, priority=priority)
        if tail is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {message.topic} of the transaction no longer exists"
            )
        tail, properties = self._places.place(properties, message.topic, tail.queue_id, self._wall_clock_ms())
        encoded_properties = props.fit(properties, self._suffix)
        return InternalRecord(
            tail=tail,
            body=message.body,
            properties=encoded_properties,
            tag_code=tag_code_of(encoded_properties) if tail.turn_ms is None else 0,
            flag=message.flag,
            sys_flag=COMMITTED,
            born_timestamp_ms=raw.born_timestamp_ms,
            born_host=raw.born_host if len(raw.born_host) == IPV4_HOST_BYTES else NO_HOST,
            prepared_offset=position,
        )


def _first_queue(message_set: TransactionSet) -> tuple[str, int]:
    """Return the queue that the half message and its check-backs name for the whole set."""
    assert message_set.messages or message_set.offsets, "a set without messages and offsets"
    first = message_set.messages[0] if message_set.messages else message_set.offsets[0]
    return first.topic, first.queue_id
