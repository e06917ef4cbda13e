"""What a programmer does wrong is said at once, where it was done, and in words that help."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from mq.client import (
    Admin,
    BrokerError,
    ClientClosed,
    Message,
    MessageQueue,
    MessageRefused,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RequestTimeout,
    RetryLater,
    SendRejected,
    Skip,
    SubscriptionError,
    sql,
)
from mq.client.produce.outgoing_message import Pending, make_ready
from mq.client.sync import SyncAdmin, SyncProducer, SyncPushConsumer, SyncTransactionProducer
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

NAMESRV = "127.0.0.1:9"
make_any: Any = PushConsumer
make_pull: Any = PullConsumer
make_admin: Any = Admin


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(make_admin, None), "'host:port', separated by ';', or a list of such, not None"),
        (partial(Admin, ""), "at least one name server"),
        (partial(Admin, "localhost"), "not an address of the form host:port: 'localhost'"),
        (partial(Admin, "http://localhost:9876"), "not an address of the form host:port: 'http"),
        (partial(make_any, NAMESRV, "G", consume_from="earliest"), "'earliest' is neither 'first' nor 'last' nor"),
        (partial(make_pull, NAMESRV, "G", consume_from=0), "0 is neither 'first' nor 'last' nor"),
        (partial(PullConsumer, NAMESRV, "G", consume_from=dt.datetime(2026, 1, 1)), "needs a time zone"),  # noqa: DTZ001
        (partial(PushConsumer, NAMESRV, "G", max_reconsume_times=-2), "pass -1 for ever, or a number"),
    ],
)
def test_contradictory_options_are_refused_at_construction(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_handlers_are_coroutine_functions() -> None:
    consumer = PushConsumer(NAMESRV, "G")
    plain: Any = lambda message: None  # noqa: E731

    class Callables:
        async def __call__(self, message: ReceivedMessage) -> None: ...

    consumer.on("A")(Callables())
    consumer.on("B")(partial(Callables.__call__, Callables()))
    with pytest.raises(TypeError, match=r"coroutine function \(async def\).*SyncPushConsumer takes plain functions"):
        consumer.on("C")(plain)
    with pytest.raises(TypeError, match=r'@consumer.on\("Orders"\)'):
        consumer.on(plain)
    assert repr(consumer) == "<PushConsumer G of A, B at 127.0.0.1:9, closed>"


def given_more_than_a_message(function: Any) -> Any:
    @wraps(function)
    async def wrapper(*arguments: Any) -> None:
        await function(*arguments, 1)

    return wrapper


def test_functions_that_no_message_can_be_given_to_are_refused() -> None:
    async def nothing() -> None: ...

    async def two(message: ReceivedMessage, more: int) -> None: ...

    async def with_default(message: ReceivedMessage, more: int = 0) -> None: ...

    handlers: list[Any] = [nothing, two]
    middleware: Any = two
    wrapped: Any = given_more_than_a_message(two)
    for handler in handlers:
        with pytest.raises(TypeError, match=r"is called with \(message\), which .* does not accept"):
            PushConsumer(NAMESRV, "G").on("A")(handler)
        with pytest.raises(TypeError, match=r"is called with \(messages\), which .* does not accept"):
            PushConsumer(NAMESRV, "G").on("A", batch=8)(handler)
    PushConsumer(NAMESRV, "G").on("A")(with_default)
    PushConsumer(NAMESRV, "G").on("A")(wrapped)
    PushConsumer(NAMESRV, "G").use(middleware)
    with pytest.raises(TypeError, match=r"is called with \(message, call_next\), which .* does not accept"):
        PushConsumer(NAMESRV, "G").use(handlers[0])
    plain: Any = lambda: None  # noqa: E731
    with pytest.raises(TypeError, match=r"is called with \(message\), which .* does not accept"):
        SyncPushConsumer(NAMESRV, "G").on("A")(plain)


def test_settings_of_a_wrong_type_are_refused_at_once() -> None:
    wrong: Any = {"request_seconds": 1}
    for make in (Admin, Producer):
        with pytest.raises(TypeError, match=r"remoting is a RemotingSettings, not \{"):
            make(NAMESRV, remoting=wrong)
    with pytest.raises(TypeError, match=r"remoting is a RemotingSettings, not \{"):
        PushConsumer(NAMESRV, "G", remoting=wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allocate": "averagely"}, "allocate is a strategy of mq.client.consume.allocation, not 'averagely'"),
        ({"pull": {}}, r"pull is a PullSettings, not \{\}"),
        ({"pull": {"batch_max": 5}}, "pull is a PullSettings, not"),
    ],
)
def test_options_of_a_wrong_type_are_refused_at_once(options: dict[str, Any], said: str) -> None:
    """An empty mapping meant the defaults; the others ended the consumer when it was assigned its first queue."""
    with pytest.raises(TypeError, match=said):
        PushConsumer(NAMESRV, "G", **options)


@pytest.mark.parametrize("name", ["commit_seconds", "rebalance_seconds"])
def test_intervals_without_a_pause_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; it must be positive"):
        make_any(NAMESRV, "G", **{name: 0})


async def test_topic_in_place_of_a_queue_is_refused() -> None:
    """`pause` took it, and went on delivering; `commit` and `send` failed with an AttributeError."""
    said = "queue.* that queues\\(topic\\) returns, not 'T'"
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        wrong: Any = "T"
        async with PullConsumer(cluster.namesrv, "G") as pulls, PushConsumer(cluster.namesrv, "P") as pushes:
            for call in (pulls.pause, pulls.resume, pushes.pause, pushes.resume):
                with pytest.raises(TypeError, match=said):
                    call(wrong)
            for waiting in (pulls.assign([wrong]), pulls.commit({wrong: 1}), pulls.committed(wrong)):
                with pytest.raises(TypeError, match=said):
                    await waiting
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(MessageRefused, match=said):
                await producer.send(Message("T", b"x"), queue=wrong)
            with pytest.raises(MessageRefused, match=said):
                await producer.send_batch([Message("T", b"x")], queue=wrong)
        async with Admin(cluster.namesrv) as admin:
            with pytest.raises(TypeError, match="queues is a whole number, not '4'"):
                await admin.create_topic("T", queues="4")  # type: ignore[arg-type]


def test_retry_shows_its_seconds() -> None:
    assert repr(RetryLater(1.5)) == "RetryLater(1.5)"
    assert repr(RetryLater(30, "busy")) == "RetryLater(30, 'busy')"


def test_topic_has_one_handler() -> None:
    async def first(message: ReceivedMessage) -> None: ...

    async def second(message: ReceivedMessage) -> None: ...

    consumer = PushConsumer(NAMESRV, "G")
    consumer.on("A", "new")(first)
    with pytest.raises(ValueError, match=r"topic A already has a handler.*as 'a \|\| b'.*unsubscribe\('A'\) first"):
        consumer.on("A", "paid")(second)
    consumer.on("B", "paid")(second)
    consumer.unsubscribe("A")
    consumer.on("A", "new || paid")(second)
    threaded = SyncPushConsumer(NAMESRV, "G")
    threaded.on("A")(print)
    with pytest.raises(ValueError, match="topic A already has a handler"):
        threaded.on("A")(print)


@pytest.mark.parametrize("wrong", [Skip, Skip(), [Skip], 5, ()])
def test_policies_are_a_mapping(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"on_error has policies by exception, as \{Exception: Skip\(\)\}, and is not"):
        PushConsumer(NAMESRV, "G", on_error=wrong)


def test_consumer_for_threads_refuses_coroutine_functions() -> None:
    class Callables:
        async def __call__(self, *_: object) -> None: ...

    async def written(*_: object) -> None: ...

    consumer: Any = SyncPushConsumer(NAMESRV, "G")
    make_producer: Any = SyncTransactionProducer
    for function in (written, Callables(), partial(written)):
        with pytest.raises(TypeError, match=r"a handler of a synchronous client is a plain function \(def\)"):
            consumer.on("A")(function)
        with pytest.raises(TypeError, match=r"a handler of a synchronous client is a plain function \(def\)"):
            consumer.run(function)
        with pytest.raises(TypeError, match=r"middleware of a synchronous client is a plain function \(def\)"):
            consumer.use(function)
        with pytest.raises(TypeError, match=r"check of a synchronous producer is a plain function \(def\)"):
            make_producer(NAMESRV, "G", check=function)


@pytest.mark.parametrize(
    "make",
    [
        partial(make_admin, NAMESRV),
        partial(make_any, NAMESRV, "G"),
        partial(make_pull, NAMESRV, "G"),
        partial(PopConsumer, NAMESRV, "G", "T"),
        partial(Producer, NAMESRV),
        partial(SyncProducer, NAMESRV),
    ],
)
def test_event_functions_must_be_synchronous(make: Callable[..., object]) -> None:
    async def on_event(event: object) -> None: ...

    with pytest.raises(TypeError, match=r"on_event is a plain function \(def\)"):
        make(on_event=on_event)
    make(on_event=print)


async def test_handler_for_the_rest_is_a_coroutine_function() -> None:
    plain: Any = print
    async with FakeCluster.start(topics={"T": 1}) as cluster, PushConsumer(cluster.namesrv, "G") as consumer:
        consumer.subscribe("T")
        with pytest.raises(TypeError, match="async def"):
            await consumer.run(plain)


def test_tags_are_one_text() -> None:
    consumer: Any = PushConsumer(NAMESRV, "G")
    with pytest.raises(TypeError, match=r"'a \|\| b'.*not \['a', 'b'\]"):
        consumer.subscribe("T", ["a", "b"])
    with pytest.raises(SubscriptionError):
        consumer.subscribe("T", sql("a >"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"body": "text"}, "must be bytes, not str"),
        ({"tags": ["a"]}, "one tag"),
        ({"tags": "a || b"}, "one tag; 'a || b' is a filter for several"),
        ({"keys": "order-1"}, "in a list: 'order-1'"),
        ({"sharding_key": 7}, "a sharding key is a text, not 7"),
        ({"delay": dt.timedelta(seconds=1)}, "a number of seconds, not datetime.timedelta"),
        ({"properties": {"a": 1}}, "property 'a' has a value of type int; pass a str"),
        ({"properties": {1: "a"}}, "property 1 has a name of type int; pass a str"),
        ({"topic": b"T"}, "the topic name must be a str, not bytes"),
        ({"keys": iter(["order-1"])}, "in a list: <"),
        ({"keys": 7}, "in a list: 7"),
        ({"flag": "1"}, "a flag is a whole number of 32 bits, not '1'"),
        ({"flag": 2**31}, "a flag is a whole number of 32 bits, not 2147483648"),
        ({"delay_level": 1.5}, "delay level 1.5 is not a whole number from 1 to 64"),
    ],
)
def test_invalid_message_is_refused(fields: dict[str, Any], said: str) -> None:
    message = Message(**({"topic": "T", "body": b"x"} | fields))
    with pytest.raises(MessageRefused) as refused:
        make_ready(message, unique_key="U", born_timestamp_ms=1, compress=None, compress_bytes_min=0)
    assert said in str(refused.value)


async def test_producer_refuses_other_types_than_message() -> None:
    text: Any = "T"
    async with FakeCluster.start(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        for send in (producer.send, producer.submit, producer.send_oneway):
            with pytest.raises(MessageRefused, match=r"pass a Message\(topic, body\), not str"):
                await send(text)
        outcomes = await producer.send_many([Message("T", b"x"), text, Message("T", b"y")])
        assert [isinstance(outcome, MessageRefused) for outcome in outcomes] == [False, True, False]
        assert cluster.group.bodies("T") == [b"x", b"y"]


async def test_message_of_another_consumer_kind_cannot_be_acknowledged() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, "G", consume_from="first") as pulling,
        PopConsumer(cluster.namesrv, "P", "T", consume_from="first") as popping,
    ):
        await producer.send(Message("T", b"x"))
        await pulling.assign(await pulling.queues("T"))
        pulled: Any = (await pulling.poll(timeout=5))[0]
        wrong: Any = "T"
        with pytest.raises(TypeError, match=r"pass a queue, .* not 'T'"):
            await pulling.assign(wrong)
        with pytest.raises(TypeError, match="pass a message that this consumer has received, not 'T'"):
            await pulling.dead_letter(wrong, "bad")
        for call in (
            popping.ack,
            popping.nack,
            partial(popping.suspend, seconds=1),
            partial(popping.extend, seconds=1),
        ):
            with pytest.raises(TypeError, match="pass a message that this PopConsumer has received, not <ReceivedM"):
                await call(pulled)


async def test_unopened_client_raises_client_closed() -> None:
    consumer = PushConsumer(NAMESRV, "G")
    for call in (
        consumer.commit,
        consumer.run,
        consumer.wait_assigned,
        PullConsumer(NAMESRV, "G").poll,
        PopConsumer(NAMESRV, "G", "T").__anext__,
        Admin(NAMESRV).topics,
        partial(Producer(NAMESRV).send, Message("T", b"x")),
    ):
        with pytest.raises(ClientClosed, match=r"open it first: async with"):
            await call()


async def test_misspelled_position_is_refused() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, Admin(cluster.namesrv) as admin:
        queue = MessageQueue("T", "b-0", 0)
        assert await admin.offset(queue, "last") == 0
        for wrong in ("earliest", dt.datetime(2026, 1, 1)):  # noqa: DTZ001 - that is the mistake
            with pytest.raises(ValueError, match=r"neither 'first' nor 'last'|needs a time zone"):
                await admin.reset_group("G", "T", wrong)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=r"neither 'first' nor 'last'|needs a time zone"):
                await admin.offset(queue, wrong)  # type: ignore[arg-type]


async def test_repr_of_clients_names_group_and_address() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        async with Producer(cluster.namesrv, "P") as producer, PullConsumer(cluster.namesrv, "G") as pulling:
            assert repr(producer) == f"<Producer P at {cluster.namesrv}, 0 in flight>"
            await pulling.assign(await pulling.queues("T"))
            assert repr(pulling) == f"<PullConsumer G at {cluster.namesrv}, 1 queues>"
        assert repr(pulling).endswith("closed>")
        async with PushConsumer(cluster.namesrv, "G", consume_from="first", ordered=False) as consumer:
            consumer.subscribe("T")
            await consumer.wait_assigned()
            assert repr(consumer).startswith(f"<PushConsumer G of T at {cluster.namesrv}, ")
    assert repr(PopConsumer("a:1;b:2", "G", "T", ordered=True)) == "<PopConsumer G of T at a:1;b:2, closed>"
    assert repr(Admin(["a:1", "b:2"])) == "<Admin at a:1;b:2>"
    assert repr(SyncAdmin("a:1")) == "<SyncAdmin of <Admin at a:1>>"
    assert "<Producer raftmq_python" in repr(SyncProducer("a:1"))
    assert "<PushConsumer G of nothing" in repr(SyncPushConsumer("a:1", "G"))
    assert repr(Pending("X")) == "<Pending X on its way>"


def test_message_representation_does_not_contain_large_bodies() -> None:
    assert repr(Message("T", b"x", keys=["k"], delay_level=3)) == "Message('T', b'x', keys=['k'], delay_level=3)"
    assert repr(Message("T", bytes(4_000_000))) == "Message('T', <4000000 bytes>)"


def test_errors_name_their_response_codes() -> None:
    assert str(BrokerError(16, None, "a:1")) == "a:1 answered code 16 NO_PERMISSION: no remark"
    assert str(BrokerError(9999, "odd", "a:1")) == "a:1 answered code 9999: odd"
    assert str(RequestTimeout("a:1", 15, 3.0)) == "no answer from a:1 to request 15 UPDATE_CONSUMER_OFFSET within 3 s"
    assert str(SendRejected(13, "bad", None)).endswith("code 13 MESSAGE_ILLEGAL: bad")
