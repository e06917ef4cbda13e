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
    NoRoute,
    Pending,
    Producer,
    ProducerBusy,
    RemotingSettings,
    SendOutcomeUnknown,
    SendRejected,
    SendResult,
    SendStatus,
    TopicNotFound,
)
from mq.protocol.compression import Codec
from tests.unit.client.fake_cluster import FakeCluster, Misdeed, until

pytestmark = pytest.mark.anyio

SEND = 310
ROUTE = 105


def producer_of(cluster: FakeCluster, **options: Any) -> Producer:
    """With patience, so that a machine that stops for seconds does not fail a test; some tests want less."""
    options.setdefault("timeout", 60.0)
    options.setdefault("attempt_timeout", 60.0)
    return Producer(cluster.namesrv, **options)


async def test_send_stores_the_message_with_all_it_carries() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster, group="pg") as producer:
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


async def test_messages_go_round_all_queues_of_all_groups() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 2}) as cluster, producer_of(cluster) as producer:
        queues = [(await producer.send(Message("T", b"x"))).queue for _ in range(8)]
        assert sorted(set(queues)) == [MessageQueue("T", f"b-{group}", number) for group in (0, 1) for number in (0, 1)]
        assert all(queues.count(queue) == 2 for queue in queues)


async def test_message_ids_are_unique() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        outcomes = await producer.send_many(Message("T", b"x") for _ in range(300))
        assert len({each.message_id for each in outcomes if isinstance(each, SendResult)}) == 300


async def test_large_bodies_travel_compressed_and_only_if_that_helps() -> None:
    noise = bytes((i * i * 31 + i // 7 * 13) % 251 for i in range(64))
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        for body in (b"a" * 4096, b"a" * 4095, zlib.compress(noise * 1)):
            await producer.send(Message("T", body))
        first, second, third = cluster.group.queues["T", 0]
        assert (first.sys_flag, zlib.decompress(first.body)) == (0x301, b"a" * 4096)
        assert (second.sys_flag, len(second.body)) == (0, 4095)
        assert third.sys_flag == 0


@pytest.mark.parametrize(("codec", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
async def test_bodies_are_compressed_as_chosen(codec: Codec, flag: int) -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, compress=codec, compress_bytes_min=100) as producer,
    ):
        await producer.send(Message("T", b"a" * 100))
        [stored] = cluster.group.queues["T", 0]
        assert (stored.sys_flag, len(stored.body) < 100) == (flag, True)
        assert cluster.group.bodies("T") == [b"a" * 100]


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ValueError, match="gzip"):
        Producer("127.0.0.1:9876", compress=cast("Codec", "gzip"))


async def test_compression_can_be_off() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, compress=None) as producer,
    ):
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
async def test_what_the_protocol_does_not_allow_is_refused_before_sending(message: Message) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        with pytest.raises(MessageRefused) as refused:
            await producer.send(message)
        assert refused.value.stored == "no"
        assert cluster.leader.count(SEND) == 0


async def test_a_queue_of_another_topic_is_refused() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        with pytest.raises(MessageRefused, match="cannot go to a queue of U"):
            await producer.send(Message("T", b"x"), queue=MessageQueue("U", "b-0", 0))


# Refusals.


async def test_a_refusal_for_good_is_raised_at_once_as_not_stored() -> None:
    async with FakeCluster.start(topics={"T": 4}) as cluster, producer_of(cluster) as producer:
        cluster.leader.misdeeds = [Misdeed("refuse", code=13, remark="body too long")]
        with pytest.raises(SendRejected) as rejected:
            await producer.send(Message("T", b"x"))
        assert (rejected.value.code, rejected.value.remark, rejected.value.stored) == (13, "body too long", "no")
        assert rejected.value.queue is not None
        assert cluster.leader.count(SEND) == 1


