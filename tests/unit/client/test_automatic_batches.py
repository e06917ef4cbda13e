"""What a producer with `linger` promises: fewer requests, and for each message the same as without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from mq.client import (
    ClientClosed,
    ClientError,
    Message,
    MessageQueue,
    Producer,
    SendOutcomeUnknown,
    SendRejected,
    SendResult,
)
from mq.client.sync import SyncProducer
from mq.protocol.messages.batch import decode_batch
from tests.support.producing import SEND, SEND_BATCH, producer_of
from tests.support.waiting import cancelled_when, until
from tests.unit.client import fake_cluster
from tests.unit.client.fake_cluster import FakeCluster, Misdeed
from tests.unit.client.fake_messages import sent_messages
from tests.unit.client.sending import sending

pytestmark = pytest.mark.anyio

FOREVER = 50.0
"""A linger that no test waits for."""


async def warm_up(producer: Producer) -> None:
    """Learn the route and connect, so that the next messages go out at once."""
    await producer.send(Message("T", b"first"))


def batches(cluster: FakeCluster) -> list[list[bytes]]:
    """The bodies of each batch that the leader received."""
    return [
        [each.body for each in decode_batch(request.body)]
        for request in cluster.leader.received
        if request.code == SEND_BATCH
    ]


async def begin_silence(cluster: FakeCluster, producer: Producer) -> None:
    """Put a message on the wire that the leader does not answer."""
    cluster.leader.misdeeds = [Misdeed("silence")]
    producer.send_nowait(Message("T", b"not answered"), lambda _: None)
    await until(lambda: not cluster.leader.misdeeds)


async def test_messages_sent_at_the_same_moment_share_one_request() -> None:
    async with sending(4, linger=0) as (cluster, producer):
        await warm_up(producer)
        results: dict[int, SendResult] = {}

        async def send(number: int) -> None:
            message = Message(
                "T", b"%d" % number, tags=f"t{number}", keys=[f"k{number}"], properties={"n": str(number)}
            )
            results[number] = await producer.send(message)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(send, number)
        [batch] = batches(cluster)
        assert len(batch) == 20
        assert len({result.queue for result in results.values()}) == 1
        assert len({result.message_id for result in results.values()}) == 20
        for number, result in results.items():
            stored = cluster.group.queues["T", result.queue.queue_id][result.queue_offset]
            assert stored.body == b"%d" % number
            values = {name: stored.value_of(name) for name in ("TAGS", "KEYS", "n", "UNIQ_KEY")}
            assert values == {
                "TAGS": f"t{number}",
                "KEYS": f"k{number}",
                "n": str(number),
                "UNIQ_KEY": result.message_id,
            }


async def test_producer_that_awaits_each_send_is_not_kept_waiting() -> None:
    async with sending(linger=FOREVER) as (cluster, producer):
        with anyio.fail_after(FOREVER / 2):
            for _ in range(20):
                await producer.send(Message("T", b"x"))
        assert (cluster.leader.count(SEND), cluster.leader.count(SEND_BATCH)) == (20, 0)


async def test_messages_wait_while_a_batch_is_in_flight() -> None:
    async with sending(linger=FOREVER, attempt_timeout=0.5) as (cluster, producer):
        await warm_up(producer)
        await begin_silence(cluster, producer)  # until its next attempt
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(3)]
        assert producer.in_flight == 4
        assert [(await each).queue_offset for each in pending] == [2, 3, 4]
        assert batches(cluster) == [[b"0", b"1", b"2"]]
        assert producer.in_flight == 0


async def test_no_message_waits_longer_than_linger() -> None:
    with anyio.CancelScope() as leaving:
        async with sending(linger=0.05) as (cluster, producer):
            await warm_up(producer)
            await begin_silence(cluster, producer)
            with anyio.fail_after(30):
                assert (await producer.send(Message("T", b"x"))).queue_offset == 1
            leaving.cancel()  # nobody answers what is in flight


async def test_full_batch_does_not_wait() -> None:
    with anyio.CancelScope() as leaving:
        async with sending(linger=FOREVER, batch_bytes=1000) as (cluster, producer):
            await warm_up(producer)
            await begin_silence(cluster, producer)
            pending = [await producer.submit(Message("T", bytes(300))) for _ in range(3)]
            for each in pending[:2]:
                await each
            assert [len(batch) for batch in batches(cluster)] == [2]
            leaving.cancel()


async def test_message_larger_than_a_batch_is_sent_alone() -> None:
    async with sending(linger=0, batch_bytes=1000) as (cluster, producer):
        outcomes = await producer.send_many([Message("T", b"a"), Message("T", b"b" * 2000), Message("T", b"c")])
        assert [each.queue_offset for each in outcomes if isinstance(each, SendResult)] == [0, 1, 2]
        assert batches(cluster) == []


ALONE = [
    Message("T", b"x", delay_level=1),
    Message("T", b"x", delay=60),
    Message("T", b"x" * 5000),  # is compressed
    Message("T", b"x", properties={"RAFTMQ_PRODUCER": "p", "RAFTMQ_SEQUENCE": "1"}),
    Message("%RETRY%g", b"x"),
]


@pytest.mark.parametrize("message", ALONE, ids=["delay level", "delay", "compressed", "numbered", "retry topic"])
async def test_unbatchable_messages_are_sent_alone_after_waiting_ones(message: Message) -> None:
    topics = {"T": 1, "%RETRY%g": 1}
    async with FakeCluster.start(topics=topics) as cluster, producer_of(cluster, linger=0) as producer:
        await warm_up(producer)
        before = [await producer.submit(Message("T", b"%d" % number)) for number in range(2)]
        alone = await producer.submit(message)
        after = [await producer.submit(Message("T", b"%d" % number)) for number in range(2, 4)]
        offsets = [(await each).queue_offset for each in [*before, alone, *after]]
        assert cluster.leader.count(SEND) == 2
        if message.topic == "T":
            assert offsets == [1, 2, 3, 4, 5]
            assert batches(cluster) == [[b"0", b"1"], [b"2", b"3"]]
        else:
            assert batches(cluster) == [[b"0", b"1", b"2", b"3"]]


async def test_batches_keep_sharding_keys_queues_and_order() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 4}) as cluster:
        async with producer_of(cluster) as producer:
            keys = {f"key{number}" for number in range(6)}
            places = {key: (await producer.send(Message("T", b"x", sharding_key=key))).queue for key in keys}
        async with producer_of(cluster, linger=0) as producer:
            await warm_up(producer)
            sent = [(f"key{number % 6}", b"%d" % number) for number in range(60)]
            pending = [await producer.submit(Message("T", body, sharding_key=key)) for key, body in sent]
            queue = MessageQueue("T", "b-1", 3)
            chosen = [await producer.submit(Message("T", b"chosen"), queue=queue) for _ in range(2)]
            results = [await each for each in pending]
            assert {(await each).queue for each in chosen} == {queue}
        for key in keys:
            mine = [result for (its, _), result in zip(sent, results, strict=True) if its == key]
            assert {result.queue for result in mine} == {places[key]}
            assert [result.queue_offset for result in mine] == sorted(result.queue_offset for result in mine)


async def test_message_too_large_for_the_broker_does_not_fail_the_others() -> None:
    async with sending(linger=0) as (cluster, producer):
        await warm_up(producer)
        cluster.leader.body_bytes_max = 100
        outcomes = await producer.send_many([Message("T", b"a"), Message("T", bytes(101)), Message("T", b"b")])
        assert [isinstance(each, SendResult) for each in outcomes] == [True, False, True]
        assert isinstance(outcomes[1], SendRejected)
        assert (outcomes[1].code, outcomes[1].stored) == (13, "no")
        assert cluster.group.bodies("T") == [b"first", b"a", b"b"]
        assert producer.in_flight == 0


async def test_broker_that_does_not_know_batches_gets_single_messages() -> None:
    async with sending(linger=0) as (cluster, producer):
        cluster.leader.fail_codes[SEND_BATCH] = 3
        outcomes = await producer.send_many(Message("T", b"%d" % number) for number in range(5))
        assert [each.queue_offset for each in outcomes if isinstance(each, SendResult)] == [0, 1, 2, 3, 4]


async def test_broker_crash_during_a_batch_leaves_each_message_unknown() -> None:
    async with sending(linger=0, retry_unknown=False) as (cluster, producer):
        await warm_up(producer)
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True)]
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(3)]
        outcomes = [await each.wait_outcome() for each in pending]
        assert len({id(outcome) for outcome in outcomes}) == 3
        for handle, outcome in zip(pending, outcomes, strict=True):
            assert isinstance(outcome, SendOutcomeUnknown)
            assert (outcome.stored, outcome.message_id, outcome.attempts) == ("unknown", handle.message_id, 1)
        assert producer.in_flight == 0


async def test_batch_is_retried_whole_and_reported_as_maybe_duplicated() -> None:
    async with sending(linger=0) as (cluster, producer):
        await warm_up(producer)
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True)]
        outcomes = await producer.send_many(Message("T", b"%d" % number) for number in range(3))
        results = [each for each in outcomes if isinstance(each, SendResult)]
        assert [(each.queue_offset, each.attempts, each.maybe_duplicated) for each in results] == [
            (4, 2, True),
            (5, 2, True),
            (6, 2, True),
        ]
        stored = cluster.group.queues["T", 0]
        assert [each.value_of("UNIQ_KEY") for each in stored[1:4]] == [each.message_id for each in results]


async def test_batch_survives_a_change_of_leader() -> None:
    async with sending(replicas=2, linger=0) as (cluster, producer):
        await warm_up(producer)
        await cluster.kill(cluster.leader)
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(3)]
        cluster.group.leader = cluster.group.replicas[1]
        assert [(await each).queue_offset for each in pending] == [1, 2, 3]


async def test_answer_that_names_too_few_messages_leaves_all_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sending(linger=0) as (_, producer):
        await warm_up(producer)
        monkeypatch.setattr(fake_cluster, "sent_messages", lambda *request: sent_messages(*request)[:2])
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(3)]
        for each in pending:
            outcome = await each.wait_outcome()
            assert isinstance(outcome, SendOutcomeUnknown)
            assert "the answer names 2 messages of 3" in str(outcome)
            assert outcome.message_id == each.message_id


# Cancelled, closed.


async def test_cancelled_send_leaves_an_unsent_batch() -> None:
    async with sending(linger=FOREVER, attempt_timeout=0.5) as (cluster, producer):
        await warm_up(producer)
        await begin_silence(cluster, producer)
        kept = [await producer.submit(Message("T", b"kept"))]
        await cancelled_when(lambda: producer.in_flight == 3, lambda: producer.send(Message("T", b"cancelled")))
        kept.append(await producer.submit(Message("T", b"kept too")))
        assert producer.in_flight == 3
        assert [(await each).queue_offset for each in kept] == [2, 3]
        assert cluster.group.bodies("T") == [b"first", b"not answered", b"kept", b"kept too"]
        assert producer.in_flight == 0


async def test_batch_that_loses_its_only_message_is_not_sent() -> None:
    async with sending(linger=FOREVER, attempt_timeout=0.5) as (cluster, producer):
        await warm_up(producer)
        await begin_silence(cluster, producer)
        await cancelled_when(lambda: producer.in_flight == 2, lambda: producer.send(Message("T", b"cancelled")))
        await producer.flush()
        assert cluster.group.bodies("T") == [b"first", b"not answered"]


async def test_cancelling_all_of_a_batch_on_the_wire_ends_its_attempts() -> None:
    async with sending(linger=0) as (cluster, producer):
        await warm_up(producer)
        cluster.leader.misdeeds = [Misdeed("silence")]
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(producer.send, Message("T", b"cancelled"))
            await until(lambda: not cluster.leader.misdeeds)
            assert producer.in_flight == 3
            tasks.cancel_scope.cancel()
        assert producer.in_flight == 0
        assert (await producer.send(Message("T", b"x"))).queue_offset == 1


async def test_producer_closed_by_an_error_fails_waiting_messages() -> None:
    outcomes: list[SendResult | ClientError] = []

    async def fail(cluster: FakeCluster, producer: Producer) -> None:
        async with producer:
            await warm_up(producer)
            await begin_silence(cluster, producer)
            producer.send_nowait(Message("T", b"a"), outcomes.append)
            producer.send_nowait(Message("T", b"b"), outcomes.append)
            raise RuntimeError

    async with FakeCluster.start(topics={"T": 1}) as cluster:
        producer = producer_of(cluster, linger=FOREVER)
        with pytest.raises(RuntimeError):
            await fail(cluster, producer)
        assert len(outcomes) == 2
        assert all(isinstance(each, ClientClosed) and each.stored == "no" for each in outcomes)
        with pytest.raises(ClientClosed):
            await producer.send(Message("T", b"too late"))


async def test_leaving_the_block_sends_waiting_messages(cluster: FakeCluster) -> None:
    async with producer_of(cluster, linger=FOREVER) as producer:
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(50)]
    assert all(isinstance(each.outcome, SendResult) for each in pending)
    assert cluster.group.bodies("T") == [b"%d" % number for number in range(50)]


async def test_messages_that_wait_count_against_the_limit() -> None:
    async with sending(linger=0, in_flight_max=4) as (cluster, producer):
        most = 0
        for number in range(40):
            await producer.submit(Message("T", b"%d" % number))
            most = max(most, producer.in_flight)
        await producer.flush()
        assert (most, producer.in_flight) == (4, 0)
        assert cluster.group.bodies("T") == [b"%d" % number for number in range(40)]


async def test_failing_callback_does_not_affect_its_batch() -> None:
    def fail(outcome: SendResult | ClientError) -> None:
        raise ValueError("a bug of the application")

    async with sending(linger=0) as (cluster, producer):
        await warm_up(producer)
        producer.send_nowait(Message("T", b"a"), fail)
        assert (await producer.send(Message("T", b"b"))).queue_offset == 2
        assert batches(cluster) == [[b"a", b"b"]]


@pytest.mark.parametrize("options", [{"linger": -1}, {"linger": 10.0}, {"batch_bytes": 0}, {"batch_bytes": 10**6}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"(linger|batch_bytes) is"):
        Producer("127.0.0.1:9876", **options)  # type: ignore[arg-type]


async def test_threads_share_batches_too(cluster: FakeCluster) -> None:

    def produce() -> set[int]:
        with SyncProducer(cluster.namesrv, timeout=60.0, attempt_timeout=1.0, linger=30.0) as producer:
            producer.send(Message("T", b"first"))
            cluster.leader.misdeeds = [Misdeed("silence")]  # until its next attempt
            with ThreadPoolExecutor(8) as threads:
                results = threads.map(lambda number: producer.send(Message("T", b"%d" % number)), range(8))
                return {result.queue_offset for result in results}

    assert await anyio.to_thread.run_sync(produce) == set(range(1, 9))
    assert cluster.leader.count(SEND_BATCH) >= 1
