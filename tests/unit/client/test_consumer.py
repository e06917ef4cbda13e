"""What a push consumer promises: at least once, in order, nothing skipped, no more than it can hold."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import anyio
import pytest

from mq.client import (
    ClientClosed,
    DeliveryFinished,
    FlowLimits,
    Message,
    Producer,
    PullSettings,
    PushConsumer,
    ReceivedMessage,
    RemotingSettings,
)
from mq.client.limits import ClientLimits
from tests.support.waiting import until
from tests.unit.client.consuming import (
    IMPATIENT,
    consumer_of,
    consuming,
    fill,
    filled,
    offset_of,
    running,
    stored,
    take,
)
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

PULL = 11
SEND_BACK = 36


# Receiving.


async def test_round_trip_from_producer_to_consumer() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv) as producer,
        consumer_of(cluster) as consumer,
    ):
        consumer.subscribe("T")
        sent = await producer.send(
            Message("T", b"b" * 5000, tags="A", keys=["k1", "k2"], properties={"colour": "red"}, sharding_key="s")
        )
        [message] = await take(consumer, 1)
        assert (message.topic, message.body, message.tags, message.keys) == ("T", b"b" * 5000, "A", ("k1", "k2"))
        assert (message.properties["colour"], message.sharding_key) == ("red", "s")
        assert (message.queue, message.queue_offset) == (sent.queue, sent.queue_offset)
        assert message.message_id == sent.message_id
        assert message.stored_at - message.born_at == dt.timedelta(milliseconds=1)
        assert (message.attempt, message.reconsume_times) == (1, 0)


async def test_consumer_without_a_name_server_logs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        [server] = cluster.name_servers
        await server.stop()
        with caplog.at_level("INFO", "mq.client"):
            async with PushConsumer(server.address, "G") as consumer:
                consumer.subscribe("T")
                # Later attempts fail as well, and are told to those who want to know everything.
                await until(lambda: any("rebalance_postponed" in record.getMessage() for record in caplog.records))
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "cannot_consume" in warning.getMessage()
    assert server.address in warning.getMessage()


async def test_missing_name_server_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """It was reported for each topic, and once more by the wait of each."""
    async with FakeCluster.start(topics={"T": 1, "U": 1}) as cluster:
        [server] = cluster.name_servers
        await server.stop()
        with caplog.at_level("INFO", "mq.client"):
            remoting = RemotingSettings(limits=ClientLimits(warn_after_seconds=0.0))
            async with PushConsumer(server.address, "G", remoting=remoting) as consumer:
                consumer.subscribe("T")
                consumer.subscribe("U")
                await until(lambda: caplog.text.count("rebalance_postponed") >= 9, seconds=60)
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "cannot_consume" in warning.getMessage()


async def test_consumer_of_a_missing_topic_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It used to wait without a word, also for a misspelled topic."""
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        consumer_of(cluster, remoting=IMPATIENT) as consumer,
    ):
        consumer.subscribe("Tt")
        await until(lambda: any("cannot_consume" in record.getMessage() for record in caplog.records))
    assert "topic Tt does not exist" in caplog.text


async def test_consumer_without_a_subscription_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster, remoting=IMPATIENT):
        await until(lambda: "no_subscription" in caplog.text)


async def test_waiting_consumer_gets_a_message_by_long_poll() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv) as producer,
        consumer_of(cluster) as consumer,
    ):
        consumer.subscribe("T")
        await until(lambda: cluster.leader.count(PULL) == 1)
        await producer.send(Message("T", b"x"))
        await take(consumer, 1)
        assert cluster.leader.count(PULL) <= 3


async def test_messages_of_a_queue_come_in_order_through_many_pulls() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        bodies = fill(cluster, 200)
        consumer.subscribe("T")
        assert [message.body for message in await take(consumer, 200)] == bodies


DAMAGES = (
    "body",
    "size",
    "magic",
    "topic",
    "queue",
    "offset",
    "order",
    "nextBeginOffset",
    "suggestWhichBrokerId",
)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("damages", DAMAGES)
async def test_unreadable_pull_answer_is_requested_from_another_replica(
    replicas: int, damages: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=3) as cluster, consumer_of(cluster) as consumer:
        for replica in cluster.group.replicas[:replicas]:
            replica.damages = damages
        bodies = fill(cluster, 40)
        consumer.subscribe("T")
        assert [message.body for message in await take(consumer, 40)] == bodies
    reported = [record.getMessage() for record in caplog.records if "replica_damaged" in record.getMessage()]
    assert any(cluster.leader.address in message for message in reported)


