"""Measures one client while it is open."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from mq.client.application_code import NeverRaises
from mq.client.errors import (
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NameServersUnavailable,
    NoRoute,
    RequestTimeout,
    SendRejected,
    TopicNotFound,
)
from mq.client.events import ClientEvent, OnEvent
from mq.client.logs import log
from mq.client.message import MessageQueue, ReceivedMessage, SendResult
from mq.client.metrics import families
from mq.client.metrics.families import Family
from mq.client.net.forks import forks

LAG_EVERY: Final = 3
"""Samples between two requests for the ends of queues."""
OTHER: Final = "other"
"""The label of topics beyond the limit."""

Add = Callable[[float], object]
"""Adds to a counter, or observes a value."""
Lag = Callable[[], Awaitable[dict[MessageQueue, int]]]
Outcome = SendResult | ClientError

_REASONS: Final[tuple[tuple[type[ClientError], str], ...]] = (
    (RequestTimeout, "timeout"),
    (ConnectionLost, "connection_lost"),
    (ConnectFailed, "no_connection"),
    (NoRoute, "no_leader"),
    (TopicNotFound, "no_topic"),
    (NameServersUnavailable, "no_name_server"),
    (SendRejected, "refused"),
    (BrokerError, "refused"),
)

_never_raises = NeverRaises(lambda: log.exception("metrics_failed"))


class LabelBook:
    """Limits the number of label values, of clients and of topics."""

    def __init__(self, topics_max: int) -> None:
        if topics_max < 1:
            raise ValueError(f"topics_max is {topics_max}; it must be at least 1")
        self.topics_max = topics_max
        self._lock = threading.Lock()
        self._forks = forks()
        self._open: dict[tuple[str, str], set[int]] = {}
        self._topics: Counter[str] = Counter()

    def enter(self, kind: str, group: str) -> str:
        """Reserve and return the lowest number that no open client of this kind and group has: 1 for the only one."""
        if self._forks != forks():  # the clients, and perhaps the lock, belong to the parent
            self._lock, self._forks = threading.Lock(), forks()
            self._open.clear()
            self._topics.clear()
        with self._lock:
            numbers = self._open.setdefault((kind, group), set())
            number = next(each for each in range(1, len(numbers) + 2) if each not in numbers)
            numbers.add(number)
            return str(number)

    def leave(self, kind: str, group: str, number: str, topics: Sequence[str]) -> None:
        """Free the number and the topics of a closed client."""
        with self._lock:
            self._open.get((kind, group), set()).discard(int(number))
            self._topics.subtract(topics)
            self._topics = +self._topics

    def take_topic(self, topic: str) -> bool:
        """Return whether a client may use this topic as a label. The client frees it when it is closed."""
        with self._lock:
            if topic not in self._topics and len(self._topics) >= self.topics_max:
                return False
            self._topics[topic] += 1
            return True


class ClientMetrics(ABC):
    """Receives the metrics of any number of clients, from any threads.

    A series is given by a family and the values of its labels, first the labels of COMMON.
    """

    book: LabelBook

    @abstractmethod
    def adder(self, family: Family, values: tuple[str, ...]) -> Add:
        """Return a function that adds to a counter, or observes a value of a histogram."""

    @abstractmethod
    def gauge(self, family: Family, values: tuple[str, ...], read: Callable[[], float]) -> None:
        """Show the value that `read` returns, until `remove`. Any thread may call `read`."""

    @abstractmethod
    def remove(self, family: Family, values: tuple[str, ...]) -> None:
        """Stop showing a series, if the library can."""

    def sample(self) -> None:  # noqa: B027 - most have nothing to do
        """Read the gauges if no other program reads them. Called every 5 s."""


class Recorder:
    """Records the measurements of one open client. Only its event loop calls it; any thread reads gauges."""

    def __init__(self, metrics: ClientMetrics, kind: str, group: str) -> None:
        self._metrics = metrics
        self._kind, self._group = kind, group
        self._number = metrics.book.enter(kind, group)
        self._common = (self._number, kind, group)
        self._adders: dict[tuple[Family, tuple[str, ...]], Add] = {}
        self._gauges: list[tuple[Family, tuple[str, ...]]] = []
        self._topics: dict[str, str] = {}
        self._addresses: set[str] = set()
        self._lags: dict[str, float] = {}
        self._work: dict[int, float] = {}
        """When handlers and deliveries began that are at work."""
        self._works = 0

    def close(self) -> None:
        """Remove the series of this closed client."""
        for family, values in [*self._adders, *self._gauges]:
            self._remove(family, values)
        topics = [topic for topic, label in self._topics.items() if label == topic]
        self._metrics.book.leave(self._kind, self._group, self._number, topics)

    @_never_raises
    def _remove(self, family: Family, values: tuple[str, ...]) -> None:
        self._metrics.remove(family, self._common + values)

    @_never_raises
    def show(self, family: Family, read: Callable[[], float], *values: str) -> None:
        """Show the value that `read` returns as a gauge."""
        self._gauges.append((family, values))
        self._metrics.gauge(family, self._common + values, read)

    def show_sends(self, in_flight: Callable[[], float]) -> None:
        """Show how many messages are in flight."""
        self.show(families.SENDS_IN_FLIGHT, in_flight)

    def show_work(self) -> None:
        """Show how many handlers are at work, and for how long."""
        self.show(families.HANDLERS_RUNNING, lambda: len(self._work))
        self.show(families.OLDEST_HANDLER_SECONDS, self._oldest_seconds)

    @_never_raises
    def _add(self, family: Family, amount: float, *values: str) -> None:
        """Add to a counter. `values` are the values of the labels; a topic first."""
        if family.labels and family.labels[0] == "topic":
            values = (self._topic(values[0]), *values[1:])
        add = self._adders.get((family, values))
        if add is None:
            add = self._adders[family, values] = self._metrics.adder(family, self._common + values)
        add(amount)

    def _topic(self, topic: str) -> str:
        label = self._topics.get(topic)
        if label is None:
            if len(self._topics) >= 2 * self._metrics.book.topics_max:
                return OTHER  # names that are not known need no memory
            label = self._topics[topic] = topic if self._metrics.book.take_topic(topic) else OTHER
        return label

    # Connections and events.

    def counting_events(self, on_event: OnEvent | None) -> OnEvent:
        """Wrap the application's `on_event`, to count each event first."""

        def count(event: ClientEvent) -> object:
            self._add(families.EVENTS, 1, event.kind)
            if event.kind == "connected":
                if event.subject in self._addresses:
                    self._add(families.RECONNECTS, 1)
                self._addresses.add(event.subject)
            return None if on_event is None else on_event(event)

        return count

    async def run(self, lag: Lag | None, sample_seconds: float) -> None:
        """Sample gauges, and the lag if `lag` is given, every `sample_seconds`, until cancelled."""
        while True:
            if lag is not None:
                await self._ask_lag(lag)
            for _ in range(LAG_EVERY):
                self._sample()
                await anyio.sleep(sample_seconds)

    @_never_raises
    def _sample(self) -> None:
        self._metrics.sample()

    async def _ask_lag(self, lag: Lag) -> None:
        try:
            by_topic: Counter[str] = Counter()
            for queue, count in (await lag()).items():
                by_topic[self._topic(queue.topic)] += count
        except ClientError as error:
            log.debug("lag_unknown", group=self._group, reason=str(error))
            self._lags = dict.fromkeys(self._lags, math.nan)
            return
        new = by_topic.keys() - self._lags.keys()
        self._lags = {topic: by_topic[topic] for topic in by_topic.keys() | self._lags.keys()}
        for topic in sorted(new):
            self.show(families.LAG, lambda topic=topic: self._lags.get(topic, 0), topic)  # type: ignore[misc]

    # Sends.

    def count_send(
        self, topic: str, count: int, body_bytes: int, on_done: Callable[[Outcome], None]
    ) -> Callable[[Outcome], None]:
        """Wrap `on_done`, to first count the outcome of a request with `count` messages."""
        began = time.perf_counter()

        def on_outcome(outcome: Outcome) -> None:
            is_stored = not isinstance(outcome, ClientError)
            result = "stored" if is_stored else "unknown" if _is_unknown(outcome) else "not_stored"
            self._add(families.SENT, count, topic, result)
            self._add(families.SEND_SECONDS, time.perf_counter() - began, topic, result)
            if is_stored:
                self._add(families.SENT_BYTES, body_bytes, topic)
            on_done(outcome)

        return on_outcome

    def not_awaited(self, topic: str, outcome: str, count: int = 1) -> None:
        """Count messages whose outcome no broker has answered."""
        self._add(families.SENT, count, topic, outcome)

    def count_retry(self, topic: str, error: ClientError) -> None:
        """Count a message that is sent again, or must wait, because of `error`."""
        reason = next((text for kind, text in _REASONS if isinstance(error, kind)), "unreadable_answer")
        self._add(families.SEND_RETRIES, 1, topic, reason)

    # Deliveries.

    @_never_raises
    def on_receive(self, messages: Sequence[ReceivedMessage[Any]]) -> None:
        """Count messages that the application receives."""
        now_ms = time.time_ns() // 1_000_000
        for message in messages:
            topic = message.topic
            self._add(families.RECEIVED, 1, topic)
            self._add(families.RECEIVED_BYTES, len(message.raw_body), topic)
            if message.reconsume_times or message.attempt > 1:
                self._add(families.REDELIVERED, 1, topic)
            else:
                seconds = max(now_ms - message.record.born_timestamp_ms, 0) / 1000
                self._add(families.END_TO_END_SECONDS, seconds, topic)

    def on_settle(self, topic: str, outcome: str, count: int = 1) -> None:
        """Count messages that were acknowledged, or will be redelivered."""
        self._add(families.SETTLED, count, topic, outcome)

    def time_handler(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Wrap a handler, to measure its duration. `on_settle` counts the outcomes of failures."""

        async def time_call(argument: ReceivedMessage[Any] | list[ReceivedMessage[Any]]) -> None:
            messages = argument if isinstance(argument, list) else [argument]
            timer = self.begin(messages)
            outcome = "failed"
            try:
                await handler(argument)
                outcome = "done"
                self.on_settle(timer.topic, outcome, len(messages))
            finally:
                timer.end(outcome)

        return time_call

    def begin(self, messages: Sequence[ReceivedMessage[Any]]) -> HandlerTimer:
        """Count messages of one topic that a handler gets, and start to measure its time until `HandlerTimer.end`."""
        self.on_receive(messages)
        self._works += 1
        self._work[self._works] = time.perf_counter()
        return HandlerTimer(self, messages[0].topic, self._works)

    def end(self, topic: str, work: int, outcome: str) -> None:
        """Record the duration and outcome of the work with this number."""
        began = self._work.pop(work, None)
        if began is not None:
            self._add(families.HANDLER_SECONDS, time.perf_counter() - began, topic, outcome)

    def _oldest_seconds(self) -> float:
        oldest = min(list(self._work.values()), default=None)
        return 0.0 if oldest is None else time.perf_counter() - oldest


class HandlerTimer:
    """Measures the application's work on messages, from their delivery on."""

    __slots__ = ("_recorder", "_work", "topic")

    def __init__(self, recorder: Recorder, topic: str, work: int) -> None:
        self._recorder, self.topic, self._work = recorder, topic, work

    def end(self, outcome: str) -> None:
        """Record the end of the work; later calls have no effect."""
        self._recorder.end(self.topic, self._work, outcome)

    def on_settle(self, outcome: str) -> None:
        """Record the end of the work, and that its message was acknowledged or returned."""
        self._recorder.on_settle(self.topic, outcome)
        self.end(outcome)


@asynccontextmanager
async def open_recorder(
    metrics: ClientMetrics | None, kind: str, group: str, open_connections: Callable[[], float]
) -> AsyncIterator[Recorder | None]:
    """Open the recorder of a client for the block; yields None without metrics."""
    if metrics is None:
        yield None
        return
    recorder = Recorder(metrics, kind, group)
    try:
        recorder.show(families.CONNECTIONS, open_connections)
        yield recorder
    finally:
        recorder.close()


def check_metrics(metrics: ClientMetrics | None) -> ClientMetrics | None:
    """Return the object itself. Raises TypeError for another object, such as a registry or a meter."""
    if metrics is not None and not isinstance(metrics, ClientMetrics):
        raise TypeError(f"metrics is a PrometheusMetrics or an OpenTelemetryMetrics, not {metrics!r}")
    return metrics


def _is_unknown(outcome: Outcome) -> bool:
    return isinstance(outcome, ClientError) and outcome.stored == "unknown"