async def test_after_a_refusal_that_others_may_not_share_another_broker_is_asked() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        await producer.send_many(Message("T", b"warm up") for _ in range(2))
        for group in cluster.groups.values():
            assert group.leader is not None
            group.leader.misdeeds = [Misdeed("refuse", code=16, remark="no permission")]
        cluster.groups["b-1"].leader.misdeeds = []  # type: ignore[union-attr]
        results = [await producer.send(Message("T", b"x")) for _ in range(2)]
        assert sorted(result.attempts for result in results) == [1, 2]
        assert {result.queue.broker_name for result in results if result.attempts == 2} == {"b-1"}
        assert not any(result.maybe_duplicated for result in results)


async def test_refusals_that_others_may_not_share_end_after_the_retries() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster, retries=2) as producer:
        cluster.leader.misdeeds = [Misdeed("refuse", code=17, remark="no such topic")] * 10
        with pytest.raises(SendRejected) as rejected:
            await producer.send(Message("T", b"x"))
        assert (rejected.value.code, rejected.value.attempts) == (17, 3)


@pytest.mark.parametrize(("groups", "options"), [(1, {}), (3, {}), (2, {"queue": MessageQueue("T", "b-0", 0)})])
async def test_each_group_refuses_once_what_no_repetition_can_change(groups: int, options: dict[str, Any]) -> None:
    async with (
        FakeCluster.start(groups=groups, topics={"T": 2}) as cluster,
        producer_of(cluster, retries=20, timeout=60) as producer,
    ):
        leaders = [group.replicas[0] for group in cluster.groups.values()]
        for leader in leaders:
            leader.misdeeds = [Misdeed("refuse", code=16, remark="not writable")] * 30
        with pytest.raises(SendRejected, match=r"certainly not stored.*not writable") as rejected:
            await producer.send(Message("T", b"x"), **options)
        assert (rejected.value.code, rejected.value.stored) == (16, "no")
        asked = [leader.count(SEND) for leader in leaders]
        assert asked == ([1, 0] if options else [1] * groups)
        assert rejected.value.attempts == sum(asked)


async def test_while_there_is_no_leader_attempts_go_on_until_one_is_elected() -> None:
    async with (
        FakeCluster.start(replicas=2, topics={"T": 1}) as cluster,
        producer_of(cluster, timeout=10.0) as producer,
    ):
        await producer.send(Message("T", b"first"))
        old, new = cluster.group.replicas
        cluster.group.leader = None
        pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(20)]
        await until(lambda: old.count(SEND) == 21)
        assert not any(each.done for each in pending)
        cluster.group.leader = new
        results = [await each for each in pending]
        assert all(result.attempts > 1 and not result.maybe_duplicated for result in results)
        assert sorted(cluster.group.bodies("T")) == sorted([b"first", *(b"%d" % n for n in range(20))])
        assert new.count(SEND) >= 20


async def test_a_killed_leader_is_bridged_by_a_long_timeout() -> None:
    async with (
        FakeCluster.start(replicas=2, topics={"T": 1}) as cluster,
        producer_of(cluster, timeout=10.0) as producer,
    ):
        await producer.send(Message("T", b"first"))
        await cluster.kill(cluster.leader)
        async with anyio.create_task_group() as tasks:
            results: list[SendResult] = []

            async def send() -> None:
                results.append(await producer.send(Message("T", b"second")))

            tasks.start_soon(send)
            await anyio.sleep(0.2)
            assert not results
            cluster.group.leader = cluster.group.replicas[1]
        assert cluster.group.bodies("T") == [b"first", b"second"]
        assert results[0].queue_offset == 1


async def test_without_any_leader_the_timeout_ends_it_as_not_stored() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster, timeout=0.3) as producer:
        cluster.group.leader = None
        await producer.queues("T")  # so that the error cannot be that there was no time to ask for the route
        with pytest.raises(NoRoute, match="no leader") as failed:
            await producer.send(Message("T", b"x"))
        assert failed.value.stored == "no"


