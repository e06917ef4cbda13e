"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (request codes 10, 310, 320): checks and queues messages.

The first message to an unknown topic creates the topic: the creation is replicated first, and the message waits for it.
All other checks are done here, without waiting; `mq.broker.write_path.appender` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.produce.batch import BatchSends, is_copied
from mq.broker.produce.compacted_topics import CompactedTopics
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.placement import Placement
from mq.broker.produce.retry import Retries
from mq.broker.produce.send_receiver import KnownNumbers, ReceiverSettings, SendReceiver, send_receiver
from mq.broker.produce.sent_messages import SentMessages, asks_for_more, numbers_in
from mq.broker.schedule.visible_queues import wanted_priority
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import PutTopic, encode_command
from mq.broker.state.topic_rules import auto_create, explain_missing_topic
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Outcome, Stored, Unknown
from mq.broker.write_path.properties import RECEIPT
from mq.broker.write_path.queue_tails import QueueTail
from mq.broker.write_path.send_block import SendBlock
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.message_types import PRIORITY_MARK, level_of, lowest_level, takes_priorities
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SEND_FORBIDDEN_TOPICS, NameRefused, check_topic
from mq.protocol.requests.compaction_attributes import is_compacted
from mq.protocol.requests.quota_attributes import quota_of
from mq.protocol.requests.send import SendBatchMessage, SendExt, SendMessage, SendMessageV2
from mq.protocol.wire.encoding import SendReplyTemplate
from raftlog import Begun, Ready

_WRITABLE = 2

SendRequest = SendMessage | SendMessageV2 | SendBatchMessage


