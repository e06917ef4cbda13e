"""The quota gate: delays or refuses sends and deliveries of users and topics that exceed their quotas.

Without quotas, requests pass no gate: `RequestTable` calls the handlers themselves. With one, sends to a limited topic
and sends of a limited user do not take the path of plain sends (`Sends.receive`), since they are looked at one by one.

A send that exceeds a quota waits its turn, up to `QuotaLimits.delay_seconds_max`, and is refused if that is too short.
The refusal waits for as long, so that a client which tries again at once does not do so thousands of times a second. A
transaction of several messages is a send to each of their topics. A pull or pop waits as long as its client would wait
for messages, and is then told to come again. A bulk read is told at once when to come again. A peek waits for up to
`_WAIT_SECONDS` and is refused then: an answer without messages would say that there are none. Everything else of a
client passes: heartbeats, commits and acknowledgements are what ends the work that it has.

A replica that hands a request on to the leader names its user (`ForwardExt.user`), and the leader counts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

import msgspec

from mq.broker.access.control import OfLimitedUser
from mq.broker.base.periodic_task import Periodic
from mq.broker.base.quota_buckets import CONNECTIONS, CONSUME, PRODUCE, STORED, TOPIC, USER, LimitKey
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call, Handler
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.request_table import RequestTable
from mq.broker.net.service import Route, Service
from mq.broker.quota.stored_bytes import StoredBytes
from mq.protocol.broker_ids import LEADER_ID
from mq.protocol.bulk import BulkStatus, encode_no_records
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.messages.batch import BATCHED_HEAD
from mq.protocol.messages.transaction_sets import TransactionSet, set_bytes
from mq.protocol.requests.bulk import BulkRead
from mq.protocol.requests.lite import PopLiteMessage
from mq.protocol.requests.pop import PeekMessage, PopMessage
from mq.protocol.requests.pull import LitePullMessage, PullMessage
from mq.protocol.requests.quota_attributes import Quota, quota_of
from mq.protocol.requests.quotas import ListQuotas, PutUserQuota
from mq.protocol.requests.request_reply import SendReplyMessage, SendReplyMessageV2
from mq.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from mq.protocol.requests.transactions import StageTransaction
from mq.protocol.wire.encoding import ONEWAY_FLAG, pull_response_header

_SENDS: Final = (
    SendMessage, SendMessageV2, SendBatchMessage, SendReplyMessage, SendReplyMessageV2, StageTransaction,
)  # fmt: skip
_PULLS: Final = (PullMessage, LitePullMessage)
_POPS: Final = (PopMessage, PopLiteMessage)
_LOOKS: Final = (PeekMessage, BulkRead)
_OF_QUOTAS: Final = (PutUserQuota, ListQuotas)
"""No quota keeps an administrator from changing it."""
_EXPIRE_SECONDS: Final = 0.02
_COUNT_SECONDS: Final = 1.0
_SUSPEND: Final = 2
_WAIT_SECONDS: Final = 1.0
"""The delay of a pull whose client does not say how long it waits, and of a peek; a bulk read waits no longer."""
_HOLD_SECONDS_MAX: Final = 20.0
"""The longest time for which a pull or pop is put off: stock clients wait for 30 s."""
_REJECTED: Final = "[REJECTREQUEST]"
"""Clients know by it that the message was not stored."""
Limits = list[tuple[LimitKey, Quota]]


class _TopicCost(NamedTuple):
    """The cost of a send for the quota of one topic."""

    topic: str
    messages: int
    nbytes: int


class _ThrottledRequest(NamedTuple):
    """A request that is held until ``due``, in monotonic seconds, and then served, or refused with ``refusal``."""

    due: float
    number: int
    call: Call[Any]
    until: float
    nbytes: int = 0
    refusal: RequestRefused | None = None


class QuotaGate(Service):
    """Delays or refuses requests that exceed a quota. The module's docstring says which it delays and which it refuses.

    Attributes:
        types: the requests that pass the gate.
        delay_count, refusal_count: delayed and refused requests, since the start.
    """

    types: frozenset[type[Any]] = frozenset({*_SENDS, *_PULLS, *_POPS, *_LOOKS})

    def __init__(self, context: BrokerContext, *, requests: RequestTable) -> None:
        self._requests = requests
        self._metadata, self._appender = context.metadata, context.appender
        self._buckets = context.quotas
        self._clock = context.clock
        self._wall_clock_ms = context.wall_clock_ms
        self._limits = context.limits.quota
        self._log = context.log
        self._topics: dict[str, Quota] = {}
        self._stored_bytes = StoredBytes(context.store)
        self._of_user: dict[str, set[ClientConnection]] = {}
        self._user = ""
        self._passing_request: object = None
        self._queue: list[_ThrottledRequest] = []
        self._held_bytes = 0
        self._number = 0
        self._seen_version = 0
        self.delay_count = self.refusal_count = 0
        for topic in context.metadata.topics:
            self.topic_changed(topic)

    def routes(self) -> Iterator[Route]:
        yield Route(OfLimitedUser, self.handle_of_user)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_EXPIRE_SECONDS, self.release, self._next_due)
        yield Periodic(_COUNT_SECONDS, self.refresh, self._rests_until)

    def counters(self) -> dict[str, int]:
        return {
            "quota_delayed": self.delay_count,
            "quota_refused": self.refusal_count,
            "quota_held": len(self._queue),
            "quota_throttled": sum(1 for _ in self._buckets.recent(self._clock())) if self._buckets.throttles else 0,
        }

    def has_unsent_replies(self) -> bool:
        """Whether sends are held: they are answered within a second. Clients repeat held pulls and pops elsewhere."""
        return any(not each.until for each in self._queue)

    def check_invariants(self) -> None:
        nbytes = sum(each.nbytes for each in self._queue)
        assert nbytes == self._held_bytes, f"requests of {nbytes} bytes wait, {self._held_bytes} are counted"
        assert nbytes <= self._limits.held_bytes_max, f"requests of {nbytes} bytes wait"
        bodies = sum(len(each.call.body) for each in self._queue)
        assert bodies <= nbytes, f"requests with bodies of {bodies} bytes wait, {nbytes} are counted"
        now = self._clock()
        late = [each for each in self._queue if each.due > now + _HOLD_SECONDS_MAX]
        assert not late, f"a request waits for {late[0].due - now:g} s"
        names = {name for name, config in self._metadata.topics.items() if quota_of(config.attributes) != Quota()}
        assert names == self._topics.keys(), f"topics with quotas: {sorted(names)}, known: {sorted(self._topics)}"
        assert not self._topics or self._requests.is_gated, f"{sorted(self._topics)} have quotas, and there is no gate"

    # -- what has quotas -----------------------------------------------------------------------------------------------

    def topic_changed(self, topic: str) -> None:
        """Use the new quota of a topic that was created, changed or deleted."""
        config = self._metadata.topics.get(topic)
        quota = Quota() if config is None else quota_of(config.attributes)
        before = self._topics.get(topic, Quota())
        if quota == Quota():
            if self._topics.pop(topic, None) is not None:
                self._forget_unlimited()
        else:
            self._topics[topic] = quota
            self.begin()
        self._stored_bytes.limit(topic, quota.stored_bytes)
        if quota != before:
            self._release_early()

    def begin(self) -> None:
        """Check requests from now on, because a topic has a quota, or a user with a quota has sent a request."""
        self._requests.put_gate(self)
        self._buckets.on_consume = self.charge_consumption

    def refresh(self) -> None:
        """Count the stored bytes of topics, and forget users without a quota; called by a timer."""
        if self._appender.is_open:
            self._stored_bytes.count()
        if self._seen_version != self._metadata.user_quotas.version:
            self._seen_version = self._metadata.user_quotas.version
            self._forget_unlimited()
            self._release_early()

    def _rests_until(self) -> float:
        is_busy = len(self._stored_bytes) or self._seen_version != self._metadata.user_quotas.version
        return float("-inf") if is_busy else float("inf")

    def _forget_unlimited(self) -> None:
        users = self._metadata.user_quotas
        self._buckets.keep(
            lambda each: each.name in self._topics if each.kind == TOPIC else users.get(each.name) != Quota()
        )
        self._of_user = {name: each for name, each in self._of_user.items() if users.get(name).connections}
        if not self._topics and not users.table:
            self._requests.put_gate(None)
            self._buckets.on_consume = None

    def _release_early(self) -> None:
        """After a change of quotas, release held requests whose quota allows them now, in their order."""
        if not self._queue:
            return
        now = self._clock()
        for at, each in enumerate(self._queue):
            call = each.call
            if type(call.request) in _SENDS:
                limits = [limit for limit, _, _ in self._costs(call.user, _parts_of(call))]
            else:
                limits = self._limits_of(call)
            if self._buckets.wait(limits, now)[1] is None:
                self._queue[at] = each._replace(due=min(each.due, now))
        heapify(self._queue)

    # -- connections ---------------------------------------------------------------------------------------------------

    def handle_of_user(self, call: Call[OfLimitedUser]) -> None:
        """Handle a request of a user that has a quota. Refuses it if the user has too many connections."""
        self.begin()
        user, request = call.request.user, call.request.request
        limit = self._metadata.user_quotas.get(user).connections
        if limit and type(request) not in _OF_QUOTAS and not self._admit(user, call.connection, limit):
            self.refusal_count += 1
            self._count_throttled(LimitKey(USER, user, CONNECTIONS), refused=True)
            remark = (
                f"user {user} has {limit} connections to this broker already, which is its quota: nothing was done; "
                "close one, or raise it with raftmq user set-quota"
            )
            call.connection.refuse(request, call.serialization, RequestRefused(ResponseCode.NO_PERMISSION, remark))
            return
        before, self._user = self._user, user
        try:
            call.connection.dispatch(request, call.body, call.serialization)
        finally:
            self._user = before

    def connections_of(self, user: str) -> int:
        """Return how many connections a user has, if the user's connections are limited; otherwise 0."""
        return len(self._of_user.get(user, ()))

    def _admit(self, user: str, connection: ClientConnection, count_max: int) -> bool:
        connections = self._of_user.setdefault(user, set())
        if connection in connections:
            return True
        if len(connections) >= count_max:
            return False
        connections.add(connection)
        return True

    def connection_closed(self, connection: ClientConnection) -> None:
        for connections in self._of_user.values():
            connections.discard(connection)

    # -- requests ------------------------------------------------------------------------------------------------------

    def serve(self, handler: Handler, is_forwarded: bool, call: Call[Any]) -> bytes | None:
        """Pass a request to its handler now, hold it until its quota allows it, or refuse it.

        ``is_forwarded`` says that the handler hands it to the leader, which counts it.
        """
        request = call.request
        call.user = self._user or call.user
        if is_forwarded or request is self._passing_request:
            return handler(call)
        if self._queue and self._queue[0].due <= self._clock():
            self.release()  # no request overtakes the ones that are due
        if type(request) in _SENDS:
            return self._send(handler, call)
        seconds, by = self._buckets.wait(self._limits_of(call), self._clock())
        if by is None:
            return handler(call)
        call.drop_body()
        return self._delay(call, by, seconds)

    def _send(self, handler: Handler, call: Call[Any]) -> bytes | None:
        now, parts = self._clock(), _parts_of(call)
        for name, _, _ in parts:
            self._check_full(name)
        costs = self._costs(call.user, parts)
        seconds, by = self._buckets.wait([limit for limit, _, _ in costs], now)
        # A transaction may have a body without messages: its offsets, or what cannot be read.
        nbytes = max(sum(part.nbytes for part in parts), len(call.body))
        if by is None or (seconds <= self._limits.delay_seconds_max and self._has_room(nbytes)):
            for limit, messages, part_bytes in costs:
                self._buckets.charge([limit], messages, part_bytes, now)
            for part in parts:
                self._stored_bytes.charge(part.topic, part.nbytes)
            if by is None:
                return handler(call)
            self._hold(call, now + seconds, nbytes, by)
            return None
        self.refusal_count += 1
        self._count_throttled(by, refused=True)
        refusal = RequestRefused(
            ResponseCode.SYSTEM_BUSY,
            f"{_REJECTED}{by.kind} {by.name} sends more than its quota: the message was not stored; the quota is paid "
            f"in {seconds:.1f} s",
        )
        call.drop_body()
        nbytes = _bytes_of_header(call.request)
        has_room = len(self._queue) < self._limits.held_max // 2 and self._has_room(nbytes)
        if call.request.flag & ONEWAY_FLAG or not has_room:  # refusals leave room for those that will be served
            raise refusal
        self._push(_ThrottledRequest(now + self._limits.delay_seconds_max, 0, call, 0.0, nbytes, refusal))
        return None

    def _check_full(self, topic: str) -> None:
        """Raise RequestRefused if a topic has reached its quota for stored bytes."""
        quota = self._topics.get(topic)
        if quota is not None and quota.stored_bytes and (full := self._stored_bytes.excess(topic)):
            self._count_throttled(LimitKey(TOPIC, topic, STORED), refused=True)
            self.refusal_count += 1
            remark = (
                f"topic {topic} has {full} bytes, and its {STORED} quota is {quota.stored_bytes}: the message was not "
                "stored. Retention has to delete older ones first, or raise it with raftmq topic update"
            )
            raise RequestRefused(ResponseCode.FLOW_CONTROL, remark)

    def _costs(self, user: str, parts: Sequence[_TopicCost]) -> list[tuple[tuple[LimitKey, Quota], int, int]]:
        """Return the quotas that these parts of a send count for, each with messages and bytes."""
        costs: list[tuple[tuple[LimitKey, Quota], int, int]] = []
        if user:
            limit = LimitKey(USER, user, PRODUCE), self._metadata.user_quotas.get(user)
            costs.append((limit, sum(part.messages for part in parts), sum(part.nbytes for part in parts)))
        for topic, messages, nbytes in parts:
            if (quota := self._topics.get(topic)) is not None:
                costs.append(((LimitKey(TOPIC, topic, PRODUCE), quota), messages, nbytes))
        return costs

    def _limits_of(self, call: Call[Any]) -> Limits:
        """Return the quotas that a consumer's request counts for."""
        limits: Limits = []
        topic = call.request.ext.topic
        if call.user:
            limits.append((LimitKey(USER, call.user, CONSUME), self._metadata.user_quotas.get(call.user)))
        if (quota := self._topics.get(topic)) is not None:
            limits.append((LimitKey(TOPIC, topic, CONSUME), quota))
        return limits

    def charge_consumption(self, call: Call[Any], messages: int, nbytes: int) -> None:
        """Charge the quotas of a consumer's request with the messages and bytes that it got."""
        if limits := self._limits_of(call):
            self._buckets.charge(limits, messages, nbytes, self._clock())

    def charge_elsewhere(self, user: str, messages: int, nbytes: int) -> float:
        """Charge a user's quota with a filter server's delivery; returns the seconds until its next one."""
        now, limit = self._clock(), (LimitKey(USER, user, CONSUME), self._metadata.user_quotas.get(user))
        self._buckets.charge([limit], messages, nbytes, now)
        seconds, by = self._buckets.wait([limit], now)
        if by is not None:
            self.delay_count += 1
            self._count_throttled(by, refused=False)
        return seconds

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _has_room(self, nbytes: int) -> bool:
        limits = self._limits
        return len(self._queue) < limits.held_max and self._held_bytes + nbytes <= limits.held_bytes_max

    def _hold(self, call: Call[Any], due: float, nbytes: int, by: LimitKey, until: float = 0.0) -> None:
        assert nbytes >= 0, f"a request of {nbytes} bytes waits"
        assert not until or due <= until, f"a request waits until {due}, its client until {until}"
        self.delay_count += 1
        self._count_throttled(by, refused=False)
        self._push(_ThrottledRequest(due, 0, call, until, nbytes))

    def _push(self, entry: _ThrottledRequest) -> None:
        self._number += 1
        self._held_bytes += entry.nbytes
        heappush(self._queue, entry._replace(number=self._number))

    def _delay(self, call: Call[Any], by: LimitKey, seconds: float, until: float | None = None) -> bytes | None:
        """Let a pull or pop wait, or tell its client to come again."""
        now = self._clock()
        if isinstance(call.request, BulkRead):
            self.delay_count += 1
            self._count_throttled(by, refused=False)
            pause_ms = math.ceil(1000 * min(seconds, _WAIT_SECONDS))
            return call.response(body=encode_no_records(BulkStatus.BUSY, pause_ms=pause_ms))
        if until is None:
            patience = min(_poll_seconds(call.request), _HOLD_SECONDS_MAX, call.connection.hold_seconds_max)
            until = now + patience
        nbytes = _bytes_of_header(call.request)
        if until <= now or not self._has_room(nbytes):
            return self._empty_answer(call, by)
        self._hold(call, min(until, now + seconds), nbytes, by, until)
        return None

    def _empty_answer(self, call: Call[Any], by: LimitKey) -> bytes:
        request = call.request
        if isinstance(request, PeekMessage):
            self.refusal_count += 1
            self._count_throttled(by, refused=True)
            remark = f"{_REJECTED}{by.kind} {by.name} reads more than its quota: look again later"
            return call.response(ResponseCode.SYSTEM_BUSY, remark=remark)
        if isinstance(request, _PULLS):
            offset = request.ext.queue_offset
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            return pull_response_header(
                request.opaque, code, offset, 0, offset, LEADER_ID, "QUOTA_EXCEEDED", 0, call.serialization
            )
        return call.response(ResponseCode.POLLING_TIMEOUT, remark="QUOTA_EXCEEDED")

    def _next_due(self) -> float:
        return self._queue[0].due if self._queue else float("inf")

    def release(self) -> None:
        """Serve held requests that are due; called by a timer."""
        now = self._clock()
        while self._queue and self._queue[0].due <= now:
            entry = heappop(self._queue)
            self._held_bytes -= entry.nbytes
            if not entry.call.connection.closed:
                self._let_pass(entry, now)

    def _let_pass(self, entry: _ThrottledRequest, now: float) -> None:
        call = entry.call
        if entry.refusal is not None:
            call.refuse(entry.refusal)
            return
        if entry.until:
            seconds, by = self._buckets.wait(self._limits_of(call), now)
            if by is not None:
                reply = self._delay(call, by, seconds, entry.until)
                if reply is not None:
                    call.answer(reply)
                return
        before = self._passing_request, self._user  # of the request that is being served, if it let this one pass first
        self._passing_request, self._user = call.request, call.user
        try:
            call.dispatch()
        finally:
            self._passing_request, self._user = before

    def resign(self) -> None:
        """Serve held requests again in their order: this replica stops leading, so the new leader gets them."""
        entries, self._queue, self._held_bytes = sorted(self._queue), [], 0
        for each in entries:
            if not each.call.connection.closed:
                self._let_pass(each._replace(until=0.0), each.due)

    def _count_throttled(self, by: LimitKey, *, refused: bool) -> None:
        if self._buckets.count_throttled(by, self._clock(), refused=refused):
            how = self._buckets.throttles[by]
            self._log.warning(
                "quota_exceeded",
                kind=by.kind,
                name=by.name,
                direction=by.direction,
                delayed=how.delayed_count,
                refused=how.refused_count,
            )


