"""The gate in front of the handlers, with a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from mq.broker.access.control import OfLimitedUser
from mq.broker.base.quota_buckets import CONSUME, LimitKey, QuotaBuckets
from mq.broker.limits import BrokerLimits, QuotaLimits
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.request_table import RequestTable
from mq.broker.net.service import Route
from mq.broker.quota.gate import QuotaGate
from mq.broker.state.user_quotas import PutUserQuota, UserQuotas
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.requests.pull import PullMessage
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.quotas import ListQuotas
from mq.protocol.requests.send import SendMessageV2
from mq.protocol.requests.transactions import StageTransaction
from mq.protocol.wire.encoding import encode_request
from tests.support.broker_contexts import context_of
from tests.support.running_broker import pull_ext, send_ext

SUSPENDED = 4 | 2
HANDLED = SendMessageV2, StageTransaction, PullMessage, ListQuotas


class Clients:
    """A gate, the handlers behind it, and connections of users.

    Attributes:
        served: the numbers of the requests that came to their handlers, with the user that pays for them.
        answers: the code of the answer to a request, by its number.
    """

    def __init__(self, topic: Quota | None = None, limits: QuotaLimits | None = None, **users: Quota) -> None:
        self.now = 100.0
        self.served: list[tuple[int, str]] = []
        self.answers: dict[int, int | None] = {}
        self.topics: dict[str, Any] = {}
        self.quotas = UserQuotas()
        self.buckets = QuotaBuckets()
        self.requests = RequestTable()
        self.gate = QuotaGate(
            context_of(
                metadata=SimpleNamespace(topics=self.topics, user_quotas=self.quotas),
                appender=SimpleNamespace(is_open=True),
                quotas=self.buckets,
                clock=lambda: self.now,
                wall_clock_ms=lambda: 0,
                store=None,
                log=structlog.get_logger(),
                limits=BrokerLimits(quota=limits or QuotaLimits()),
            ),
            requests=self.requests,
        )
        self.requests.add(self.gate.routes())
        self.requests.add([Route(each, self._handle) for each in HANDLED])
        for user, quota in users.items():
            self.put(user, quota)
        self.limit_topic(topic or Quota())

    def put(self, user: str, quota: Quota) -> None:
        self.quotas.apply(PutUserQuota(name=user, quota=quota))

    def limit_topic(self, quota: Quota) -> None:
        given = {"quota.produce.messages": quota.produce_messages, "quota.consume.messages": quota.consume_messages}
        self.topics["T"] = SimpleNamespace(attributes={name: str(value) for name, value in given.items() if value})
        self.gate.topic_changed("T")

    def _handle(self, call: Call[Any]) -> bytes:
        self.served.append((call.request.opaque, call.user))
        if isinstance(call.request, PullMessage) and self.buckets.on_consume is not None:
            self.buckets.on_consume(call, 10, 1000)
        return call.success()

    def connection(self) -> Connection:
        return Connection(self)

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        self.gate.release()
        self.gate.check_invariants()


class Connection:
    """A connection of a client, in place of `ClientConnection`."""

    hold_seconds_max = 60.0
    closed = False

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def ask(
        self, number: int, code: int, ext: dict[str, Any], body: bytes = b"", *, user: str = "", oneway: bool = False
    ) -> None:
        fields = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}
        data = encode_request(code, number, ext=fields, body=body, oneway=oneway, serialization=JSON, language="JAVA")
        ((request, body, serialization),), _ = decode_chunk(data)
        self.dispatch(OfLimitedUser(user, request) if user else request, body, serialization)

    def send(self, number: int, **given: Any) -> None:
        self.ask(number, RequestCode.SEND_MESSAGE_V2, send_ext("T"), **given)

    def pull(self, number: int, milliseconds: int = 15_000, **given: Any) -> None:
        ext = pull_ext("T", sysFlag=SUSPENDED, suspendTimeoutMillis=milliseconds)
        self.ask(number, RequestCode.PULL_MESSAGE, ext, **given)

    # -- what the broker calls -----------------------------------------------------------------------------------------

    def dispatch(self, request: Any, body: bytes, serialization: int) -> None:
        self._clients.requests.serve(cast("ClientConnection", self), [(request, body, serialization)])

    def answer(self, request: Any, reply: bytes) -> None:
        ((response, _, _),), _ = decode_chunk(reply)
        self._clients.answers[request.opaque] = response.code

    def refuse(self, request: Any, serialization: int, error: Exception) -> None:
        assert isinstance(error, RequestRefused), error
        self._clients.answers[request.opaque] = error.code


def test_each_user_pays_for_messages_of_passed_pulls() -> None:
    """A pull that let one of an earlier client pass first, and had to wait itself, was delivered for nothing."""
    clients = Clients(ann=Quota(consume_messages=5), bob=Quota(consume_messages=1))
    first, second = clients.connection(), clients.connection()
    first.pull(1, user="ann")
    second.pull(2, user="bob")
    first.pull(3, user="ann")  # a second is owed
    clients.now += 1.0
    second.pull(4, user="bob")  # 8 seconds are owed, but that of ann comes first
    assert clients.served == [(1, "ann"), (2, "bob"), (3, "ann")]
    clients.pass_seconds(8.0)
    assert clients.served[3:] == [(4, "bob")]
    assert clients.buckets.wait([(LimitKey("user", "bob", CONSUME), clients.quotas.get("bob"))], clients.now)[0] == 10.0


def test_removing_a_quota_releases_its_waiting_requests() -> None:
    clients = Clients(Quota(produce_messages=5, consume_messages=1))
    connection = clients.connection()
    for number in range(8):
        connection.send(number)
    connection.pull(10)
    connection.pull(11)  # 9 messages are owed: 9 seconds
    assert [number for number, _ in clients.served] == [*range(6), 10]
    clients.limit_topic(Quota(consume_messages=1))
    clients.pass_seconds(0.0)
    assert [number for number, _ in clients.served] == [*range(6), 10, 6, 7]
    clients.limit_topic(Quota())
    clients.pass_seconds(0.0)
    assert clients.served[-1] == (11, "")
    assert not clients.requests.is_gated


def test_requests_wait_no_longer_for_a_removed_quota_of_a_user() -> None:
    clients = Clients(ann=Quota(consume_messages=1))
    connection = clients.connection()
    connection.pull(1, user="ann")
    connection.pull(2, user="ann")
    clients.put("ann", Quota())
    clients.gate.refresh()
    clients.pass_seconds(0.0)
    assert [number for number, _ in clients.served] == [1, 2]
    assert not clients.requests.is_gated


def test_stopping_broker_waits_for_sends_but_not_for_pulls() -> None:
    clients = Clients(Quota(produce_messages=5, consume_messages=1))
    connection = clients.connection()
    connection.pull(1)
    connection.pull(2)
    assert not clients.gate.has_unsent_replies()
    for number in range(10, 17):
        connection.send(number)
    assert clients.gate.has_unsent_replies()
    clients.pass_seconds(1.0)
    assert not clients.gate.has_unsent_replies()


def test_refused_oneway_sends_use_no_places_of_waiting_sends() -> None:
    clients = Clients(Quota(produce_messages=5), QuotaLimits(held_max=20))
    connection = clients.connection()
    for number in range(1000):
        connection.send(number, oneway=True)
    assert clients.gate.counters()["quota_held"] == 5  # those whose turn comes within a second
    clients.pass_seconds(1.0)
    assert len(clients.served) == 11


def test_refused_sends_leave_half_of_the_room() -> None:
    clients = Clients(Quota(produce_messages=5), QuotaLimits(held_max=20), ann=Quota(produce_messages=1))
    for number in range(100):
        clients.connection().send(number)
    assert clients.gate.counters()["quota_held"] == 10
    assert set(clients.answers.values()) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}


def test_headers_of_waiting_requests_are_bounded() -> None:
    clients = Clients(Quota(consume_messages=1), QuotaLimits(held_bytes_max=100_000))
    connection = clients.connection()
    connection.pull(0)
    for number in range(1, 50):
        ext = pull_ext("T", sysFlag=SUSPENDED, subscription="x" * 10_000)
        connection.ask(number, RequestCode.PULL_MESSAGE, ext)
    assert clients.gate.counters()["quota_held"] == 9
    clients.gate.check_invariants()


def test_bodies_of_waiting_transactions_are_bounded() -> None:
    """A transaction that cannot be read, or is all offsets, has no messages: it counted as nothing while it waited."""
    clients = Clients(None, QuotaLimits(held_bytes_max=100_000), ann=Quota(produce_messages=5))
    connection = clients.connection()
    for number in range(7):
        connection.send(number, user="ann")
    ext = {"producerGroup": "P", "transactionId": "0A0B", "bornTimestampMs": 1}
    for number in range(10, 60):
        connection.ask(number, RequestCode.STAGE_TRANSACTION, ext, b"x" * 10_000, user="ann")
    clients.gate.check_invariants()
    waiting = [each for each in clients.gate._queue if each.refusal is None]
    assert 1 < len(waiting) < 12


def test_change_of_another_topic_does_not_read_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are created all the time, and waiting transactions are long."""
    clients = Clients(Quota(produce_messages=5))
    for number in range(7):
        clients.connection().send(number)
    monkeypatch.setattr("mq.broker.quota.gate._parts_of", None)
    clients.topics["New"] = SimpleNamespace(attributes={})
    clients.gate.topic_changed("New")
    clients.gate.topic_changed("T")
    assert clients.gate.counters()["quota_held"] == 1


def test_pull_without_a_timeout_waits_for_a_second() -> None:
    clients = Clients(Quota(consume_messages=1))
    connection = clients.connection()
    connection.pull(1)
    connection.pull(2, milliseconds=0)
    assert 2 not in clients.answers
    clients.pass_seconds(1.0)
    assert clients.answers[2] == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_waiting_requests_of_clients_that_left_are_dropped() -> None:
    clients = Clients(Quota(produce_messages=5, consume_messages=1))
    connection = clients.connection()
    connection.pull(1)
    connection.pull(2)
    for number in range(10, 17):
        connection.send(number)
    served = list(clients.served)
    connection.closed = True
    clients.pass_seconds(20.0)
    assert clients.served == served
    assert clients.gate.counters()["quota_held"] == 0


def test_administrator_without_a_connection_left_can_still_change_quotas() -> None:
    clients = Clients()
    clients.put("*", Quota(connections=1))
    clients.connection().send(1, user="root")
    another = clients.connection()
    another.send(2, user="root")
    another.ask(3, RequestCode.LIST_QUOTAS, {}, user="root")
    assert clients.answers == {1: 0, 2: ResponseCode.NO_PERMISSION, 3: 0}