async def test_waiting_pull_without_messages_is_repeated() -> None:
    async with consuming(pull=PullSettings(hold_seconds=0.06)) as (cluster, consumer):
        await until(lambda: cluster.leader.count(PULL) >= 3)
        fill(cluster, 1)
        assert [message.body for message in await take(consumer, 1)] == [b"000"]


async def test_only_subscribed_tags_are_received_even_if_hash_codes_collide() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        cluster.colliding_tags = {"C"}
        for body, tags in [(b"1", "A"), (b"2", "B"), (b"3", "C"), (b"4", None), (b"5", "B")]:
            cluster.group.append("T", 0, stored(body, tags))
        consumer.subscribe("T", "A || B")
        assert [message.body for message in await take(consumer, 3)] == [b"1", b"2", b"5"]
        pull = next(request for request in cluster.leader.received if request.code == PULL)
        assert pull.ext["subscription"] == "A || B"


async def test_new_group_may_begin_at_the_end() -> None:
    async with consuming(5, consume_from="last") as (cluster, consumer):
        await until(lambda: cluster.leader.count(PULL) > 0)
        cluster.group.append("T", 0, stored(b"new"))
        assert [message.body for message in await take(consumer, 1)] == [b"new"]


async def test_new_group_begins_at_the_first_message_kept() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, 5)
        cluster.group.min_offsets["T", 0] = 3
        consumer.subscribe("T")
        assert [message.queue_offset for message in await take(consumer, 2)] == [3, 4]


async def test_new_group_may_begin_at_a_time(cluster: FakeCluster) -> None:
    for seconds in range(5):
        message = stored(b"%d" % seconds)
        message.born_timestamp_ms = seconds * 1000
        cluster.group.append("T", 0, message)
    begin = dt.datetime.fromtimestamp(3, tz=dt.UTC)
    async with consumer_of(cluster, consume_from=begin) as consumer:
        consumer.subscribe("T")
        assert [message.body for message in await take(consumer, 2)] == [b"3", b"4"]


async def test_offset_that_cannot_be_read_is_never_taken_for_none() -> None:
    """A broker in trouble answers an error; jumping to the end then would skip everything in between."""
    async with filled(5) as cluster:
        cluster.group.offsets["cg", "T", 0] = 2
        cluster.leader.fail_codes[14] = 1
        async with consumer_of(cluster, consume_from="last") as consumer:
            consumer.subscribe("T")
            await until(lambda: cluster.leader.count(14) >= 2)
            assert not consumer.assignment
            del cluster.leader.fail_codes[14]
            assert [message.queue_offset for message in await take(consumer, 1)] == [2]


# Handlers.


async def test_handlers_get_their_topics_and_offsets_are_stored_on_leaving() -> None:
    async with FakeCluster.start(topics={"T": 1, "U": 1}) as cluster:
        fill(cluster, 10)
        cluster.group.append("U", 0, stored(b"u"))
        consumer = consumer_of(cluster)
        seen: dict[str, list[bytes]] = {"T": [], "U": []}

        @consumer.on("T")
        async def on_t(message: ReceivedMessage) -> None:
            seen["T"].append(message.body)

        @consumer.on("U")
        async def on_u(message: ReceivedMessage) -> None:
            seen["U"].append(message.body)

        async with running(consumer):
            await until(lambda: len(seen["T"]) == 10 and len(seen["U"]) == 1)
        assert seen["T"] == [b"%03d" % number for number in range(10)]
        assert offset_of(cluster) == 10
        assert cluster.group.offsets["cg", "U", 0] == 1


async def test_consumer_begins_at_the_committed_offset_of_its_group(cluster: FakeCluster) -> None:
    bodies = fill(cluster, 10)
    received: list[bytes] = []
    for last in (4, 9):
        async with consumer_of(cluster) as consumer:
            consumer.subscribe("T")
            async for message in consumer:
                if message.queue_offset > last:
                    break  # not acknowledged
                received.append(message.body)
                if message.queue_offset == 9:
                    break
    assert received == bodies
    assert offset_of(cluster) == 9


async def test_batch_handler_gets_lists_of_one_queue() -> None:
    async with filled(100, queues=2) as cluster:
        consumer = consumer_of(cluster)
        batches: list[Sequence[ReceivedMessage]] = []

        @consumer.on("T", batch=10)
        async def handle(messages: Sequence[ReceivedMessage]) -> None:
            batches.append(messages)

        async with running(consumer):
            await until(lambda: sum(map(len, batches)) == 100)
        assert max(map(len, batches)) > 1
        assert all(len(batch) <= 10 and len({message.queue for message in batch}) == 1 for batch in batches)
        assert (offset_of(cluster, 0), offset_of(cluster, 1)) == (50, 50)