class Sends(Service):
    """Checks messages that producers send, and passes them on to the appender."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        placement: Placement,
        dedup: Dedup,
        retries: Retries,
        make_receiver: Callable[
            [SentMessages, BatchSends, ReceiverSettings, KnownNumbers], SendReceiver
        ] = send_receiver,
    ) -> None:
        self._settings = context.settings
        self._uncommitted_bytes_max = context.settings.uncommitted_bytes_max
        self._metadata = context.metadata
        self._appender = context.appender
        self._tails = context.queue_tails
        self._placement = placement
        self._retries = retries
        self._dedup = dedup
        self.compacted_topics = CompactedTopics(context.metadata, context.appender)
        self._rng = context.rng
        self._wall_clock_ms = context.wall_clock_ms
        self._creations: dict[str, list[OnOutcome]] = {}
        suffix = props.encode(props.of_cluster(context.settings.cluster)).encode()
        self._messages = SentMessages(
            unique_keys=context.unique_keys, suffix=suffix, body_bytes_max=context.settings.message_bytes_max
        )
        self._batches = BatchSends(
            appender=context.appender,
            dedup=dedup,
            unique_keys=context.unique_keys,
            tag_codes=self._messages.tag_codes,
            suffix=suffix,
            body_bytes_max=context.settings.message_bytes_max,
            reply_template=SendReplyTemplate(context.store_host),
        )
        settings = ReceiverSettings(
            is_signed=context.environment.access is not None,
            broker_name=context.settings.group,
            store_host=context.store_host,
            entry_bytes_max=context.appender.entry_bytes_max,
            receive_into=context.environment.receive_into,
        )
        self._serves_here = False
        self.receiver = make_receiver(self._messages, self._batches, settings, dedup)

    def routes(self) -> Iterator[Route]:
        yield Route(SendMessage, self.handle, leader_only=True)
        yield Route(SendMessageV2, self.handle, leader_only=True)
        yield Route(SendBatchMessage, self.handle_batch, leader_only=True)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Apply new settings: whether the first message of a topic creates the topic."""
        self._settings = settings

    def resign(self) -> None:
        """Forget the topics in creation, and serve held sends by the new leader, since this replica stops leading."""
        self._creations.clear()
        self.compacted_topics.resign()
        self._messages.writable.clear()

    def topic_changed(self, topic: str) -> None:
        """Check the topic again when its next message comes, because its configuration changed."""
        self._messages.writable.pop(topic, None)

    def serve_here(self, here: bool) -> None:
        """Set whether this replica stores plain sends, or leaves them to handlers that forward them."""
        self._serves_here = here

    def check_invariants(self) -> None:
        assert self._appender.is_open or not self._serves_here, "sends are taken here, and this replica does not lead"
        orphans = self._messages.writable.keys() - self._metadata.topics.keys()
        assert not orphans, f"sends to {len(orphans)} topics are taken that do not exist, such as {min(orphans)}"
        if self._appender.is_idle:
            assert not self._creations, f"topics {sorted(self._creations)} are created, and nothing is pending"
            assert not self.compacted_topics.held_count, (
                f"{self.compacted_topics.held_count} queues hold sends, and nothing is pending"
            )

    def counters(self) -> dict[str, int]:
        return {"messages_compiled": self.receiver.compiled_messages}

    def take(self, connection: ClientConnection, chunk: bytes) -> int:
        """Queue the plain sends at the start of ``chunk``, as `handle` does; returns their bytes.

        Takes none with too much pending, or while this replica does not lead.
        """
        room = self._uncommitted_bytes_max - self._appender.pending_bytes if self._serves_here else -1
        blocks, nbytes = self.receiver.take(connection, chunk, room)
        assert not blocks or nbytes, f"{len(blocks)} blocks of {nbytes} bytes of a chunk"
        for block in blocks:
            self._appender.add(block)
        return nbytes

    def receive(self, ready: Ready) -> tuple[Ready, Begun]:
        """Receive from clients that probably sent plain sends, and queue these; see `Reactor.serve_together`."""
        room = self._uncommitted_bytes_max - self._appender.pending_bytes
        if room < 0 or not self._serves_here:
            return ready, ()
        blocks, leftovers, ready = self.receiver.receive(ready, room)
        for block in blocks:
            self._appender.add(block)
        if not leftovers:
            return ready, ()
        return ready, [(descriptor, partial(connection.serve_rest, rest)) for descriptor, connection, rest in leftovers]

    def forget(self, descriptor: int) -> None:
        """Stop receiving from the client with this descriptor, because it is closed, or must be read by its handler."""
        self.receiver.forget(descriptor)

    def handle(self, call: Call[SendRequest]) -> None:
        """Check a send and queue it for the log. The client gets the response when it is committed.

        Raises:
            RequestRefused: it was not stored, and will not be.
        """
        ext = call.request.ext
        appender = self._appender
        if appender.pending_bytes > self._uncommitted_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        text = ext.properties
        if RECEIPT in text:  # a consumer forwards a popped message: the receipt does not belong to the new message
            text = ext.properties = props.without(text, props.POP_CK)
        tails = self._messages.writable.get(ext.topic)
        is_checked_once = tails is not None
        if tails is None:
            tails = self._open_topic(call)
            if tails is None:
                return
        queue_id = ext.queue_id
        if not 0 <= queue_id < len(tails):
            queue_id = self._chosen_queue(ext, len(tails))
        if not is_checked_once and self.compacted_topics.takes(ext.topic):
            self.compacted_topics.check(call, self._batches, tails[queue_id])
            text = ext.properties
            if self.compacted_topics.hold_send(call, queue_id):
                return
        queue_id = self._by_priority(call, tails, queue_id)
        if ext.batch:
            self._batches.add(call, tails[queue_id])
            return
        if asks_for_more(ext):
            self._placement.add(call, props.decode(text), ext.topic, queue_id)
            return
        if numbers_in(ext) is not None:
            self._add_numbered(call, tails[queue_id])
            return
        appender.add(SendBlock(self._messages.build_send(call, tails[queue_id])))

    def _add_numbered(self, call: Call[SendRequest], tail: QueueTail) -> None:
        numbered_send = self._dedup.admit(call, props.decode(call.request.ext.properties))
        if numbered_send is None:
            return
        try:
            send = self._messages.build_send(numbered_send.call, tail, numbers=numbered_send.numbers)
        except RequestRefused:
            numbered_send.end()
            raise
        self._appender.add(SendBlock(send))

    def queue_of(self, call: Call[SendRequest]) -> QueueTail | None:
        """Return the queue for a message that another service stores. Raises RequestRefused.

        None if the request is already served, or will be served again when its topic is created.
        """
        ext = call.request.ext
        if self._appender.pending_bytes > self._uncommitted_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        if self.compacted_topics.takes(ext.topic):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"topic {ext.topic} is compacted: it cannot store replies"
            )
        tails = self._messages.writable.get(ext.topic) or self._open_topic(call)
        if tails is None:
            return None
        return tails[ext.queue_id if 0 <= ext.queue_id < len(tails) else self._chosen_queue(ext, len(tails))]

    def handle_batch(self, call: Call[SendBatchMessage]) -> None:
        """Check a batch of messages to one queue and queue it for the log. The client gets one response for all.

        Raises:
            RequestRefused: none of them was stored, and none will be.
        """
        call.request.ext.batch = True
        self.handle(call)

    def _chosen_queue(self, ext: SendExt, count: int) -> int:
        """Return a random queue for a message without a queue id. Raises RequestRefused if its id is too high."""
        if ext.queue_id >= 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"queue id {ext.queue_id} is illegal, {ext.topic} has {count} queues"
            )
        return self._rng.randrange(self._metadata.topics[ext.topic].write_queues)

    def _by_priority(self, call: Call[SendRequest], tails: list[QueueTail], queue_id: int) -> int:
        """Return the queue for the priority of a message, ``queue_id`` without one. Raises RequestRefused.

        In a topic for messages with priorities, one without is the least urgent. Consumers and mirrors choose the queue
        of their copies.
        """
        ext = call.request.ext
        topic, text = ext.topic, ext.properties
        if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) or (ext.batch and is_copied(text)):
            return queue_id
        has_priority = PRIORITY_MARK in text or (ext.batch and PRIORITY_MARK.encode() in call.body)
        priority: int | None = None
        if has_priority:
            priority = self._batches.priority(call, tails[0]) if ext.batch else wanted_priority(props.decode(text))
        config = self._metadata.topics[topic]
        if priority is not None:
            return level_of(priority, config.write_queues)
        if takes_priorities(config.attributes):
            return lowest_level(config.write_queues, ascending=self._settings.priority_order_asc)
        return queue_id

    def _open_topic(self, call: Call[SendRequest]) -> list[QueueTail] | None:
        """Return a topic's tails for its first message; None if the message waits until the topic is created."""
        ext = call.request.ext
        topic = ext.topic
        try:
            check_topic(topic)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if topic in SEND_FORBIDDEN_TOPICS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"sending to topic {topic} is forbidden")
        is_retry = topic.startswith(RETRY_PREFIX)
        if is_retry and self._retries.store_elsewhere(call):
            return None
        config = self._metadata.topics.get(topic)
        if config is None:
            self._create(call)
            return None
        if not config.perm & _WRITABLE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is not writable")
        if config.write_queues == 0:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} has no write queue")
        tails = self._tails.of_topic(topic)
        attributes = config.attributes
        is_special = takes_priorities(attributes) or is_compacted(attributes) or quota_of(attributes).limits_sends
        if not (is_retry or is_special):  # others are checked each time
            self._messages.writable[topic] = tails
        return tails

    def _create(self, call: Call[SendRequest]) -> None:
        ext = call.request.ext
        topic = ext.topic
        command: PutTopic | None = None
        if topic.startswith(RETRY_PREFIX):
            command = self._retries.creation(topic)
        elif self._settings.auto_create_topics:
            command = auto_create(
                self._metadata, topic, ext.default_topic, ext.default_topic_queue_nums, self._wall_clock_ms()
            )
        if command is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, explain_missing_topic(self._metadata, topic))

        size = len(call.body) + len(ext.properties)
        self._appender.pending_bytes += size

        def on_create(outcome: Outcome) -> None:
            self._appender.pending_bytes -= size
            assert self._appender.pending_bytes >= 0, f"{self._appender.pending_bytes} are pending without {size}"
            match outcome:
                case Stored() | LeadershipLost():
                    call.dispatch()
                case DiskFull(remark):
                    call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
                case Unknown():
                    call.connection.close("leadership was lost while a topic was being created")

        if (callbacks := self._creations.get(topic)) is not None:
            callbacks.append(on_create)
            return
        callbacks = self._creations[topic] = [on_create]

        def finish(outcome: Outcome) -> None:
            self._creations.pop(topic, None)
            for on_outcome in callbacks:
                on_outcome(outcome)

        self._appender.add_command(encode_command(command), finish)
