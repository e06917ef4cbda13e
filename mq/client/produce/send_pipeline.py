"""Sends messages: attempts, answers, retries, deadlines.

Theory of operation. A message in flight is an entry in a table, not a task. Attempts and answers are synchronous steps
(`_attempt`, `_on_response`); if something is missing (an unknown route, a missing leader, a back-off), the message is
parked under its topic, and one task per affected topic repairs route and connections and retries the parked messages.
One more task watches the deadlines. So a thousand messages in flight cost a thousand small objects.

Guarantees. A `SendResult` means stored. An error with `stored == "no"` means certainly not stored, whatever happened in
between. An attempt with an unknown outcome (a timeout, a lost connection) makes the whole send unknown unless a later
attempt succeeds, and then the result has `maybe_duplicated` set. A numbered message is sent to the same broker group
again, which stores it once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.abc

from mq.client.application_code import call_back
from mq.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NameServersUnavailable,
    NoRoute,
    NumberUsed,
    RequestTimeout,
    SendOutcomeUnknown,
    SendRejected,
    TopicNotFound,
    UnreadableAnswer,
)
from mq.client.logs import log
from mq.client.message import MessageQueue, SendResult, SendStatus
from mq.client.net.client_core import AUTO_CREATE_QUEUES_MAX, ClientCore
from mq.client.net.connection import MAYBE_UNREACHABLE, Connection, ResponseOrLoss
from mq.client.net.leader_calls import no_leader_reason
from mq.client.net.routes import TopicRoute
from mq.client.produce.numbering import is_number_refused, misuse_of
from mq.client.produce.outgoing_message import OnDone, OutgoingMessage, Send
from mq.client.send_outcome import UNKNOWN_HERE, Retry, StoreCertainty, judge_send
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.hashes import java_string_hash
from mq.protocol.incoming.headers import Response
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.requests.send import (
    SENT_ID,
    SENT_QUEUE_ID,
    SENT_QUEUE_OFFSET,
    SENT_RECALL_HANDLE,
    SENT_TRACE_ON,
    SENT_UNIQUE_KEY,
)
from mq.protocol.send_fields import send_header

BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 0.5
LEADERLESS_SECONDS_MAX = 0.1
"""A group that lost its leader has a new one within tens of milliseconds, and asking a name server is cheap. For a busy
broker the pauses are longer.
"""
SWEEP_SECONDS = 0.05
_NEVER_HEARD = "none has ever answered this client: is the address right, and does a name server run there?"
FIRST_ANSWER_SECONDS = 1.8
"""Seconds for which a message waits for the first answer that this client ever gets from a name server: without one,
its address is probably wrong. Later, when the addresses are known to be right, it waits for its whole time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Says when a message is sent again.

    `retries` limits the attempts after the first one that follow an unknown outcome or a refusal that another broker
    might not share; waiting for a leader is limited only by the send's deadline. One attempt may take
    `attempt_seconds`. Without `retry_unknown` a message that may be stored is never sent again.
    """

    retries: int = 2
    attempt_seconds: float = 3.0
    retry_unknown: bool = True

    def __post_init__(self) -> None:
        if self.retries < 0 or self.attempt_seconds <= 0:
            raise ValueError(
                f"retries is {self.retries}, attempt_seconds {self.attempt_seconds}; allowed: 0 or more, and above 0"
            )


def send_fields(group: str, message: OutgoingMessage, queue: MessageQueue) -> dict[str, str]:
    """Return the header fields of a send (request codes 310 and 320)."""
    fields = send_header(
        producer_group=group,
        topic=message.topic,
        default_topic=AUTO_CREATE_TEMPLATE,
        default_topic_queue_nums=str(AUTO_CREATE_QUEUES_MAX),
        queue_id=str(queue.queue_id),
        sys_flag=str(message.sys_flag),
        born_timestamp_ms=str(message.born_timestamp_ms),
        flag=str(message.flag),
        properties=message.properties,
        batch="true" if message.is_batch else "false",
        broker_name=queue.broker_name,
    )
    return fields if message.extra is None else {**fields, **message.extra}


def _lacks_leader(obstacle: ClientError) -> bool:
    if isinstance(obstacle, SendRejected):
        return obstacle.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NOT_LEADER_FOR_QUEUE)
    return isinstance(obstacle, NoRoute | ConnectFailed | ConnectionLost)


class SendPipeline:
    """Sends messages to the leaders of their queues. `run` must run in a task."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        core: ClientCore,
        group: str,
        *,
        policy: RetryPolicy,
        auto_create_topics: bool = True,
        on_finished: Callable[[], None] = lambda: None,
        on_retry: Callable[[str, ClientError], None] | None = None,
    ) -> None:
        self._on_finished = on_finished
        self._on_retry = on_retry
        self._tasks = tasks
        self._core = core
        self._group = group
        self._policy = policy
        self._auto_create_topics = auto_create_topics
        self._active: dict[int, Send] = {}
        self._numbers = 0
        self._oldest = 1
        self._parked_sends: dict[str, list[Send]] = {}
        self._stale_routes: set[str] = set()
        self._repair_events: dict[str, anyio.Event] = {}
        self._connect_addresses: set[str] = set()
        self._unreachable: dict[str, tuple[float, str]] = {}
        self._round_robin: dict[str, int] = {}
        self._wakeup = anyio.Event()
        self._finish_event: anyio.Event | None = None
        self._closed = False

    @property
    def in_flight(self) -> int:
        """The number of messages whose outcome is not known yet."""
        return len(self._active)

    @property
    def last_number(self) -> int:
        """The number of the newest message."""
        return self._numbers

    @property
    def span(self) -> int:
        """The number of messages started since the oldest one in flight, itself included; 0 if none is in flight."""
        while self._oldest <= self._numbers and self._oldest not in self._active:
            self._oldest += 1
        return self._numbers - self._oldest + 1

    def is_in_flight(self, last: int) -> bool:
        """Return whether a message with the number `last` or a smaller one is in flight."""
        return next(iter(self._active), last + 1) <= last

    def start(
        self,
        message: OutgoingMessage,
        on_done: OnDone,
        *,
        timeout: float,
        queue: MessageQueue | None = None,
        retries: int | None = None,
    ) -> int:
        """Start to send a message, and return its number. Calls `on_done` once, never within this call.

        `retries` overrides the policy's.
        """
        if self._closed:
            raise ClientClosed("the producer is closed")
        now = anyio.current_time()
        self._numbers += 1
        retries = self._policy.retries if retries is None else retries
        send = Send(
            self._numbers, message, on_done, started_at=now, deadline=now + timeout, retries=retries, queue=queue
        )
        if not self._active:
            self._wakeup.set()
        self._active[send.number] = send
        self._attempt(send, now)
        return send.number

    def sharding_queue(self, message: OutgoingMessage) -> MessageQueue | None:
        """Return the queue for the message's sharding key; None without a key, or while the route is unknown."""
        if message.sharding_key is None:
            return None
        route = self._core.known_route(message.topic)
        if route is None or not route.write_queues:
            return None
        return route.write_queues[java_string_hash(message.sharding_key) % len(route.write_queues)]

    def abandon(self, number: int) -> None:
        """Give up a message: no more attempts, no callback. It may still get stored."""
        send = self._active.pop(number, None)
        if send is not None:
            self._leave_connection(send)
            self._on_finish()

    async def wait_finished(self) -> None:
        """Wait until one more message is finished or abandoned."""
        if self._finish_event is None:
            self._finish_event = anyio.Event()
        await self._finish_event.wait()

    def _on_finish(self) -> None:
        self._on_finished()
        if self._finish_event is not None:
            self._finish_event.set()
            self._finish_event = None

    def close(self) -> None:
        """Fail all messages in flight: as unknown if an attempt may have succeeded, else as not stored."""
        self._closed = True
        for send in list(self._active.values()):
            if send.connection is not None:
                send.unknown_reason = send.unknown_reason or "the producer was closed before the answer came"
            self._fail(send, ClientClosed("the producer was closed before the message was sent"))

    # One attempt: synchronous, for a new message or from the repairing task.

    def _attempt(self, send: Send, now: float) -> None:
        topic = send.message.topic
        route = self._core.known_route(topic)
        if route is None:
            servers = ", ".join(self._core.name_servers)
            reason = f"no name server ({servers}) has told the route yet; {MAYBE_UNREACHABLE}"
            self._park(send, now, NoRoute(topic, reason))
            return
        target = self._choose(send, route)
        if isinstance(target, ClientError):
            self._park(send, now, target)
            return
        queue, connection = target
        send.queue = queue
        send.expires_at = min(send.deadline, now + self._policy.attempt_seconds)
        try:
            send.opaque = connection.request_nowait(
                RequestCode.SEND_BATCH_MESSAGE if send.message.is_batch else RequestCode.SEND_MESSAGE_V2,
                send_fields(self._group, send.message, queue),
                send.message.body,
                partial(self._on_response, send),
            )
        except ConnectionLost as error:
            self._park(send, now, error)
            return
        send.attempts += 1
        send.connection = connection

    def _choose(self, send: Send, route: TopicRoute) -> tuple[MessageQueue, Connection] | ClientError:
        """Choose a queue whose leader is connected: the fixed one, else the next in turn."""
        queues = route.write_queues
        if not queues:
            return NoRoute(route.topic, "no queue is writable")
        if send.fixed_queue is None:
            send.fixed_queue = self.sharding_queue(send.message)
            send.is_sharded = send.fixed_queue is not None
        group = send.knowing_group
        if group is not None:
            queues = tuple(queue for queue in queues if queue.broker_name == group)
            if not queues:
                return NoRoute(route.topic, f"no queue is writable in {group}, which may have stored the message")
        if send.fixed_queue is not None and group in (None, send.fixed_queue.broker_name):
            connection = self._leader(route, send.fixed_queue)
            return connection if isinstance(connection, ClientError) else (send.fixed_queue, connection)
        turn = self._round_robin.get(route.topic, -1)
        fallback: tuple[int, MessageQueue, Connection] | None = None
        obstacle: ClientError | None = None
        for step in range(turn + 1, turn + 1 + len(queues)):
            queue = queues[step % len(queues)]
            connection = self._leader(route, queue)
            if isinstance(connection, ClientError):
                obstacle = connection
            elif queue.broker_name not in send.avoid:
                self._round_robin[route.topic] = step
                if obstacle is not None:
                    self._mend(route.topic)
                return queue, connection
            elif fallback is None:
                fallback = (step, queue, connection)
        if fallback is not None:
            self._round_robin[route.topic], queue, connection = fallback
            return queue, connection
        assert obstacle is not None, f"{len(queues)} queues, none chosen and none in the way"
        return obstacle

    def _leader(self, route: TopicRoute, queue: MessageQueue) -> Connection | ClientError:
        address = route.leader_address(queue.broker_name)
        if address is None:
            return NoRoute(route.topic, no_leader_reason(route, queue.broker_name))
        connection = self._core.find_connection(address)
        if connection is not None:
            return connection
        _, reason = self._unreachable.get(address, (0.0, f"not connected yet; {MAYBE_UNREACHABLE}"))
        return ConnectFailed(address, reason)

    # Outcome of an attempt.

    def _on_response(self, send: Send, response: ResponseOrLoss, body: memoryview) -> None:
        send.connection = None
        assert send.queue is not None, "an attempt without a queue was answered"
        if isinstance(response, ConnectionLost):
            self._on_loss(send, response)
            return
        verdict = judge_send(response.code, response.remark)
        if verdict.stored == "yes":
            self._succeed(send, send.queue, response)
        else:
            self._on_refusal(send, send.queue, response, verdict)

    def _on_loss(self, send: Send, error: ConnectionLost) -> None:
        now = anyio.current_time()
        if error.sent:
            self._doubt(send, now, error)
        else:
            send.attempts -= 1
            self._park(send, now, error)

    def _on_refusal(self, send: Send, queue: MessageQueue, response: Response, verdict: StoreCertainty) -> None:
        now = anyio.current_time()
        if verdict.stored == "unknown":
            self._doubt(send, now, BrokerError(response.code, response.remark, queue.broker_name))
            return
        if is_number_refused(send.message, response.remark):
            self._fail(send, NumberUsed(response.remark or "", queue, send.attempts))
            return
        error = SendRejected(response.code, response.remark, queue, send.attempts)
        if response.code == ResponseCode.INVALID_PARAMETER and (send.fixed_queue is None or send.is_sharded):
            # The topic may have fewer queues than its route said: choose again in the next one.
            send.fixed_queue = None
            verdict = UNKNOWN_HERE
        if verdict.retry is Retry.ELSEWHERE:
            send.refused_by += (queue.broker_name,)
        if verdict.retry is Retry.UNTIL_TIMEOUT:
            pass
        elif verdict.retry is Retry.NEVER or send.retries_left == 0 or not self._is_untried(send):
            self._fail(send, error)
            return
        else:
            send.retries_left -= 1
        send.avoid = (*send.refused_by, queue.broker_name)
        self._park(send, now, error)

    def _is_untried(self, send: Send) -> bool:
        """Return whether a broker group is left that has not permanently refused the message."""
        if send.knowing_group is not None:
            return send.knowing_group not in send.refused_by
        if send.fixed_queue is not None:
            return send.fixed_queue.broker_name not in send.refused_by
        route = self._core.known_route(send.message.topic)
        return route is None or any(queue.broker_name not in send.refused_by for queue in route.write_queues)

    def _doubt(self, send: Send, now: float, error: ClientError) -> None:
        """Retry or fail a send whose last attempt may have stored the message."""
        send.unknown_reason = send.unknown_reason or str(error)
        if not self._policy.retry_unknown or send.retries_left == 0 or self._closed:
            self._fail(send, error)
            return
        send.retries_left -= 1
        send.avoid = (*send.refused_by, send.queue.broker_name) if send.queue else send.refused_by
        self._park(send, now, error)

    def _succeed(self, send: Send, queue: MessageQueue, response: Response) -> None:
        fields = response.ext
        if (misuse := misuse_of(send.message, fields)) is not None:
            self._number_used(send, queue, misuse)
            return
        try:
            queue_id = int(fields[SENT_QUEUE_ID])
            result = SendResult(
                # For a repeated sequence number, the original message's.
                message_id=fields.get(SENT_UNIQUE_KEY) or send.message.unique_key,
                offset_message_id=fields[SENT_ID],
                queue=queue if queue_id == queue.queue_id else queue._replace(queue_id=queue_id),
                queue_offset=int(fields[SENT_QUEUE_OFFSET]),
                status=SendStatus(response.code),
                attempts=send.attempts,
                maybe_duplicated=send.unknown_reason is not None and not send.message.is_numbered,
                recall_handle=fields.get(SENT_RECALL_HANDLE),
                trace_on=fields.get(SENT_TRACE_ON) != "false",
            )
        except (KeyError, ValueError) as error:
            # The broker says "stored" without a place: the message must not be sent again.
            send.unknown_reason = send.unknown_reason or f"the answer lacks a field: {error}"
            self._fail(send, UnreadableAnswer(f"stored, but {error!r}"))
            return
        self._finish(send, result)

    def _number_used(self, send: Send, queue: MessageQueue, misuse: str) -> None:
        """Fail a send whose answer is about another producer's messages; part of a batch may be stored all the same."""
        error = NumberUsed(misuse, queue, send.attempts)
        # The first message with a number is the only one: no attempt has stored this one.
        send.unknown_reason = str(error) if send.message.is_batch else None
        self._fail(send, error)

    def _fail(self, send: Send, error: ClientError) -> None:
        if send.unknown_reason is None:
            self._finish(send, error)
            return
        reason = send.unknown_reason
        if isinstance(error, NumberUsed) and reason != str(error):
            reason += "; sent again, and the broker no longer knows whether it has stored the message"
        unknown = SendOutcomeUnknown(reason, send.queue, send.attempts, message_id=send.message.unique_key)
        unknown.__cause__ = error
        self._finish(send, unknown)

    def _finish(self, send: Send, outcome: SendResult | ClientError) -> None:
        if self._active.pop(send.number, None) is None:
            return
        self._leave_connection(send)
        self._on_finish()
        # This runs in the task that reads the connection; an exception in a user's callback must not end it.
        self.call_back(send.on_done, outcome, send.message.unique_key)

    def call_back(self, on_done: OnDone, outcome: SendResult | ClientError, message_id: str) -> None:
        """Call the application's `on_done` with the outcome of a message."""
        call_back(on_done, outcome, self._tasks, message_id)

    def _leave_connection(self, send: Send) -> None:
        if send.connection is not None:
            send.connection.forget(send.opaque)
            send.connection = None

    # Parked messages.

    def _park(self, send: Send, now: float, obstacle: ClientError) -> None:
        if self._closed:
            self._fail(send, obstacle)
            return
        send.last_error = obstacle
        if self._on_retry is not None and (send.attempts or send.failures):
            self._on_retry(send.message.topic, obstacle)
        longest = LEADERLESS_SECONDS_MAX if _lacks_leader(obstacle) else BACKOFF_SECONDS_MAX
        delay = min(BACKOFF_SECONDS_MIN * 2 ** (send.failures - 1), longest) if send.failures else 0.0
        send.failures = min(send.failures + 1, 10)
        send.not_before = now + delay
        if self._core.has_heard:
            send.expires_at = send.deadline
        else:
            send.expires_at = min(send.deadline, send.started_at + FIRST_ANSWER_SECONDS)
        topic = send.message.topic
        self._parked_sends.setdefault(topic, []).append(send)
        self._stale_routes.add(topic)
        self._mend(topic)

    def _mend(self, topic: str) -> None:
        if topic not in self._repair_events:
            self._repair_events[topic] = anyio.Event()
            self._tasks.start_soon(self._mend_topic, topic)

    async def _mend_topic(self, topic: str) -> None:
        """Refresh the route, connect to the leaders, and retry parked messages, until none are left."""
        refreshed_at = float("-inf")
        try:
            while True:
                obstacle: ClientError | None = None
                if topic in self._stale_routes:
                    # New messages park without delay; without this pause they would request the route in a busy loop.
                    await anyio.sleep(max(refreshed_at + BACKOFF_SECONDS_MIN - anyio.current_time(), 0.0))
                    obstacle = await self._refresh(topic)
                    refreshed_at = anyio.current_time()
                route_event = self._repair_events[topic] = anyio.Event()
                if self._connect_leaders(topic):
                    with anyio.move_on_after(BACKOFF_SECONDS_MAX):
                        await route_event.wait()
                self._release(topic, obstacle)
                if not self._parked_sends.get(topic):
                    return
                wait = min(send.not_before for send in self._parked_sends[topic]) - anyio.current_time()
                with anyio.move_on_after(max(wait, 0.0)):
                    await route_event.wait()
        finally:
            del self._repair_events[topic]

    async def _refresh(self, topic: str) -> ClientError | None:
        """Refresh the route. Returns None if there is a usable route, even an old one."""
        self._stale_routes.discard(topic)
        try:
            await self._core.route(topic, refresh=True, auto_create=self._auto_create_topics)
        except ClientError as error:
            log.info("route_unavailable", topic=topic, reason=str(error))
            return error if self._core.known_route(topic) is None else None
        return None

    def _connect_leaders(self, topic: str) -> bool:
        """Start to connect to leaders where needed. Returns whether it can now only wait for that."""
        route = self._core.known_route(topic)
        if route is None:
            return False
        leaders = {route.leader_address(queue.broker_name) for queue in route.write_queues} - {None}
        addresses = [a for a in leaders if a is not None and self._core.find_connection(a) is None]
        now = anyio.current_time()
        for address in addresses:
            failed_at, _ = self._unreachable.get(address, (float("-inf"), ""))
            if address not in self._connect_addresses and now - failed_at >= BACKOFF_SECONDS_MIN:
                self._connect_addresses.add(address)
                self._tasks.start_soon(self._connect, address)
        return len(addresses) == len(leaders) and any(address in self._connect_addresses for address in addresses)

    async def _connect(self, address: str) -> None:
        try:
            await self._core.connection(address)
            self._unreachable.pop(address, None)
        except ClientError as error:
            reason = error.reason if isinstance(error, ConnectFailed) else str(error)
            self._unreachable[address] = (anyio.current_time(), reason)
        finally:
            self._connect_addresses.discard(address)
        for route_event in self._repair_events.values():
            route_event.set()

    def _release(self, topic: str, obstacle: ClientError | None) -> None:
        """Retry messages whose back-off has passed, in the order in which they were parked."""
        now = anyio.current_time()
        later: list[Send] = []
        for send in self._parked_sends.pop(topic, []):
            if send.number not in self._active:
                continue
            if send.not_before > now:
                later.append(send)
            elif obstacle is None:
                self._attempt(send, now)
            elif isinstance(obstacle, TopicNotFound) and send.retries_left == 0:
                self._fail(send, obstacle)
            else:
                send.retries_left -= isinstance(obstacle, TopicNotFound)
                self._park(send, now, obstacle)
        if later:
            self._parked_sends[topic] = later + self._parked_sends.get(topic, [])

    # Deadlines.

    async def run(self) -> None:
        """Fail messages whose deadline has passed, at most SWEEP_SECONDS late, until cancelled."""
        while True:
            while not self._active:  # messages may have ended before this task runs
                self._wakeup = anyio.Event()
                await self._wakeup.wait()
            earliest = min(send.expires_at for send in self._active.values())
            await anyio.sleep(min(max(earliest - anyio.current_time(), 0.001), SWEEP_SECONDS))
            now = anyio.current_time()
            for send in list(self._active.values()):
                if send.expires_at <= now:
                    self._expire(send, now)

    def _expire(self, send: Send, now: float) -> None:
        topic = send.message.topic
        if send.connection is None:
            if now < send.deadline and self._core.has_heard:
                send.expires_at = send.deadline  # the first answer came while it waited
                return
            error = send.last_error or NoRoute(topic, "the time ran out before the first attempt")
            if isinstance(error, NameServersUnavailable) and not self._core.has_heard:
                error = NameServersUnavailable(error.reasons, _NEVER_HEARD)
            self._fail(send, error)
            return
        seconds = self._policy.attempt_seconds
        connection = send.connection
        error = RequestTimeout(connection.address, RequestCode.SEND_MESSAGE_V2, seconds)
        self._leave_connection(send)
        connection.on_timeout(seconds)
        self._stale_routes.add(topic)
        if now >= send.deadline:
            send.unknown_reason = send.unknown_reason or str(error)
            self._fail(send, error)
        else:
            self._doubt(send, now, error)
