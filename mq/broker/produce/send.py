"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (request codes 10, 310, 320): validation, then the next round.

The first message to an unknown topic creates the topic: the creation is replicated first, and the message waits for it.
All other checks are done here, without waiting; `mq.broker.write_path.appender` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection, SendKeys
from mq.broker.net.errors import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.produce.batch import BatchSends
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.placement import Placement
from mq.broker.produce.retry import Retries
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import PutTopic, encode_command
from mq.broker.state.topic_rules import auto_create
from mq.broker.write_path.entry_builder import CLIENT_FLAGS
from mq.broker.write_path.internal_messages import check_sent_bytes
from mq.broker.write_path.outcome import LeadershipLost, OnOutcome, Outcome, Refused, Stored, Unknown
from mq.broker.write_path.properties import RECEIPT, TAGS, UNIQUE_KEY, VALUE_END, TagCodes
from mq.broker.write_path.queue_offsets import NextOffset
from mq.compiled import IS_COMPILED, PlainSends, ReadySenders
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import SendBatchMessage, SendExt, SendMessage, SendMessageV2, SendReplyTemplate
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SEND_FORBIDDEN_TOPICS, NameRefused, check_topic
from mq.protocol.records import IPV4_HOST_BYTES, MAGIC_V1, tag_code_of
from raftlog import Begun, Ready

_WRITABLE = 2

SendRequest = SendMessage | SendMessageV2 | SendBatchMessage