def _poll_seconds(request: Any) -> float:
    """Return for how many seconds the client of a pull or pop waits for messages."""
    ext = request.ext
    if isinstance(request, _PULLS):
        return (max(ext.suspend_timeout_ms, 0) / 1000 if ext.sys_flag & _SUSPEND else 0.0) or _WAIT_SECONDS
    if isinstance(request, PeekMessage):
        return _WAIT_SECONDS
    return max(ext.poll_ms, 0) / 1000 or _WAIT_SECONDS


def _bytes_of_header(request: Any) -> int:
    """Return about how many bytes a client put into the header of a request."""
    return sum(len(value) for value in msgspec.structs.astuple(request.ext) if isinstance(value, str))


def _parts_of(call: Call[Any]) -> list[_TopicCost]:
    """Split the cost of a send by topic. A transaction that cannot be read costs nothing: its handler refuses it."""
    request, body = call.request, call.body
    if not isinstance(request, StageTransaction):
        return [_TopicCost(request.ext.topic, _messages_in(call), len(body) + len(request.ext.properties))]
    try:
        messages = TransactionSet.decode(body).messages
    except BodyError:
        return []
    by_topic: dict[str, list[int]] = {}
    for each in messages:
        by_topic.setdefault(each.topic, []).append(set_bytes([each]))
    return [_TopicCost(topic, len(sizes), sum(sizes)) for topic, sizes in by_topic.items()]


def _messages_in(call: Call[Any]) -> int:
    """Return the number of messages in a send; 1 for a batch that cannot be read, which its handler refuses."""
    if not (call.request.ext.batch or isinstance(call.request, SendBatchMessage)):
        return 1
    body, at, count = call.body, 0, 0
    while at + BATCHED_HEAD.size <= len(body):
        size = BATCHED_HEAD.unpack_from(body, at)[0]
        if size < BATCHED_HEAD.size:
            break
        at += size
        count += 1
    return max(1, count)
