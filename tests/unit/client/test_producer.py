"""What a producer promises, against a cluster that misbehaves."""

from __future__ import annotations

import datetime as dt
import zlib
from typing import Any, cast

import anyio
import pytest

from mq.client import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    Message,
    MessageQueue,
    MessageRefused,
    NameServersUnavailable,
    Pending,
    Producer,
    ProducerBusy,
    SendOutcomeUnknown,
    SendRejected,
    SendResult,
    SendStatus,
    TopicNotFound,
)
from mq.client.produce.in_flight_limit import InFlightLimit
from mq.protocol.messages.compression import Codec
from tests.support.producing import ROUTE, SEND, producer_of
from tests.support.waiting import until
from tests.unit.client.fake_cluster import FakeCluster, Misdeed
from tests.unit.client.sending import sending

pytestmark = pytest.mark.anyio


async def test_send_stores_all_parts_of_the_message() -> None:
    async with sending(group="pg") as (cluster, producer):
        message = Message("T", b"hello", tags="A", keys=["k1", "k2"], properties={"colour": "red"}, flag=7)
        result = await producer.send(message)
        assert result.queue == MessageQueue("T", "b-0", 0)
        assert (result.queue_offset, result.status, result.attempts) == (0, SendStatus.OK, 1)
        assert not result.maybe_duplicated
        assert len(result.offset_message_id) == 32
        [stored] = cluster.group.queues["T", 0]
        assert stored.body == b"hello"
        assert stored.flag == 7
        properties = {name: stored.value_of(name) for name in ("TAGS", "KEYS", "colour", "UNIQ_KEY")}
        assert properties == {"TAGS": "A", "KEYS": "k1 k2", "colour": "red", "UNIQ_KEY": result.message_id}
        [request] = [each for each in cluster.leader.received if each.code == SEND]
        assert request.ext["a"] == "pg"


async def test_messages_rotate_over_all_queues_of_all_groups() -> None:
    async with sending(2, groups=2) as (_, producer):
        queues = [(await producer.send(Message("T", b"x"))).queue for _ in range(8)]
        assert sorted(set(queues)) == [MessageQueue("T", f"b-{group}", number) for group in (0, 1) for number in (0, 1)]
        assert all(queues.count(queue) == 2 for queue in queues)


async def test_message_ids_are_unique() -> None:
    async with sending() as (_, producer):
        outcomes = await producer.send_many(Message("T", b"x") for _ in range(300))
        assert len({each.message_id for each in outcomes if isinstance(each, SendResult)}) == 300