class Sends(Service):
    """The send handler of a broker."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        special: Placement,
        repeats: Dedup,
        retries: Retries,
        producing: dict[int, ClientConnection],
    ) -> None:
        self._settings = context.settings
        self._body_bytes_max = context.settings.message_bytes_max
        self._pending_bytes_max = context.settings.pending_bytes_max
        self._metadata = context.metadata
        self._appender = context.appender
        self._tails = context.queue_offsets
        # Tails by topic, for topics that exist and are writable.
        self._writable: dict[str, list[NextOffset]] = {}
        self._unique_keys = context.unique_keys
        self._special = special
        self._retries = retries
        self._rng = context.rng
        self._wall_clock_ms = context.wall_clock_ms
        self._creating: dict[str, list[OnOutcome]] = {}
        self._tag_codes = TagCodes()
        self._suffix = props.encode(props.of_cluster(context.settings.cluster)).encode()
        self._batches = BatchSends(
            appender=context.appender,
            repeats=repeats,
            unique_keys=context.unique_keys,
            tag_codes=self._tag_codes,
            suffix=self._suffix,
            body_bytes_max=context.settings.message_bytes_max,
            reply_template=SendReplyTemplate(context.store_host),
        )
        self._plain = self._plain_sends(context)
        self._ready_senders: ReadySenders | None = None
        if self._plain is not None:
            is_signed = context.environment.access is not None
            self._ready_senders = ReadySenders(self._plain, producing, is_signed=is_signed)

    def routes(self) -> Iterator[Route]:
        """The requests that this service handles; see `Service`."""
        yield Route(SendMessage, self.handle, leader_only=True)
        yield Route(SendMessageV2, self.handle, leader_only=True)
        yield Route(SendBatchMessage, self.handle_batch, leader_only=True)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Apply new settings: whether the first message creates a topic may have changed."""
        self._settings = settings

    def resign(self) -> None:
        """Forget topics in creation: this replica does not lead any more, and they may never be created."""
        self._creating.clear()
        self._writable.clear()

    def topic_changed(self, topic: str) -> None:
        """Check the topic again with its next message."""
        self._writable.pop(topic, None)

    def take_plain(self, connection: ClientConnection, chunk: bytes, key_of: SendKeys | None = None) -> int:
        """Queue the plain sends at the start of ``chunk``, as `handle` does; returns how many bytes they take.

        Stops at a request that is not signed with its key of ``key_of``; without ``key_of``, none has to be signed.
        Takes none without the compiled module, or with too much pending.
        """
        plain, appender, at = self._plain, self._appender, 0
        if plain is None:
            return 0
        while (room := self._pending_bytes_max - appender.pending_bytes) >= 0:
            block, at = plain.take(chunk, at, room, connection, connection.host, key_of)
            if block is None:
                break
            appender.add_block(block)
            if at == len(chunk):
                break
        return at

    def receive(self, ready: Ready) -> tuple[Ready, Begun]:
        """Receive from clients that probably have plain sends, and queue these; see `Reactor.serve_together`."""
        senders, appender = self._ready_senders, self._appender
        room = self._pending_bytes_max - appender.pending_bytes
        if senders is None or room < 0:
            return ready, ()
        blocks, others, ready = senders.receive(ready, room)
        for block in blocks:
            appender.add_block(block)
        return ready, [(descriptor, partial(connection.handle_chunk, rest)) for descriptor, connection, rest in others]

    def handle(self, call: Call[SendRequest]) -> None:
        """Check one message and queue it; its reply follows when it is committed.

        Raises:
            RequestRefused: it was not stored, and will not be.
        """
        ext = call.request.ext
        appender = self._appender
        if appender.pending_bytes > self._pending_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        text = ext.properties
        if RECEIPT in text:  # a consumer forwards a popped message: the receipt is not that of the new message
            text = ext.properties = props.without(text, props.POP_CK)
        tails = self._writable.get(ext.topic)
        if tails is None:
            tails = self._open_topic(call)
            if tails is None:
                return
        queue_id = ext.queue_id
        if not 0 <= queue_id < len(tails):
            queue_id = self._chosen_queue(ext, len(tails))
        if ext.batch:
            self._batches.add(call, tails[queue_id])
            return
        if "DELAY\x01" in text or "TIMER_D" in text or "TRAN_MSG\x01" in text or "RAFTMQ_S" in text:
            self._special.add(call, props.decode(text), ext.topic, queue_id)
            return
        properties = (text if not text or text[-1] == "\x02" else text + "\x02").encode()
        # Finds both values as `props.value_of`. The last hit is nearly always right, and a call would double the cost.
        at = properties.rfind(UNIQUE_KEY)
        unique_key = properties[at + 9 : properties.find(b"\x02", at)] if at >= 0 else b""
        if not unique_key or (at > 0 and properties[at - 1] != VALUE_END):
            unique_key = props.value_of(properties, UNIQUE_KEY)
        if not unique_key:
            unique_key = self._unique_keys.next().encode()
            properties += UNIQUE_KEY + unique_key + b"\x02"
        at = properties.rfind(TAGS)
        if at < 0:
            code = 0
        else:
            tags = properties[at + 5 : properties.find(b"\x02", at)]
            if not tags or (at > 0 and properties[at - 1] != VALUE_END):
                tags = props.value_of(properties, TAGS)
            code = self._tag_codes[tags]
        properties += self._suffix
        body_bytes = len(call.body)
        if body_bytes > self._body_bytes_max:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"body of {body_bytes} bytes; maximum: {self._body_bytes_max}"
            )
        if len(properties) > props.SENT_PROPERTIES_BYTES_MAX:
            if not ext.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
                check_sent_bytes(len(properties))
            # A consumer's copy of a received message: it is stored in any case.
            properties = props.fitted(props.decode(properties.decode()))
            code = tag_code_of(properties)
        tail = tails[queue_id]
        size = tail.fixed_bytes + body_bytes + len(properties)
        appender.pending.append((size, call, tail, properties, code, unique_key))
        appender.pending_bytes += size

    def queue_of(self, call: Call[SendRequest]) -> NextOffset | None:
        """The queue of a message that another service stores. Raises RequestRefused.

        None if the request is already served, or will be served again when its topic is created.
        """
        ext = call.request.ext
        if self._appender.pending_bytes > self._pending_bytes_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        tails = self._writable.get(ext.topic) or self._open_topic(call)
        if tails is None:
            return None
        return tails[ext.queue_id if 0 <= ext.queue_id < len(tails) else self._chosen_queue(ext, len(tails))]

    def handle_batch(self, call: Call[SendBatchMessage]) -> None:
        """Check a batch of messages to one queue and queue it as one item; a single reply follows.

        Raises:
            RequestRefused: none of them was stored, and none will be.
        """
        call.request.ext.batch = True
        self.handle(call)

    def _plain_sends(self, context: BrokerContext) -> PlainSends | None:
        if not IS_COMPILED or len(context.store_host) != IPV4_HOST_BYTES:
            return None
        return PlainSends(
            writable=self._writable,
            tag_codes=self._tag_codes,
            suffix=self._suffix,
            store_host=context.store_host,
            reply_parts=SendReplyTemplate(context.store_host).parts,
            magic=MAGIC_V1,
            client_flags=CLIENT_FLAGS,
            body_bytes_max=self._body_bytes_max,
            properties_bytes_max=props.SENT_PROPERTIES_BYTES_MAX,
            block_bytes_max=context.appender.entry_bytes_max,
            broker_name=context.settings.group.encode(),
        )

    def _chosen_queue(self, ext: SendExt, count: int) -> int:
        """A random queue for a message without a queue id. Raises RequestRefused for a queue id out of range."""
        if ext.queue_id >= 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"queue id {ext.queue_id} is illegal, {ext.topic} has {count} queues"
            )
        return self._rng.randrange(self._metadata.topics[ext.topic].write_queues)

    def _open_topic(self, call: Call[SendRequest]) -> list[NextOffset] | None:
        """The tails of a topic before its first message; None if the message waits until the topic is created."""
        ext = call.request.ext
        topic = ext.topic
        try:
            check_topic(topic)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if topic in SEND_FORBIDDEN_TOPICS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"sending to topic {topic} is forbidden")
        is_retry = topic.startswith(RETRY_PREFIX)
        if is_retry and self._retries.takes(call):
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
        if not is_retry:  # messages to retry topics are checked each time
            self._writable[topic] = tails
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
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist, apply first please!")

        size = len(call.body) + len(ext.properties)
        self._appender.pending_bytes += size

        def created(outcome: Outcome) -> None:
            self._appender.pending_bytes -= size
            match outcome:
                case Stored() | LeadershipLost():
                    call.dispatch()
                case Refused(remark):
                    call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
                case Unknown():
                    call.connection.close("leadership was lost while a topic was being created")

        if (waiting := self._creating.get(topic)) is not None:
            waiting.append(created)
            return
        waiting = self._creating[topic] = [created]

        def settled(outcome: Outcome) -> None:
            self._creating.pop(topic, None)
            for on_outcome in waiting:
                on_outcome(outcome)

        self._appender.add_command(encode_command(command), settled)
