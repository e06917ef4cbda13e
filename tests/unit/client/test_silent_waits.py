"""Servers that are mute or not what they should be: an error in time, or a warning that says what is waited for."""

from __future__ import annotations

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from mq.client import (
    Admin,
    ClientError,
    ClientEvent,
    FlowLimits,
    Message,
    NameServersUnavailable,
    PopConsumer,
    Producer,
    PullConsumer,
    PullSettings,
    ReceivedMessage,
    RemotingSettings,
    RetryLater,
    TransactionProducer,
)
from mq.client.limits import TEST_MIN
from tests.support.waiting import until
from tests.unit.client.consuming import IMPATIENT, consumer_of, filled, running, stored
from tests.unit.client.fake_cluster import FakeCluster, Misdeed
from tests.unit.client.strange_servers import failures_at, strange_server

pytestmark = pytest.mark.anyio
QUICK = RemotingSettings(connect_seconds=0.3, request_seconds=0.3, silence_seconds=0.1, limits=TEST_MIN)


ANSWERS = {
    "mute": None,
    "closing": b"",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "tls": b"\x15\x03\x01\x00\x02\x02\x46" * 9,
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_calls_to_a_server_of_another_protocol_fail_in_time(kind: str) -> None:
    async with strange_server(ANSWERS[kind]) as address:
        with anyio.fail_after(60):
            assert {error.stored for error in await failures_at(address, QUICK)} == {"no"}


async def test_many_callers_wait_for_a_mute_server_once() -> None:
    async with strange_server(None) as address, Admin(address, remoting=QUICK) as admin:
        errors: list[ClientError] = []

        async def ask() -> None:
            try:
                await admin.route("T")
            except NameServersUnavailable as error:
                errors.append(error)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(ask)
        assert len(errors) == 100
        assert all(str(error) == str(errors[0]) for error in errors)


@pytest.mark.parametrize("missing", ["name server", "broker", "broker later"])
async def test_stuck_push_consumer_logs_the_reason(caplog: pytest.LogCaptureFixture, missing: str) -> None:
    async with filled(1) as cluster:
        cluster.name_servers[0].mute = missing == "name server"
        cluster.leader.mute = missing == "broker"
        if missing == "broker later":
            cluster.leader.fail_codes = {11: 14}
        async with consumer_of(cluster, remoting=QUICK) as consumer:
            consumer.subscribe("T")
            event = "cannot_pull" if missing == "broker later" else "cannot_consume"
            await until(lambda: event in caplog.text, seconds=60)


async def test_unreachable_transaction_producer_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        strange_server(None) as address,
        TransactionProducer(address, "pg", check=lambda message: None, remoting=QUICK),
    ):
        await until(lambda: "cannot_be_checked" in caplog.text, seconds=60)


async def test_stuck_pop_consumer_logs_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        cluster.leader.fail_codes = {200050: 2}  # busy
        async with PopConsumer(cluster.namesrv, "G", "T", remoting=QUICK):
            await until(lambda: "cannot_pop" in caplog.text, seconds=60)
    assert "reason='code 2: as told'" in caplog.text


async def test_spare_member_reports_the_reason_for_having_no_queue(caplog: pytest.LogCaptureFixture) -> None:
    def said(event: str) -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        reason = "the group has 2 members for 1 queues; add queues, or stop members"
        return [line for line in lines if event in line and reason in line]

    async with FakeCluster.start(topics={"T": 1}) as cluster:
        members = [consumer_of(cluster, remoting=IMPATIENT, rebalance_seconds=0.05) for _ in range(2)]
        async with members[0], members[1]:
            for member in members:
                member.subscribe("T")
            async with anyio.create_task_group() as tasks:
                for member in members:
                    tasks.start_soon(member.wait_assigned)
                await until(lambda: said("not_assigned") and said("cannot_consume"), seconds=60)
                tasks.cancel_scope.cancel()
    assert len(said("cannot_consume")) == 1, "a spare member may be meant"


async def test_wait_assigned_without_a_subscription_logs_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        consumer_of(cluster, remoting=IMPATIENT) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.wait_assigned)
        await until(lambda: "nothing is subscribed: call subscribe" in caplog.text, seconds=60)
        tasks.cancel_scope.cancel()


async def test_consumer_reports_why_a_full_queue_is_not_pulled(caplog: pytest.LogCaptureFixture) -> None:
    limits = FlowLimits(count_max=4)
    async with filled(12) as cluster:
        consumer = consumer_of(cluster, remoting=IMPATIENT, pull=PullSettings(batch_max=4, limits=limits))
        consumer.subscribe("T")
        async with consumer:
            deliveries = consumer.deliveries()
            kept = [await anext(deliveries) for _ in range(4)]
            await until(lambda: "pulling_paused" in caplog.text, seconds=60)
            assert "unfinished=4" in caplog.text
            for each in kept:
                each.ack()
            with anyio.fail_after(60):
                assert (await anext(deliveries)).message.body == b"004"


async def test_message_that_keeps_failing_is_reported_when_pulling_pauses(caplog: pytest.LogCaptureFixture) -> None:
    """With `ordered="key"` the others are handled, but the first one holds the offset."""
    async with filled(12) as cluster:
        pull = PullSettings(batch_max=4, limits=FlowLimits(span_max=4))
        consumer = consumer_of(cluster, remoting=IMPATIENT, ordered="key", pull=pull)
        done: list[bytes] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"000":
                raise RetryLater(7200)
            done.append(message.body)

        async with running(consumer):
            await until(lambda: "pulling_paused" in caplog.text, seconds=60)
            assert sorted(done) == [b"001", b"002", b"003"]  # without keys they have no order
    assert "the message at offset 0 is not finished, and 4 offsets were pulled from it on" in caplog.text