async def test_failing_message_holds_up_its_ordered_queue_and_no_other() -> None:
    async with filled(10, queues=2) as cluster:
        consumer = consumer_of(cluster)
        seen: list[tuple[bytes, int]] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            seen.append((message.body, message.attempt))
            if message.body == b"002" and (message.attempt < 3 or len(seen) < 8):
                raise ValueError("not yet")

        async with running(consumer):
            await until(lambda: (b"008", 1) in seen)
        even = [body for body, _ in seen if int(body) % 2 == 0]
        assert even[0] == b"000"
        assert even[-3:] == [b"004", b"006", b"008"]
        assert set(even[1:-3]) == {b"002"}
        attempts = [attempt for body, attempt in seen if body == b"002"]
        assert attempts == list(range(1, len(attempts) + 1))
        assert len(attempts) >= 3


async def test_offset_does_not_pass_a_message_that_keeps_failing() -> None:
    async with filled(6) as cluster:
        cluster.leader.fail_codes[SEND_BACK] = 1
        consumer = consumer_of(cluster, ordered=False, commit_seconds=0.01)
        seen: set[bytes] = set()

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"002":
                raise ValueError("never")
            seen.add(message.body)

        async with running(consumer):
            await until(lambda: len(seen) == 5 and offset_of(cluster) == 2)
        assert offset_of(cluster) == 2


async def test_unordered_consumption_handles_messages_of_one_queue_at_once() -> None:
    async with filled(4) as cluster:
        consumer = consumer_of(cluster, ordered=False, concurrency=4)
        together = anyio.Event()
        at_work = 0

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            nonlocal at_work
            at_work += 1
            if at_work == 4:
                together.set()
            await together.wait()

        async with running(consumer):
            with anyio.fail_after(60):
                await together.wait()


async def test_concurrency_bounds_running_handlers() -> None:
    async with filled(40, queues=8) as cluster:
        consumer = consumer_of(cluster, concurrency=3)
        at_work = most = done = 0
        three = anyio.Event()

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            nonlocal at_work, most, done
            at_work += 1
            most = max(most, at_work)
            if at_work == 3:
                three.set()
            await three.wait()
            await anyio.sleep(0.001)  # a fourth would begin now
            at_work -= 1
            done += 1

        async with running(consumer):
            await until(lambda: done == 40)
        assert most == 3