async def test_a_leader_that_refuses_until_the_timeout_leaves_its_refusal() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        cluster.leader.misdeeds = [Misdeed("refuse", code=14)] * 1000
        with pytest.raises(SendRejected) as rejected:
            await producer.send(Message("T", b"x"), timeout=0.4)
        assert rejected.value.code == 14
        assert rejected.value.attempts >= 2


async def test_an_old_leader_that_asks_the_new_one_is_left_at_once() -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=2) as cluster, producer_of(cluster) as producer:
        old, new = cluster.group.replicas
        await producer.send(Message("T", b"0"))
        old.forwards = True
        cluster.group.leader = new
        assert (await producer.send(Message("T", b"1"))).attempts == 1
        assert old.count(SEND) == 2
        with anyio.fail_after(10):  # long before the 30 s after which routes are asked for anyway
            while not new.count(SEND):
                await producer.send(Message("T", b"more"))
        assert cluster.name_servers[0].count(ROUTE) <= 4


# Unknown outcomes.


async def test_a_connection_lost_after_the_write_is_retried_and_reported_as_maybe_duplicated() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True)]
        result = await producer.send(Message("T", b"x"))
        assert (result.attempts, result.maybe_duplicated, result.queue_offset) == (2, True, 1)
        first, second = cluster.group.queues["T", 0]
        assert first.value_of("UNIQ_KEY") == second.value_of("UNIQ_KEY") == result.message_id


@pytest.mark.parametrize("store", [True, False])
async def test_without_retry_unknown_a_lost_connection_is_raised_at_once(store: bool) -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, retry_unknown=False) as producer,
    ):
        cluster.leader.misdeeds = [Misdeed("hang_up", store=store)]
        with pytest.raises(SendOutcomeUnknown) as unknown:
            await producer.send(Message("T", b"x"))
        assert (unknown.value.stored, unknown.value.attempts) == ("unknown", 1)
        assert len(unknown.value.message_id) == 32
        assert cluster.leader.count(SEND) == 1


async def test_silence_beyond_the_timeout_is_an_unknown_outcome() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        cluster.leader.misdeeds = [Misdeed("silence", store=True)]
        with pytest.raises(SendOutcomeUnknown, match="no answer"):
            await producer.send(Message("T", b"x"), timeout=0.2)
        assert producer.in_flight == 0


async def test_silence_beyond_the_attempt_timeout_is_retried() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, attempt_timeout=0.1) as producer,
    ):
        cluster.leader.misdeeds = [Misdeed("silence")]
        result = await producer.send(Message("T", b"x"))
        assert (result.attempts, result.maybe_duplicated) == (2, True)


async def test_a_connection_that_stays_silent_is_given_up() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, attempt_timeout=0.1, remoting=RemotingSettings(silence_seconds=0.05)) as producer,
    ):
        await producer.send(Message("T", b"x"))
        [before] = cluster.leader.connections
        cluster.leader.misdeeds = [Misdeed("silence")]
        await producer.send(Message("T", b"y"))
        assert before.closed


async def test_a_refusal_after_an_unknown_attempt_stays_unknown() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True), Misdeed("refuse", code=13)]
        with pytest.raises(SendOutcomeUnknown) as unknown:
            await producer.send(Message("T", b"x"))
        assert unknown.value.attempts == 2
        assert isinstance(unknown.value.__cause__, SendRejected)


async def test_a_vague_answer_is_an_unknown_outcome() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster, retries=0) as producer:
        cluster.leader.misdeeds = [Misdeed("refuse", store=True, code=1, remark="NullPointerException")]
        with pytest.raises(SendOutcomeUnknown, match="NullPointerException"):
            await producer.send(Message("T", b"x"))