@pytest.mark.parametrize("linger", [None, 0.01])
async def test_flush_waits_only_for_earlier_messages(linger: float | None) -> None:
    async with (
        FakeCluster.start(topics={"T": 1, "U": 1}) as cluster,
        Producer(cluster.namesrv, timeout=60, attempt_timeout=60, linger=linger) as producer,
    ):
        for topic in ("T", "U"):
            await producer.send(Message(topic, b"x"))
        cluster.leader.ignored_topics = {"T", "U"}
        flushed = anyio.Event()

        async def flush() -> None:
            await producer.flush()
            flushed.set()

        async with anyio.create_task_group() as tasks:
            earlier = anyio.CancelScope()

            async def send_and_give_up() -> None:
                with earlier:
                    await producer.send(Message("T", b"y"))

            tasks.start_soon(send_and_give_up)
            await until(lambda: producer.in_flight == 1)
            tasks.start_soon(flush)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(producer.send, Message("U", b"z"))  # never answered
            await until(lambda: producer.in_flight == 2)
            await anyio.wait_all_tasks_blocked()
            assert not flushed.is_set()
            earlier.cancel()
            with anyio.fail_after(10):
                await flushed.wait()
            assert producer.in_flight == 1
            tasks.cancel_scope.cancel()


async def test_flush_waits_for_sends_that_wait_for_room() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        Producer(cluster.namesrv, timeout=60, in_flight_max=2) as producer,
    ):
        await producer.send(Message("T", b"x"))
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(producer.send, Message("T", b"y"))
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            await producer.flush()
            assert len(cluster.group.bodies("T")) == 21


async def test_flush_waits_for_messages_of_a_divided_batch(cluster: FakeCluster) -> None:
    cluster.leader.body_bytes_max = 10
    async with Producer(cluster.namesrv, timeout=60, linger=5) as producer:
        await producer.send(Message("T", b"x"))
        cluster.leader.misdeeds = [Misdeed("silence")]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.send, Message("T", b"y"))
            await until(lambda: cluster.leader.count(310) == 2)
            pending = [await producer.submit(Message("T", body)) for body in (b"a", bytes(100), b"b")]
            tasks.cancel_scope.cancel()
        await producer.flush()
        assert [each.done for each in pending] == [True] * 3


async def test_dropped_trace_records_are_reported_while_the_client_runs(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster.start(topics={"T": 1, "Story": 1}) as cluster:
        cluster.leader.ignored_topics = {"Story"}
        async with Producer(cluster.namesrv, trace="Story", remoting=IMPATIENT) as producer:
            await producer.send(Message("T", b"x"))
            await until(lambda: "trace_incomplete" in caplog.text, seconds=60)
            assert "dropped_records=1" in caplog.text


async def test_doctor_reports_a_filter_that_rejects_every_message(caplog: pytest.LogCaptureFixture) -> None:
    events: list[ClientEvent] = []
    pull = PullSettings(hold_seconds=0.1)
    async with FakeCluster.start(topics={"T": 2, "U": 1}) as cluster:
        for number in range(6):
            cluster.group.append("T", number % 2, stored(b"%d" % number, tags="new"))
            cluster.group.append("U", 0, stored(b"%d" % number, tags="rare" if number == 5 else "new"))
        async with consumer_of(cluster, remoting=IMPATIENT, pull=pull, on_event=events.append) as consumer:
            consumer.subscribe("T", "neu")
            consumer.subscribe("U", "rare")
            with anyio.fail_after(60):
                assert (await anext(aiter(consumer))).body == b"5"
            await until(lambda: "nothing_matches" in caplog.text, seconds=60)
            await anyio.sleep(0.5)  # it is said once
            async with PullConsumer(
                cluster.namesrv, "R", consume_from="first", pull=pull, remoting=IMPATIENT
            ) as reader:
                await reader.assign(await reader.queues("T"), tags="neu")
                await until(lambda: caplog.text.count("nothing_matches") == 2, seconds=60)
    [event] = [event for event in events if event.kind == "stuck"]
    assert event.subject == "T"
    assert event.reason == "6 messages were passed over, and none matches 'neu'; is the filter right?"
    lines = [record.getMessage() for record in caplog.records if "nothing_matches" in record.getMessage()]
    assert ["cg" in line for line in lines] == [True, False], lines


async def test_group_beginning_at_the_end_logs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with filled(8, queues=4) as cluster:
        for _ in range(2):
            async with consumer_of(cluster, consume_from="last") as consumer:
                consumer.subscribe("T")
                await until(lambda: len(consumer.assignment) == 4)
        async with consumer_of(cluster, "other", consume_from="first") as consumer:
            consumer.subscribe("T")
            await until(lambda: len(consumer.assignment) == 4)
        async with PullConsumer(cluster.namesrv, "R") as reader:  # which stores nothing, and so begins often
            await reader.assign(await reader.queues("T"))
    assert caplog.text.count("begins_at_the_end") == 1
    assert 'consume_from="first"' in caplog.text