async def test_large_bodies_are_compressed_only_if_smaller() -> None:
    noise = bytes((i * i * 31 + i // 7 * 13) % 251 for i in range(64))
    async with sending() as (cluster, producer):
        for body in (b"a" * 4096, b"a" * 4095, zlib.compress(noise * 1)):
            await producer.send(Message("T", body))
        first, second, third = cluster.group.queues["T", 0]
        assert (first.sys_flag, zlib.decompress(first.body)) == (0x301, b"a" * 4096)
        assert (second.sys_flag, len(second.body)) == (0, 4095)
        assert third.sys_flag == 0


@pytest.mark.parametrize(("codec", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
async def test_bodies_are_compressed_as_chosen(codec: Codec, flag: int) -> None:
    async with sending(compress=codec, compress_bytes_min=100) as (cluster, producer):
        await producer.send(Message("T", b"a" * 100))
        [stored] = cluster.group.queues["T", 0]
        assert (stored.sys_flag, len(stored.body) < 100) == (flag, True)
        assert cluster.group.bodies("T") == [b"a" * 100]


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(ValueError, match="gzip"):
        Producer("127.0.0.1:9876", compress=cast("Codec", "gzip"))


async def test_compression_can_be_off() -> None:
    async with sending(compress=None) as (cluster, producer):
        await producer.send(Message("T", b"a" * 5000))
        assert cluster.group.queues["T", 0][0].sys_flag == 0


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b""),
        Message("T", b"x" * (4 * 1024 * 1024 + 1)),
        Message("not a topic", b"x"),
        Message("", b"x"),
        Message("T" * 128, b"x"),
        Message("T", b"x", properties={"UNIQ_KEY": "mine"}),
        Message("T", b"x", properties={"a": "b\x02c"}),
        Message("T", b"x", properties={"a": "v" * 32_768}),
        Message("T", b"x", tags=""),
        Message("T", b"x", tags="A\x01B"),
        Message("T", b"x", keys=["two words"]),
        Message("T", b"x", keys="word"),
        Message("T", b"x", properties={"a": "\ud800"}),
        Message("T", cast("bytes", "text")),
        Message("T", b"x", delay_level=0),
        Message("T", b"x", delay_level=65),
        Message("T", b"x", delay=-1),
        Message("T", b"x", delay=float("nan")),
        Message("T", b"x", delay=float("inf")),
        Message("T", b"x", deliver_at=dt.datetime(2030, 1, 1)),  # noqa: DTZ001 - refused
        Message("T", b"x", delay=1, deliver_at=5),
        Message("T", b"x", delay_level=1, delay=1),
        Message("T", b"x", deliver_at=1_800_000_000),
        Message("T", b"x", deliver_at=cast("int", 1_800_000_000_000.5)),
        Message("T", b"x", delay=cast("float", dt.timedelta(seconds=1))),
        Message("T", b"x", tags=cast("str", ["A"])),
        Message("T", b"x", keys=cast("list[str]", [1])),
        Message("T", b"x", properties=cast("dict[str, str]", {"a": 1})),
    ],
)
async def test_producer_refuses_invalid_messages_before_sending(message: Message) -> None:
    async with sending() as (cluster, producer):
        with pytest.raises(MessageRefused) as refused:
            await producer.send(message)
        assert refused.value.stored == "no"
        assert cluster.leader.count(SEND) == 0


async def test_queue_of_another_topic_is_refused() -> None:
    async with sending() as (_, producer):
        with pytest.raises(MessageRefused, match="cannot go to a queue of U"):
            await producer.send(Message("T", b"x"), queue=MessageQueue("U", "b-0", 0))


# Routes.


async def test_unknown_topic_is_raised_after_a_few_route_lookups() -> None:
    async with sending() as (_, producer):
        with pytest.raises(TopicNotFound):
            await producer.send(Message("Other", b"x"))


async def test_unknown_topic_is_created_from_the_template() -> None:
    async with FakeCluster.start(topics={"TBW102": 8}) as cluster, producer_of(cluster) as producer:
        queues = {(await producer.send(Message("New", b"x"))).queue.queue_id for _ in range(8)}
        assert queues == {0, 1, 2, 3}
        assert cluster.group.topics["New"] == 4


async def test_auto_creation_can_be_off() -> None:
    async with (
        FakeCluster.start(topics={"TBW102": 8}) as cluster,
        producer_of(cluster, auto_create_topics=False) as producer,
    ):
        with pytest.raises(TopicNotFound):
            await producer.send(Message("New", b"x"))


async def test_dead_name_server_is_passed_over() -> None:
    async with FakeCluster.start(name_servers=2, topics={"T": 1}) as cluster:
        await cluster.name_servers[0].stop()
        for _ in range(4):
            async with producer_of(cluster) as producer:
                await producer.send(Message("T", b"x"))


async def test_send_without_name_servers_raises_name_servers_unavailable(cluster: FakeCluster) -> None:
    [server] = cluster.name_servers
    await server.stop()
    async with Producer(server.address, timeout=0.2) as producer:
        with pytest.raises(NameServersUnavailable) as failed:
            await producer.send(Message("T", b"x"))
        assert list(failed.value.reasons) == [server.address]


async def test_broker_given_as_a_name_server_is_identified(cluster: FakeCluster) -> None:
    broker = cluster.leader.address
    async with Producer(broker, timeout=0.5) as producer:
        with pytest.raises(NameServersUnavailable, match="not a name server: it does not support request 105"):
            await producer.send(Message("T", b"x"))
    for _ in range(4):  # whichever it asks first
        async with Producer(f"{broker};{cluster.namesrv}", timeout=60.0) as producer:
            await producer.send(Message("T", b"x"))


async def test_invalid_time_limit_is_refused() -> None:
    async with sending() as (_, producer):
        for timeout in (0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"timeout is {timeout}; it must be positive"):
                await producer.send(Message("T", b"x"), timeout=timeout)


async def test_unreachable_leader_is_reported() -> None:
    async with sending(timeout=1) as (cluster, producer):
        await cluster.leader.stop()  # the name server does not know
        with pytest.raises(ConnectFailed) as failed:
            await producer.send(Message("T", b"x"))
        assert failed.value.address == cluster.leader.address


async def test_other_groups_serve_while_one_lacks_a_leader() -> None:
    async with sending(2, groups=2) as (cluster, producer):
        cluster.groups["b-0"].leader = None
        results = [await producer.send(Message("T", b"x")) for _ in range(6)]
        assert {result.queue.broker_name for result in results} == {"b-1"}


# Fixed queues.


async def test_sharding_key_fixes_the_queue() -> None:
    async with sending(4, groups=2) as (_, producer):
        queues = {
            key: {(await producer.send(Message("T", b"x", sharding_key=key))).queue for _ in range(3)}
            for key in ("a", "b", "c", "d", "e")
        }
        assert all(len(each) == 1 for each in queues.values())
        assert len({next(iter(each)) for each in queues.values()}) > 1


async def test_fixed_queue_waits_for_its_leader_instead_of_hopping() -> None:
    async with sending(groups=2) as (cluster, producer):
        queue = MessageQueue("T", "b-0", 0)
        await producer.send(Message("T", b"x"), queue=queue)
        cluster.group.leader = None
        pending = await producer.submit(Message("T", b"y"), queue=queue)
        [name_server] = cluster.name_servers
        asked = name_server.count(ROUTE)
        await until(lambda: name_server.count(ROUTE) >= asked + 2)  # in vain
        assert not pending.done
        cluster.group.leader = cluster.group.replicas[0]
        assert (await pending).queue == queue


# Many in flight.


BAD_BATCHES: list[tuple[str, list[Message], str]] = [
    ("empty", [], "at least one message"),
    ("topics", [Message("T", b"x"), Message("U", b"x")], "one topic, not to 2: T, U"),
    (
        "sharding keys",
        [Message("T", b"x", sharding_key="a"), Message("T", b"x")],
        "one sharding key, since they go to one queue; these have 2",
    ),
    ("delayed", [Message("T", b"x"), Message("T", b"x", delay_level=1)], "cannot be delayed"),
    ("timed", [Message("T", b"x"), Message("T", b"x", delay=1)], "cannot be delayed"),
    ("empty body", [Message("T", b"x"), Message("T", b"")], "the body has 0 bytes"),
    ("too large", [Message("T", bytes(3_000_000))] * 2, "4194304 are allowed"),
]


@pytest.mark.parametrize(("batch", "why"), [row[1:] for row in BAD_BATCHES], ids=[row[0] for row in BAD_BATCHES])
async def test_impossible_batch_is_not_sent(batch: list[Message], why: str) -> None:
    async with sending() as (_, producer):
        with pytest.raises(MessageRefused, match=why):
            await producer.send_batch(batch)
        assert producer.in_flight == 0


async def test_batch_has_no_property_of_the_system() -> None:
    async with sending() as (_, producer):
        with pytest.raises(MessageRefused, match="property 'WAIT' is reserved"):
            await producer.send_batch([Message("T", b"x")], properties={"WAIT": "false"})


async def test_send_many_returns_outcomes_in_order_with_failures() -> None:
    async with sending() as (cluster, producer):
        messages = [Message("T", b"%d" % number) for number in range(50)]
        messages[10] = Message("T", b"")
        outcomes = await producer.send_many(messages)
        assert isinstance(outcomes[10], MessageRefused)
        results = [each for each in outcomes if isinstance(each, SendResult)]
        assert [result.queue_offset for result in results] == list(range(49))
        assert cluster.group.bodies("T") == [message.body for message in messages if message.body]


async def test_callbacks_get_every_outcome_once() -> None:
    async with sending(retries=0) as (cluster, producer):
        outcomes: list[SendResult | ClientError] = []
        cluster.leader.misdeeds = [Misdeed("refuse", code=13)]
        ids = [producer.send_nowait(Message("T", b"x"), outcomes.append) for _ in range(10)]
        assert outcomes == []
        await producer.flush()
        assert len(outcomes) == 10
        assert isinstance(outcomes[0], SendRejected)
        assert [each.message_id for each in outcomes if isinstance(each, SendResult)] == ids[1:]


async def test_failing_callback_affects_no_other_send() -> None:
    def fail(outcome: SendResult | ClientError) -> None:
        raise ValueError("a bug of the application")

    async with sending() as (_, producer):
        producer.send_nowait(Message("T", b"x"), fail)
        assert (await producer.send(Message("T", b"y"))).queue_offset == 1


async def test_in_flight_is_bounded() -> None:
    async with sending(in_flight_max=3, timeout=1) as (cluster, producer):
        cluster.leader.misdeeds = [Misdeed("silence")] * 3
        outcomes: list[SendResult | ClientError] = []
        for _ in range(3):
            producer.send_nowait(Message("T", b"x"), outcomes.append)
        with pytest.raises(ProducerBusy) as busy:
            producer.send_nowait(Message("T", b"x"), outcomes.append)
        assert busy.value.limit == 3
        pending = await producer.submit(Message("T", b"y"))  # waits for the first of the three to time out
        assert outcomes
        await pending


async def test_waiting_senders_are_admitted_one_by_one_in_order() -> None:
    """Each completed message used to wake all of them, in any order: with thousands, nothing else was done any more."""
    in_flight, woken = 3, list[int]()
    limit = InFlightLimit(3, lambda: in_flight)

    async def send(number: int) -> None:
        nonlocal in_flight
        await limit.wait()
        in_flight += 1
        woken.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(send, number)
            await anyio.wait_all_tasks_blocked()
        assert not limit.has_room
        for number in range(50):
            in_flight -= 1
            limit.wake_waiters()
            assert not limit.has_room, "nobody gets ahead of those who wait"
            await anyio.wait_all_tasks_blocked()
            assert woken == list(range(number + 1))
    in_flight = 2
    assert limit.has_room


async def test_cancelled_or_refused_sender_passes_its_slot_to_the_next() -> None:
    in_flight, woken = 1, list[str]()
    limit = InFlightLimit(1, lambda: in_flight)

    async def send(name: str) -> None:
        await limit.wait()
        woken.append(name)
        limit.wake_waiters()  # it starts no message

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as cancelled:
        cancelled.start_soon(send, "cancelled")
        await until(lambda: limit.waiting_count == 1)
        for name in ("one", "two"):
            tasks.start_soon(send, name)
            await anyio.wait_all_tasks_blocked()
        in_flight = 0
        limit.wake_waiters()
        cancelled.cancel_scope.cancel()
    assert woken[-2:] == ["one", "two"]


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.submit(Message("T", b"x"), timeout=-1),
        lambda producer: producer.send_batch([Message("T", b"x")], queue=1),
        lambda producer: producer.send_batch([Message("T", b"x")], timeout=-1),
        lambda producer: producer.send(Message("T", bytes(5 * 1024 * 1024))),
    ],
)
async def test_wrong_call_leaves_its_room_to_the_next(send: Any) -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, in_flight_max=1, timeout=1, compress=None) as producer,
        anyio.create_task_group() as tasks,
    ):
        cluster.leader.misdeeds = [Misdeed("silence")]
        producer.send_nowait(Message("T", b"x"), lambda outcome: None)

        async def wrong() -> None:
            with pytest.raises((ValueError, MessageRefused)):
                await send(producer)

        tasks.start_soon(wrong)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            await producer.send(Message("T", b"y"))