async def test_unknown_outcomes_end_after_the_retries() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster, retries=1) as producer:
        cluster.leader.misdeeds = [Misdeed("hang_up", store=True)] * 5
        with pytest.raises(SendOutcomeUnknown) as unknown:
            await producer.send(Message("T", b"x"))
        assert unknown.value.attempts == 2
        assert len(cluster.group.queues["T", 0]) == 2


# Routes.


async def test_an_unknown_topic_is_raised_after_a_few_looks() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        with pytest.raises(TopicNotFound):
            await producer.send(Message("Other", b"x"))


async def test_an_unknown_topic_is_created_from_the_template() -> None:
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


async def test_a_dead_name_server_is_passed_over() -> None:
    async with FakeCluster.start(name_servers=2, topics={"T": 1}) as cluster:
        await cluster.name_servers[0].stop()
        for _ in range(4):
            async with producer_of(cluster) as producer:
                await producer.send(Message("T", b"x"))


async def test_without_any_name_server_the_send_says_so() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        [server] = cluster.name_servers
        await server.stop()
        async with Producer(server.address, timeout=0.2) as producer:
            with pytest.raises(NameServersUnavailable) as failed:
                await producer.send(Message("T", b"x"))
            assert list(failed.value.reasons) == [server.address]


async def test_a_leader_that_cannot_be_reached_is_named() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster, timeout=0.3) as producer:
        await cluster.leader.stop()  # the name server does not know
        with pytest.raises(ConnectFailed) as failed:
            await producer.send(Message("T", b"x"))
        assert failed.value.address == cluster.leader.address


async def test_other_groups_serve_while_one_has_no_leader() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 2}) as cluster, producer_of(cluster) as producer:
        cluster.groups["b-0"].leader = None
        results = [await producer.send(Message("T", b"x")) for _ in range(6)]
        assert {result.queue.broker_name for result in results} == {"b-1"}


# Fixed queues.


async def test_a_sharding_key_fixes_the_queue() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 4}) as cluster, producer_of(cluster) as producer:
        queues = {
            key: {(await producer.send(Message("T", b"x", sharding_key=key))).queue for _ in range(3)}
            for key in ("a", "b", "c", "d", "e")
        }
        assert all(len(each) == 1 for each in queues.values())
        assert len({next(iter(each)) for each in queues.values()}) > 1


async def test_a_fixed_queue_waits_for_its_leader_instead_of_hopping() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        queue = MessageQueue("T", "b-0", 0)
        await producer.send(Message("T", b"x"), queue=queue)
        cluster.group.leader = None
        pending = await producer.submit(Message("T", b"y"), queue=queue)
        await anyio.sleep(0.1)
        assert not pending.done
        cluster.group.leader = cluster.group.replicas[0]
        assert (await pending).queue == queue


# Many in flight.


BAD_BATCHES: list[tuple[str, list[Message], str]] = [
    ("empty", [], "at least one message"),
    ("topics", [Message("T", b"x"), Message("U", b"x")], "one topic, not to 2: T, U"),
    ("sharding keys", [Message("T", b"x", sharding_key="a"), Message("T", b"x")], "have 2 sharding keys"),
    ("delayed", [Message("T", b"x"), Message("T", b"x", delay_level=1)], "cannot be delayed"),
    ("timed", [Message("T", b"x"), Message("T", b"x", delay=1)], "cannot be delayed"),
    ("empty body", [Message("T", b"x"), Message("T", b"")], "the body has 0 bytes"),
    ("too large", [Message("T", bytes(3_000_000))] * 2, "4194304 are allowed"),
]


@pytest.mark.parametrize(("batch", "why"), [row[1:] for row in BAD_BATCHES], ids=[row[0] for row in BAD_BATCHES])
async def test_a_batch_that_cannot_be_is_not_sent(batch: list[Message], why: str) -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        with pytest.raises(MessageRefused, match=why):
            await producer.send_batch(batch)
        assert producer.in_flight == 0


