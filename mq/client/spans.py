"""OpenTelemetry spans for sending and handling messages, by the semantic conventions for messaging.

A message carries the context of its sending span in its properties (W3C Trace Context: ``traceparent``, or the format
of the application's propagator). A consumer's span links to it; if it handles a single message without another span
around it, it also continues the producer's trace.

OpenTelemetry is imported only when a client is configured to use it. If it fails, or a part of it that the application
has written, the message is sent and handled all the same, without its span.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from mq.client.application_code import NeverRaises
from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.message import Message, MessageQueue, ReceivedMessage, SendResult
from mq.client.semantic_names import OPT_IN, rename

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Tracer

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.30.0"
OUTCOME: Final = "raftmq.stored"
"""The outcome of a send: "yes", "no" (certainly not stored), or "unknown" (it may be stored)."""

Attributes = dict[str, Any]

_never_raises = NeverRaises(lambda: log.exception("span_failed"))


class TracerProvider(Protocol):
    """The part of OpenTelemetry's provider that clients use. Defined here so that no import of it is needed."""

    def get_tracer(self, module: str, version: str | None = None, schema_url: str | None = None, /) -> Any: ...


def open_spans(otel: bool | TracerProvider, *, group: str, model: str | None = None) -> Spans | None:
    """Return the spans of one client; None if they are disabled. Raises ImportError without OpenTelemetry.

    Args:
        model: the message model of a consumer, ``clustering`` or ``broadcasting``; None for a producer.
    """
    return None if otel is False else Spans(otel, group=group, model=model)