async def test_oneway_messages_arrive_without_answers() -> None:
    async with sending() as (cluster, producer):
        await producer.send_oneway(Message("T", b"x"))
        await producer.send(Message("T", b"y"))
        assert cluster.group.bodies("T") == [b"x", b"y"]


# Life.


async def test_leaving_the_block_waits_for_sends_in_flight(cluster: FakeCluster) -> None:
    async with producer_of(cluster) as producer:
        pending = [await producer.submit(Message("T", b"x")) for _ in range(10)]
    assert all(each.done for each in pending)
    assert len(cluster.group.bodies("T")) == 10


async def test_exception_in_the_block_fails_sends_in_flight(cluster: FakeCluster) -> None:
    pending: list[Pending] = []

    async def fail_with_messages_in_flight() -> None:
        async with producer_of(cluster) as producer:
            await producer.send(Message("T", b"warm up"))
            cluster.leader.misdeeds = [Misdeed("silence")]
            pending.append(await producer.submit(Message("T", b"x")))
            pending.append(await producer.submit(Message("Unknown", b"x")))
            raise LookupError("mine")

    with pytest.raises(LookupError, match=r"^mine$"):
        await fail_with_messages_in_flight()
    sent, unsent = pending
    assert isinstance(sent.outcome, SendOutcomeUnknown)
    assert isinstance(unsent.outcome, ClientClosed)