async def test_send_many_keeps_the_order_of_the_outcomes_and_reports_each_failure() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        messages = [Message("T", b"%d" % number) for number in range(50)]
        messages[10] = Message("T", b"")
        outcomes = await producer.send_many(messages)
        assert isinstance(outcomes[10], MessageRefused)
        results = [each for each in outcomes if isinstance(each, SendResult)]
        assert [result.queue_offset for result in results] == list(range(49))
        assert cluster.group.bodies("T") == [message.body for message in messages if message.body]


async def test_callbacks_get_every_outcome_once() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster, retries=0) as producer:
        outcomes: list[SendResult | ClientError] = []
        cluster.leader.misdeeds = [Misdeed("refuse", code=13)]
        ids = [producer.send_nowait(Message("T", b"x"), outcomes.append) for _ in range(10)]
        assert outcomes == []
        await producer.flush()
        assert len(outcomes) == 10
        assert isinstance(outcomes[0], SendRejected)
        assert [each.message_id for each in outcomes if isinstance(each, SendResult)] == ids[1:]


async def test_a_callback_that_raises_harms_nobody_else() -> None:
    def fail(outcome: SendResult | ClientError) -> None:
        raise ValueError("a bug of the application")

    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        producer.send_nowait(Message("T", b"x"), fail)
        assert (await producer.send(Message("T", b"y"))).queue_offset == 1


async def test_in_flight_is_bounded() -> None:
    async with (
        FakeCluster.start(topics={"T": 1}) as cluster,
        producer_of(cluster, in_flight_max=3, timeout=0.2) as producer,
    ):
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


async def test_oneway_messages_arrive_without_answers() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        await producer.send_oneway(Message("T", b"x"))
        await producer.send(Message("T", b"y"))
        assert cluster.group.bodies("T") == [b"x", b"y"]


# Life.


async def test_leaving_the_block_waits_for_what_is_in_flight() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        async with producer_of(cluster) as producer:
            pending = [await producer.submit(Message("T", b"x")) for _ in range(10)]
        assert all(each.done for each in pending)
        assert len(cluster.group.bodies("T")) == 10


async def test_an_exception_leaves_as_itself_and_fails_what_is_in_flight() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
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


async def test_a_producer_must_be_entered_and_not_left() -> None:
    producer = Producer("127.0.0.1:9")
    with pytest.raises(ClientClosed):
        await producer.send(Message("T", b"x"))
    async with producer:
        pass
    with pytest.raises(ClientClosed):
        await producer.send(Message("T", b"x"))


async def test_a_cancelled_send_is_forgotten_and_the_producer_goes_on() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        await producer.send(Message("T", b"warm up"))
        cluster.leader.misdeeds = [Misdeed("silence")]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send, Message("T", b"x"))
                await until(lambda: not cluster.leader.misdeeds)
                scope.cancel()
        assert producer.in_flight == 0
        assert (await producer.send(Message("T", b"y"))).queue_offset == 1


async def test_the_producer_says_goodbye() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
        async with producer_of(cluster, group="pg") as producer:
            await producer.send(Message("T", b"x"))
        [goodbye] = [request for request in cluster.leader.received if request.code == 35]
        assert goodbye.ext == {"clientID": producer.client_id, "producerGroup": "pg"}


async def test_a_first_send_that_is_over_before_its_deadline_is_watched_does_no_harm() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster, producer_of(cluster) as producer:
        await anyio.wait_all_tasks_blocked()
        pipeline = producer._open_pipeline()
        pending = Pending()
        number = pipeline.start(producer._make_ready(Message("T", b"x"), None), pending.settle, timeout=60.0)
        pipeline.abandon(number)
        await anyio.wait_all_tasks_blocked()
        assert (await producer.send(Message("T", b"y"))).queue_offset >= 0


async def test_a_cancelled_producer_says_goodbye_too() -> None:
    async with FakeCluster.start(topics={"T": 1}) as cluster:
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