class Spans:
    """Creates the spans of one client."""

    def __init__(self, otel: bool | TracerProvider, *, group: str, model: str | None) -> None:
        try:
            from importlib.metadata import version  # takes a tenth of the SDK's import

            from opentelemetry import propagate, trace
        except ImportError as error:
            raise ImportError("otel=... needs OpenTelemetry: pip install 'raftmq[otel]'") from error
        self._trace, self._propagate = trace, propagate
        provider = trace.get_tracer_provider() if isinstance(otel, bool) else otel
        self._tracer: Tracer = provider.get_tracer("raftmq", version("raftmq"), SCHEMA_URL)
        self._opt_in = os.environ.get(OPT_IN)
        self._common: Attributes = {"messaging.system": "rocketmq"}
        if model is not None:
            self._common["messaging.consumer.group.name"] = group
            self._common["messaging.rocketmq.consumption_model"] = model

    def identify(self, client_id: str) -> None:
        """Add the id of the opened client to the attributes of all spans."""
        self._common["messaging.client.id"] = client_id

    # Producers.

    @_never_raises
    def start_send(self, messages: Sequence[Message], *, is_batch: bool = False, transaction: bool = False) -> SendSpan:
        """Start the span of one request that sends these messages, which have one topic."""
        topic = messages[0].topic if messages else ""
        attributes = self._operation("send", "send", topic)
        if is_batch:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= _sent_attributes(messages[0], transaction=transaction)
        fields = self._propagate.get_global_textmap().fields
        with_context = [message for message in messages if fields & message.properties.keys()]
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=rename(attributes, self._opt_in),
            links=self._links([message.properties for message in with_context]),
        )
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, self._trace.set_span_in_context(span))
        return SendSpan(span, {name: value for name, value in carrier.items() if value})

    # Consumers.

    @_never_raises
    def start_process(self, messages: Sequence[ReceivedMessage[Any]], *, is_batch: bool = False) -> Work:
        """Start the span of handling these messages, which have one topic."""
        attributes = self._operation("process", "process", messages[0].topic) | _receive_attributes(messages, is_batch)
        span = self._start("process", messages, self._trace.SpanKind.CONSUMER, attributes)
        return Work(span, self._trace.use_span(span, record_exception=False, set_status_on_exception=False))

    def trace_handler(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Wrap `handler` so that each call runs in a span of its own, as the current span."""

        async def trace_call(each: ReceivedMessage[Any] | list[ReceivedMessage[Any]]) -> None:
            is_batch = isinstance(each, list)
            with self.start_process(each if isinstance(each, list) else [each], is_batch=is_batch) or nullcontext():
                await handler(each)

        return trace_call

    @_never_raises
    def on_receive(
        self, operation: str, messages: Sequence[ReceivedMessage[Any]], began_ns: int, *, is_batch: bool
    ) -> None:
        """Record that the application received these messages, which it requested at ``began_ns`` since 1970."""
        topics = {message.topic for message in messages}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = self._operation(operation, "receive", topic) | _receive_attributes(messages, is_batch)
        self._start(operation, messages, self._trace.SpanKind.CONSUMER, attributes, topic, began_ns).end()

    @contextmanager
    def trace_settle(self, operation: str, topic: str, messages: Sequence[ReceivedMessage[Any]] = ()) -> Iterator[None]:
        """Run the block in a span of settling these messages at a broker, which records an exception of the block."""
        span = self._start_settle(operation, topic, messages)
        try:
            yield
        except BaseException as error:
            if span is not None:
                _fail_and_end(span, error)
            raise
        if span is not None:
            _end(span)

    @_never_raises
    def _start_settle(self, operation: str, topic: str, messages: Sequence[ReceivedMessage[Any]]) -> Span:
        attributes = self._operation(operation, "settle", topic)
        if len(messages) == 1:
            attributes |= _receive_attributes(messages, is_batch=False)
        return self._tracer.start_span(
            f"{operation} {topic}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=rename(attributes, self._opt_in),
            links=self._links([message.properties for message in messages]),
        )

    # Common.

    def _operation(self, name: str, kind: str, topic: str | None) -> Attributes:
        attributes = self._common | {"messaging.operation.name": name, "messaging.operation.type": kind}
        return attributes if topic is None else attributes | {"messaging.destination.name": topic}

    def _start(
        self,
        operation: str,
        messages: Sequence[ReceivedMessage[Any]],
        kind: SpanKind,
        attributes: Attributes,
        topic: str | None = "",
        began_ns: int | None = None,
    ) -> Span:
        topic = messages[0].topic if topic == "" else topic
        parent: Context | None = None
        if len(messages) == 1 and not self._trace.get_current_span().get_span_context().is_valid:
            parent = self._propagate.extract(messages[0].properties)
        return self._tracer.start_span(
            operation if topic is None else f"{operation} {topic}",
            context=parent,
            kind=kind,
            attributes=rename(attributes, self._opt_in),
            links=self._links([message.properties for message in messages]),
            start_time=began_ns,
        )

    def _links(self, carriers: Sequence[Mapping[str, str]]) -> list[Link]:
        """Return links to the sending spans that these messages' properties name."""
        contexts = []
        for carrier in carriers:
            span = self._trace.get_current_span(self._propagate.extract(carrier)).get_span_context()
            if span.is_valid and span not in contexts:
                contexts.append(span)
        return [self._trace.Link(context) for context in contexts]


class SendSpan:
    """The span of one request that sends messages.

    Attributes:
        carrier: the properties through which a consumer finds this span.
    """

    __slots__ = ("_span", "carrier")

    def __init__(self, span: Span, carrier: Mapping[str, str]) -> None:
        self._span = span
        self.carrier = carrier

    def with_span_context(self, message: Message) -> Message:
        """Return the message with this span's context; unchanged if the application has set a context."""
        if self.carrier.keys() & message.properties.keys():
            return message
        return msgspec.structs.replace(message, properties={**message.properties, **self.carrier})

    @_never_raises
    def not_sent(self, error: BaseException) -> None:
        """End the span with an error, because the message was not sent."""
        _fail(self._span, error)
        self._span.set_attribute(OUTCOME, "no")
        self._span.end()

    @_never_raises
    def on_abandon(self) -> None:
        """End the span of a cancelled send, whose outcome is unknown."""
        self._span.set_attribute(OUTCOME, "unknown")
        self._span.set_attribute("error.type", "cancelled")
        self._end_as_error("cancelled while it was on its way")

    def end_on_outcome(
        self,
        unique_key: str,
        leader_of: Callable[[MessageQueue], str | None],
        on_done: Callable[[SendResult | ClientError], None],
    ) -> Callable[[SendResult | ClientError], None]:
        """Wrap `on_done`, to end the span after the application got the outcome."""

        def on_outcome(outcome: SendResult | ClientError) -> None:
            try:
                on_done(outcome)
            finally:
                if isinstance(outcome, ClientError):
                    self._record_failure(outcome, outcome.stored)
                else:
                    self._record_stored(outcome, leader_of(outcome.queue))

        if "," not in unique_key:  # otherwise it is the key of a batch
            _set_attribute(self._span, "messaging.message.id", unique_key)
        return on_outcome

    @_never_raises
    def _record_stored(self, result: SendResult, address: str | None) -> None:
        span = self._span
        span.set_attribute(OUTCOME, "yes")
        span.set_attribute("messaging.destination.partition.id", _partition(result.queue))
        span.set_attribute("raftmq.send.attempts", result.attempts)
        if result.maybe_duplicated:
            span.set_attribute("raftmq.send.maybe_duplicated", True)
        host, _, port = (address or "").rpartition(":")
        if host:
            span.set_attribute("server.address", host)
            span.set_attribute("server.port", int(port))
        span.end()

    @_never_raises
    def on_oneway(self) -> None:
        """Record that the message was sent one-way: its outcome stays unknown."""
        self._span.set_attribute(OUTCOME, "unknown")
        self._span.end()

    @_never_raises
    def _record_failure(self, error: ClientError, outcome: str) -> None:
        self._span.set_attribute(OUTCOME, outcome)
        _fail(self._span, error)
        self._span.end()

    def _end_as_error(self, text: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR, text)
        self._span.end()


class Work:
    """The span of handling messages: the current span within its block, which ends it.

    Without a block it ends with `on_settle`.
    """

    __slots__ = ("_block", "_in_block", "_span")

    def __init__(self, span: Span, block: AbstractContextManager[Span]) -> None:
        self._span = span
        self._block = block
        self._in_block = False

    @_never_raises
    def __enter__(self) -> None:
        self._in_block = True
        self._block.__enter__()

    @_never_raises
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._block.__exit__(None, None, None)
        if error is not None:
            _fail(self._span, error)
        self._span.end()

    @_never_raises
    def on_settle(self, outcome: str) -> None:
        """Record whether the messages were acknowledged or returned."""
        self._span.set_attribute("raftmq.delivery.outcome", outcome)
        if not self._in_block:
            self._span.end()


def now_ns() -> int:
    """Return nanoseconds since 1970, as in span times."""
    return time.time_ns()


def _fail(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    kind = type(error)
    span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
    if isinstance(error, ClientError):
        span.set_attribute(OUTCOME, error.stored)
    if isinstance(error, Exception):  # not for cancellation
        span.record_exception(error)
    span.set_status(StatusCode.ERROR, str(error) or kind.__qualname__)


@_never_raises
def _fail_and_end(span: Span, error: BaseException) -> None:
    _fail(span, error)
    span.end()


@_never_raises
def _end(span: Span) -> None:
    span.end()


@_never_raises
def _set_attribute(span: Span, name: str, value: str) -> None:
    span.set_attribute(name, value)


def _sent_attributes(message: Message, *, transaction: bool) -> Attributes:
    attributes: Attributes = {"messaging.message.body.size": len(message.body)}
    if message.tags is not None:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = tuple(message.keys)
    if message.delay_level is not None:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if message.sharding_key is not None:
        attributes["messaging.rocketmq.message.group"] = message.sharding_key
    is_delayed = (message.delay_level, message.delay, message.deliver_at) != (None, None, None)
    kind = "normal" if message.priority is None else "priority"
    kind = "transaction" if transaction else "delay" if is_delayed else "fifo" if message.sharding_key else kind
    return attributes | {"messaging.rocketmq.message.type": kind}


def _receive_attributes(messages: Sequence[ReceivedMessage[Any]], is_batch: bool) -> Attributes:
    if is_batch:
        return {"messaging.batch.message_count": len(messages)}
    [message] = messages
    attributes: Attributes = {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": len(message.raw_body),
        "messaging.destination.partition.id": _partition(message.queue),
    }
    if message.tags is not None:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = message.keys
    if message.reconsume_times:
        attributes["raftmq.message.reconsume_times"] = message.reconsume_times
    return attributes


def _partition(queue: MessageQueue) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"