async def test_producer_must_be_entered_and_not_left() -> None:
    producer = Producer("127.0.0.1:9")
    with pytest.raises(ClientClosed):
        await producer.send(Message("T", b"x"))
    async with producer:
        pass
    with pytest.raises(ClientClosed):
        await producer.send(Message("T", b"x"))


async def test_producer_continues_after_a_cancelled_send() -> None:
    async with sending() as (cluster, producer):
        await producer.send(Message("T", b"warm up"))
        cluster.leader.misdeeds = [Misdeed("silence")]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send, Message("T", b"x"))
                await until(lambda: not cluster.leader.misdeeds)
                scope.cancel()
        assert producer.in_flight == 0
        assert (await producer.send(Message("T", b"y"))).queue_offset == 1


async def test_closing_producer_unregisters(cluster: FakeCluster) -> None:
    async with producer_of(cluster, group="pg") as producer:
        await producer.send(Message("T", b"x"))
    [goodbye] = [request for request in cluster.leader.received if request.code == 35]
    assert goodbye.ext == {"clientID": producer.client_id, "producerGroup": "pg"}


async def test_first_send_may_finish_before_its_deadline_watch() -> None:
    async with sending() as (_, producer):
        await anyio.wait_all_tasks_blocked()
        pipeline = producer._open_pipeline()
        pending = Pending()
        outgoing, _ = producer._make_ready(Message("T", b"x"), None)
        number = pipeline.start(outgoing, pending.complete, timeout=60.0)
        pipeline.abandon(number)
        await anyio.wait_all_tasks_blocked()
        assert (await producer.send(Message("T", b"y"))).queue_offset >= 0


async def test_cancelled_producer_unregisters(cluster: FakeCluster) -> None:
    pending: list[Pending] = []

    async def produce() -> None:
        async with producer_of(cluster, group="pg") as producer:
            await producer.send(Message("T", b"x"))
            cluster.leader.misdeeds = [Misdeed("silence")]
            pending.append(await producer.submit(Message("T", b"y")))
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(produce)
        await until(lambda: bool(pending) and not cluster.leader.misdeeds)
        tasks.cancel_scope.cancel()
    assert isinstance(pending[0].outcome, SendOutcomeUnknown)
    assert cluster.leader.count(35) == 1