async def test_messages_left_unfinished_by_a_stopped_run_are_redelivered() -> None:
    async with consuming(3) as (_, consumer):
        seen: list[bytes] = []

        async def hang_at_001(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"001":
                consumer.stop()
                await anyio.sleep_forever()

        async def note(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"002":
                consumer.stop()

        with anyio.fail_after(60):
            await consumer.run(hang_at_001)
            await consumer.run(note)
        assert seen == [b"000", b"001", b"001", b"002"]


async def test_run_needs_a_handler_for_every_topic() -> None:
    async with consuming() as (_, consumer):
        with pytest.raises(ValueError, match="no handler for topics"):
            await consumer.run()


@pytest.mark.parametrize("is_run", [True, False])
async def test_consumer_warns_of_handlers_without_run(monkeypatch: pytest.MonkeyPatch, is_run: bool) -> None:
    warnings: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        "mq.client.consume.handlers.log.warning", lambda event, *, topics, **_: warnings.append((event, topics))
    )
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        remoting = RemotingSettings(limits=ClientLimits(remind_seconds=0.1))
        consumer = consumer_of(cluster, remoting=remoting)

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None: ...

        if is_run:
            async with running(consumer):
                await anyio.sleep(0.2)  # a warning would come by then
        else:
            async with consumer:
                await until(lambda: bool(warnings))
    assert warnings == ([] if is_run else [("handlers_without_run", ["T"])])


# Streams.


async def test_deliveries_are_acknowledged_in_any_order() -> None:
    async with consuming(3) as (cluster, consumer):
        stream = consumer.deliveries()
        first, second, third = [await anext(stream) for _ in range(3)]
        queue = first.message.queue
        third.ack()
        second.ack()
        assert consumer.positions[queue] == 0
        first.ack()
        assert consumer.positions[queue] == 3
        await consumer.commit()
        assert offset_of(cluster) == 3


async def test_delivery_as_context_manager_acknowledges_or_retries() -> None:
    async with consuming(2) as (_, consumer):
        stream = consumer.deliveries()
        with pytest.raises(ValueError, match="mine"), await anext(stream) as message:
            raise ValueError("mine")
        with await anext(stream) as second:
            assert second.queue_offset == 1
        with anyio.fail_after(60):
            retried = await anext(stream)
        with retried as again:
            assert (again is message, again.attempt) == (True, 2)
        assert consumer.positions[message.queue] == 2


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("first", ["ack", "nack"])
@pytest.mark.parametrize("second", ["ack", "nack"])
async def test_delivery_is_finished_once(exclusive: bool, first: str, second: str) -> None:
    async with consuming(2, exclusive=exclusive) as (_, consumer):
        stream = consumer.deliveries()
        delivery = await anext(stream)
        finished = [delivery.finished]
        getattr(delivery, first)()
        finished.append(delivery.finished)
        assert finished == [False, True]
        with pytest.raises(DeliveryFinished) as raised:
            getattr(delivery, second)()
        assert raised.value.message is delivery.message
        assert (raised.value.outcome, raised.value.stored) == ("acknowledged" if first == "ack" else "given back", "no")
        # The first call counts, for the group's offset and for what comes next.
        assert consumer.positions[delivery.message.queue] == (1 if first == "ack" else 0)
        with anyio.fail_after(60):
            following = [(await anext(stream)).message.queue_offset]
            if not exclusive and first == "nack":
                following.append((await anext(stream)).message.queue_offset)
        assert sorted(following) == {("ack", False): [1], ("ack", True): [1], ("nack", False): [0, 1]}.get(
            (first, exclusive), [0]
        )


async def test_delivery_finished_within_its_block_is_not_finished_twice() -> None:
    async with consuming(1) as (_, consumer):
        delivery = await anext(consumer.deliveries())
        with delivery as message:
            delivery.ack()
        assert consumer.positions[message.queue] == 1


async def test_acknowledging_after_the_consumer_is_closed_changes_nothing(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        fill(cluster, 1)
        consumer.subscribe("T")
        delivery = await anext(consumer.deliveries())
    delivery.ack()
    assert cluster.group.offsets.get(("cg", "T", 0), 0) == 0


async def test_delivery_may_be_delayed_explicitly() -> None:
    async with consuming(1) as (_, consumer):
        stream = consumer.deliveries()
        (await anext(stream)).nack(0.05)
        begun = anyio.current_time()
        with anyio.fail_after(60):
            await anext(stream)
        assert anyio.current_time() - begun >= 0.045


async def test_consumer_must_be_entered() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        PushConsumer("127.0.0.1:9", "cg", consume_from=dt.datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
    with pytest.raises(ClientClosed):
        aiter(PushConsumer("127.0.0.1:9", "cg"))


# Flow control.


async def test_answer_inflating_too_much_is_read_in_parts() -> None:
    pull = PullSettings(inflated_bytes_max=1000, limits=FlowLimits(bytes_max=1))
    async with FakeCluster.start(topics={"T": 1}) as cluster, consumer_of(cluster, pull=pull) as consumer:
        bodies = [b"%d" % number * 600 for number in range(6)]
        for body in bodies:
            cluster.group.append("T", 0, stored(body))
        consumer.subscribe("T")
        stream = consumer.deliveries()
        held = [await anext(stream) for _ in range(2)]
        with anyio.move_on_after(0.05) as scope:
            await anext(stream)
        assert scope.cancelled_caught, "more than a limit's worth and one was unfolded"
        for delivery in held:
            delivery.ack()
        assert [message.body for message in await take(consumer, 4)] == bodies[2:]


async def test_pull_asks_for_at_most_count_max_messages() -> None:
    pull = PullSettings(limits=FlowLimits(count_max=20))
    async with consuming(100, pull=pull) as (_, consumer):
        stream = consumer.deliveries()
        held = [await anext(stream) for _ in range(20)]
        with anyio.move_on_after(0.05) as scope:
            await anext(stream)
        assert scope.cancelled_caught, "whoever keeps few messages got a whole pull of them"
        for delivery in held:
            delivery.ack()
        assert len(await take(consumer, 80)) == 80


async def test_pulling_pauses_while_the_cache_is_full() -> None:
    pull = PullSettings(batch_max=10, limits=FlowLimits(count_max=20))
    async with consuming(100, pull=pull) as (cluster, consumer):
        await until(lambda: cluster.leader.count(PULL) == 2)
        stream = consumer.deliveries()
        held = [await anext(stream) for _ in range(20)]
        assert cluster.leader.count(PULL) == 2
        with anyio.move_on_after(0.05) as scope:
            await anext(stream)
        assert scope.cancelled_caught
        held[0].ack()
        await until(lambda: cluster.leader.count(PULL) == 3)
