"""Channels of kombu, used by the application's threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty
from typing import Any, Final

from amqp.basic_message import Message as AmqpMessage
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import UNDELIVERABLE_FMT, UndeliverableWarning
from kombu.utils.uuid import uuid

from mq.celery import envelope
from mq.celery.channel_consumer import ChannelConsumer
from mq.celery.deliveries import Delivery
from mq.celery.session import Session, Unsure, now_ms
from mq.celery.topics import Binding
from mq.client.errors import ClientError, SendOutcomeUnknown, TopicNotFound

LEVELS_MAX: Final = envelope.PRIORITY_MAX + 1
GET_SECONDS: Final = 0.15
"""A `basic_get` waits for so long: a message that was just given back takes a moment."""
_BROADCAST_QUEUE: Final = "bcast."
_UNSURE: Final = "raftmq_unsure"
"""The property in which an attempt to publish keeps its state for the next one; never sent."""
_PROPERTIES: Final = frozenset({"delivery_info", *(name for name, _ in AmqpMessage.PROPERTIES)})
"""The properties that RabbitMQ would deliver; others are Celery's options that no transport knows, of any type."""


class QoS(virtual.QoS):
    """Acknowledges and rejects messages. The consumer knows which deliveries are unacknowledged."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message. Returns before a broker has stored that."""
        self.channel.acknowledge(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back into its queue, or make it a dead letter. Waits until a broker has stored that."""
        if requeue:
            self.channel.settle(delivery_tag, "give_back", waits=True)
        else:
            self.channel.settle(delivery_tag, "refuse", "rejected by its consumer", waits=True)
        self._quick_ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Put all unacknowledged messages back into their queues."""
        self._flush()
        for tag in list(self._delivered):
            self.channel.settle(tag, "give_back", waits=True)
        self._delivered.clear()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put unacknowledged messages back when the channel closes; none in a forked process, whose parent has them."""
        self._on_collect.cancel()
        if self.channel is not None and self.channel.owns_deliveries and not self.channel.closed:
            self.restore_unacked()
        self._delivered.clear()
        self._delivered.restored = True


class Channel(virtual.Channel):
    """A channel of kombu. Its queues are topics, or transient queues of this process."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._channel_consumer: ChannelConsumer | None = None
        self._consumer_session: Session | None = None
        self._handlers: dict[str, Any] = {}
        self._no_ack: set[str] = set()
        self._transient: set[str] = set()
        self._dead_letter_exchanges: dict[str, tuple[str, str | None]] = {}
        self.divert: Callable[[dict[str, Any], str, str], None] | None = None
        """Gets what would be published: with exchange and routing key."""

    @property
    def _session(self) -> Session:
        session: Session = self.connection.session
        return session

    # Publishing.

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message, and return when a majority has stored it."""
        message["body"], body_encoding = envelope.encode_body(message["body"])
        fields = message["properties"]
        properties = message["properties"] = {name: value for name, value in fields.items() if name in _PROPERTIES}
        properties.update(body_encoding=body_encoding, delivery_tag=uuid())
        properties["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        # kombu's retry publishes with the same properties again, also on another connection.
        unsure: Unsure = fields.pop(_UNSURE, {})
        try:
            self._publish(message, exchange or "", routing_key or "", unsure)
        except SendOutcomeUnknown:
            fields[_UNSURE] = unsure
            raise

    def _publish(self, message: dict[str, Any], exchange: str, routing_key: str, unsure: Unsure) -> None:
        if self.divert is not None:
            self.divert(message, exchange, routing_key)
            return
        session = self._session
        delay_max_ms = int(session.address.delay_max * 1000)
        outgoing = envelope.encode(message, routing_key, now_ms=now_ms(), delay_max_ms=delay_max_ms)
        if session.publish(exchange, self._kind(exchange), routing_key, outgoing, unsure):
            return
        if self.deadletter_queue:
            self._new_queue(self.deadletter_queue)
            session.call(session.send, session.topics.of_queue(self.deadletter_queue), outgoing)
            text = UNDELIVERABLE_FMT.format(exchange=exchange, routing_key=routing_key)
            warnings.warn(UndeliverableWarning(text), stacklevel=2)

    def _kind(self, exchange: str) -> str:
        return str(self.state.exchanges.get(exchange, {}).get("type", "direct"))

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._publish(message, "", queue, {})

    # Queues and bindings.

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue. With `passive`, only check that it exists, or raise ChannelError."""
        queue = queue or f"amq.gen-{uuid()}"
        if not passive:
            self._new_queue(queue, **kwargs)
        elif not self._has_queue(queue):
            raise ChannelError(
                f"NOT_FOUND - no queue {queue!r} in vhost {self.connection.client.virtual_host or '/'!r}",
                (50, 10),
                "Channel.queue_declare",
                "404",
            )
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def _new_queue(
        self,
        queue: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        session, options = self._session, arguments or {}
        most = int(options.get("x-max-priority") or 0)
        if exchange := options.get("x-dead-letter-exchange"):
            self._dead_letter_exchanges[queue] = exchange, options.get("x-dead-letter-routing-key")
        if exclusive or (auto_delete and (not durable or queue.startswith(_BROADCAST_QUEUE))):
            session.call(session.broadcasts.declare, queue, by_priority=most > 0)
            self._transient.add(queue)
        else:
            topics = session.topics
            session.call(topics.declare, topics.of_queue(queue), levels=min(most + 1, LEVELS_MAX), queue=queue)

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Rename the options of a `kombu.Queue` to RabbitMQ's names."""
        queue_arguments: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **kwargs)
        return queue_arguments

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        session = self._session
        is_transient = session.broadcasts.get(queue) is not None
        return is_transient or session.call(session.topics.exists, session.topics.of_queue(queue))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange, for all processes."""
        exchange = exchange or "amq.direct"
        session, kind = self._session, self._kind(exchange)
        if session.broadcasts.get(queue) is not None:
            session.call(session.broadcasts.bind, queue, exchange, kind, routing_key)
        else:
            session.call(session.topics.bind, Binding(exchange, kind, routing_key, queue))
        self.state.binding_declare(queue, exchange, routing_key, arguments)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remove a binding, for all processes."""
        exchange, session = exchange or "amq.direct", self._session
        self.state.binding_delete(queue, exchange, routing_key)
        if session.broadcasts.get(queue) is not None:
            session.call_now(session.broadcasts.unbind, queue, exchange, routing_key)
        else:
            session.call(session.topics.unbind, Binding(exchange, self._kind(exchange), routing_key, queue))

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """List the bindings of an exchange as (routing key, pattern, queue)."""
        session = self._session
        bindings = session.call(session.topics.bindings, exchange, fresh=True)
        prepare = self.typeof(exchange).prepare_bind
        return [prepare(each.queue, exchange, each.routing_key, None) for each in bindings]

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue, its messages and its bindings, for all processes."""
        session = self._session
        if if_empty and self._size(queue):
            return
        self.state.queue_bindings_delete(queue)
        self._transient.discard(queue)
        if session.broadcasts.get(queue) is not None:
            session.call_now(session.broadcasts.delete, queue)
        elif self._has_queue(queue):
            session.call(session.topics.delete, session.topics.of_queue(queue))

    def _size(self, queue: str) -> int:
        session = self._session
        if (transient := session.broadcasts.get(queue)) is not None:
            return len(transient)
        try:
            return session.call(session.calls.ready, session.topics.of_queue(queue))
        except TopicNotFound:
            return 0

    def _purge(self, queue: str) -> int:
        session = self._session
        if (transient := session.broadcasts.get(queue)) is not None:
            return session.call_now(transient.clear)
        try:
            return session.call(session.calls.purge, session.topics.of_queue(queue))
        except TopicNotFound:
            return 0

    # Consuming.

    @property
    def owns_deliveries(self) -> bool:
        """Whether this process popped the deliveries. False in a process that was forked afterwards."""
        return self._consumer_session is not None and self._consumer_session.is_alive

    def _open_consumer(self) -> tuple[Session, ChannelConsumer]:
        session = self._session
        if self._channel_consumer is None or self._consumer_session is not session:
            transport = self.connection
            self._channel_consumer = session.open_consumer(
                lambda deliveries: transport.on_deliveries(self, deliveries), transport.on_failure, self._dead_letter
            )
            self._consumer_session = session
            session.call_now(self._channel_consumer.limit, self.qos.prefetch_count)
        return session, self._channel_consumer

    def acknowledge(self, tag: str) -> None:
        """Acknowledge a delivery at the consumer."""
        session, consumer = self._consumer_session, self._channel_consumer
        if session is not None and consumer is not None:
            session.soon(partial(consumer.deliveries.acknowledge, tag))

    def settle(self, tag: str, how: str, *args: Any, waits: bool = False) -> None:
        """Acknowledge, reject or requeue a delivery at the consumer."""
        session, consumer = self._consumer_session, self._channel_consumer
        if session is None or consumer is None:
            return
        if waits:
            session.call(getattr(consumer.deliveries, how), tag, *args)
        else:
            session.start(getattr(consumer.deliveries, how), tag, *args)

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """Start to consume a queue."""
        session, consumer = self._open_consumer()
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._handlers[queue] = callback
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        if (transient := session.broadcasts.get(queue)) is not None:
            session.call_now(consumer.consume_transient, transient)
        else:
            session.call(consumer.consume, queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming; delivered messages may still be acknowledged."""
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if queue in self._active_queues:
            return
        self._handlers.pop(queue, None)
        if self.owns_deliveries and self._channel_consumer is not None and self._consumer_session is not None:
            self._consumer_session.call_now(self._channel_consumer.cancel, queue)

    def hand_over(self, delivery: Delivery) -> None:
        """Call the callback of a delivery's consumer, in the application's thread."""
        callback, consumer = self._handlers.get(delivery.queue), self._channel_consumer
        if consumer is not None:
            consumer.takes += 1
        if callback is None:
            self.settle(delivery.tag, "give_back")
            return
        message = self.Message(delivery.payload, channel=self)
        if delivery.queue in self._no_ack:
            self.acknowledge(delivery.tag)
        else:
            self.qos.append(message, message.delivery_tag)
        callback(message)

    def on_take(self) -> None:
        """Fetch more deliveries, because the application took some; only without a prefetch limit."""
        if self._channel_consumer is not None and not self.qos.prefetch_count and self._consumer_session is not None:
            self._consumer_session.soon(self._channel_consumer.on_take)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return the next message; None if there is none."""
        session, consumer = self._open_consumer()
        if (transient := session.broadcasts.get(queue)) is not None:
            delivery = session.call_now(consumer.get_transient, transient)
        else:
            try:
                delivery = session.call(consumer.get, queue, GET_SECONDS)
            except TopicNotFound:
                delivery = None
        if delivery is None:
            return None
        message = self.Message(delivery.payload, channel=self)
        if no_ack:
            self.acknowledge(delivery.tag)
        else:
            self.qos.append(message, message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        message = self.basic_get(queue, no_ack=True)
        if message is None:
            raise Empty
        return message.serializable()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be unacknowledged; 0 for any number."""
        self.qos.prefetch_count = prefetch_count or 0
        if self._channel_consumer is not None and self._consumer_session is not None:
            self._consumer_session.call_now(self._channel_consumer.limit, self.qos.prefetch_count)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Wait for a message of any channel of the connection."""
        try:
            self.connection.drain_events(self.connection, timeout=timeout)
        except TimeoutError as error:
            raise Empty from error

    async def _dead_letter(self, delivery: Delivery, reason: str) -> bool:
        """Publish a message to the dead letter exchange of its queue, if that has one; in the event loop.

        A message that is not kombu's cannot be published there as it is: it has no body in its payload.
        """
        if (target := self._dead_letter_exchanges.get(delivery.queue)) is None or "body" not in delivery.payload:
            return reason == "expired"
        exchange, routing_key = target
        payload, session = delivery.payload, self._consumer_session
        assert session is not None, "a delivery without a session"
        info = payload["properties"].setdefault("delivery_info", {})
        routing_key = routing_key if routing_key is not None else str(info.get("routing_key", ""))
        payload["properties"].pop("expiration", None)
        payload.setdefault("headers", {})["x-death"] = [{"queue": delivery.queue, "reason": reason}]
        message = envelope.encode(payload, routing_key, now_ms=0, delay_max_ms=0)
        return await session.publish_here(exchange, self._kind(exchange), routing_key, message)

    def close(self) -> None:
        """Cancel all consumers, and return unacknowledged messages."""
        if self.closed:
            return
        self.connection.forget(self)
        session, consumer = self._consumer_session, self._channel_consumer
        try:
            for tag in list(self._consumers):
                self.basic_cancel(tag)
            if session is not None and consumer is not None and session.is_alive:
                session.close_consumer(consumer)
                for queue in self._transient:
                    session.call_now(session.broadcasts.delete, queue)
        except ClientError:
            pass  # the session has ended meanwhile
        if self._qos is not None:
            self._qos.restore_unacked_once()
        self._channel_consumer = self._consumer_session = None
        super().close()
