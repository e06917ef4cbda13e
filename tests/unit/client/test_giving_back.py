"""Consumers that do not keep order: what they fail to handle goes back to the broker and comes again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from mq.client import PushConsumer, ReceivedMessage
from mq.protocol.messages.compression import deflate
from mq.protocol.properties import decode
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, consuming, fill, filled, offset_of, running, stored, take
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

SEND, SEND_BACK = 310, 36
RETRY, DEAD = "%RETRY%cg", "%DLQ%cg"

Seen = list[tuple[bytes, str, int]]


def failing(consumer: PushConsumer, topic: str = "T", *, body: bytes = b"001", failures: int = 2) -> Seen:
    """What the handler saw: body, topic, reconsume times. It fails so often for one of the messages."""
    seen: Seen = []

    @consumer.on(topic)
    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.topic, message.reconsume_times))
        if message.body == body and message.reconsume_times < failures:
            raise ValueError("not yet")

    return seen


def to_be_retried(cluster: FakeCluster, body: bytes, topic: str) -> None:
    """Put a message of this topic into the retry topic of the group."""
    message = stored(body)
    message.properties += f"RETRY_TOPIC\x01{topic}\x02"
    cluster.group.append(RETRY, 0, message)


async def test_failing_message_is_given_back_and_redelivered() -> None:
    async with filled(3) as cluster:
        consumer = consumer_of(cluster, ordered=False, consume_from="first", commit_seconds=0.01)
        seen = failing(consumer)
        async with running(consumer):
            await until(lambda: (b"001", "T", 2) in seen and offset_of(cluster) == 3)
            await until(lambda: cluster.group.offsets.get(("cg", RETRY, 0)) == 2)
        assert sorted(seen) == [
            (b"000", "T", 0),
            (b"001", "T", 0),
            (b"001", "T", 1),
            (b"001", "T", 2),
            (b"002", "T", 0),
        ]
        given_back = [request.ext for request in cluster.leader.received if request.code == SEND_BACK]
        assert [ext["offset"] for ext in given_back] == ["1000", "3000"]
        assert all((ext["group"], ext["originTopic"]) == ("cg", "T") for ext in given_back)
        assert all("maxReconsumeTimes" not in ext for ext in given_back)


async def test_message_becomes_a_dead_letter_after_its_last_retry() -> None:
    async with filled(2) as cluster:
        consumer = consumer_of(cluster, ordered=False, max_reconsume_times=2)
        seen = failing(consumer, failures=99)
        async with running(consumer):
            await until(lambda: cluster.group.bodies(DEAD) == [b"001"])
        assert [times for body, _, times in seen if body == b"001"] == [0, 1, 2]


async def test_new_group_reads_its_retry_topic_from_the_beginning() -> None:
    """A group that begins with the newest messages must not leave out what it gave back before it stored an offset."""
    async with FakeCluster.start(topics={"T": 1, RETRY: 1}) as cluster:
        to_be_retried(cluster, b"old", topic="T")
        consumer = consumer_of(cluster, ordered=False, consume_from="last")
        seen = failing(consumer)
        async with running(consumer):
            await until(lambda: len(seen) > 0)
        assert seen == [(b"old", "T", 0)]


@pytest.mark.parametrize("code", [1, 26, 3])
async def test_message_is_retried_locally_if_the_broker_refuses_the_retry(code: int) -> None:
    async with filled(2) as cluster:
        cluster.leader.fail_codes[SEND_BACK] = code
        consumer = consumer_of(cluster, ordered=False, commit_seconds=0.01)
        attempts: list[int] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"000":
                attempts.append(message.attempt)
                if message.attempt < 3:
                    raise ValueError("not yet")

        async with running(consumer):
            await until(lambda: len(attempts) == 3 and offset_of(cluster) == 2)
        assert attempts == [1, 2, 3]


async def test_message_its_broker_refuses_to_take_back_is_copied_for_retry() -> None:
    async with FakeCluster.start(groups=2, topics={"T": 1, RETRY: 1}) as cluster:
        first, second = cluster.groups["b-0"], cluster.groups["b-1"]
        cluster.leader.fail_codes[SEND_BACK] = 1
        sys_flag, body = deflate("zlib", b"001" * 100)
        message = stored(b"001", "x")
        message.body, message.sys_flag, message.flag = body, sys_flag, 7
        message.properties += "TIMER_DELIVER_MS\x01123\x02CLUSTER\x01C\x02own\x01kept\x02"
        first.append("T", 0, message)
        consumer = consumer_of(cluster, ordered=False, max_reconsume_times=5, commit_seconds=0.01)
        seen = failing(consumer, body=b"001" * 100, failures=2)
        async with running(consumer):
            await until(lambda: (b"001" * 100, "T", 2) in seen and offset_of(cluster) == 1)
        assert [times for _, _, times in seen] == [0, 1, 2]
        # The first copy was taken by the group that had not refused; which took it back when that failed as well.
        [copied] = [request for request in second.replicas[0].received if request.code == SEND]
        assert {name: copied.ext[name] for name in "abeghjl"} == {
            "a": "cg",
            "b": RETRY,
            "e": "0",
            "g": "1600000000000",
            "h": "7",
            "j": "1",
            "l": "6",
        }
        assert (int(copied.ext["f"]), copied.body) == (sys_flag, body)
        assert decode(copied.ext["i"]) == {
            "UNIQ_KEY": "001",
            "TAGS": "x",
            "own": "kept",
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": "7F00000100002A9F0000000000000000",
            "DELAY": "3",
            "RAFTMQ_ORIGIN_BROKER": "b-0",
            "RAFTMQ_ORIGIN_QUEUE": "0",
            "RAFTMQ_ORIGIN_OFFSET": "0",
            "RAFTMQ_FAILURE": decode(copied.ext["i"])["RAFTMQ_FAILURE"],
        }
        assert decode(copied.ext["i"])["RAFTMQ_FAILURE"].startswith("ValueError: not yet (test_giving_back.py:")
        assert [request.ext["offset"] for request in second.replicas[0].received if request.code == SEND_BACK] == ["0"]


async def test_send_back_is_repeated_until_a_broker_accepts() -> None:
    async with FakeCluster.start(topics={"T": 1, RETRY: 1}) as cluster:
        cluster.leader.fail_codes[SEND_BACK] = 1
        cluster.leader.fail_codes[SEND] = 14
        fill(cluster, 1)
        consumer = consumer_of(cluster, ordered=False, commit_seconds=0.01)
        attempts: list[int] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            attempts.append(message.attempt)
            if message.attempt == 2:
                cluster.leader.fail_codes.clear()
            if message.reconsume_times == 0:
                raise ValueError("not yet")

        async with running(consumer):
            await until(lambda: len(attempts) == 3 and offset_of(cluster) == 1)
        assert attempts == [1, 2, 1]


async def test_failed_batches_are_returned_whole_and_redelivered_as_single_messages() -> None:
    async with filled(4) as cluster:
        consumer = consumer_of(cluster, ordered=False, concurrency=1, commit_seconds=0.01)
        again: list[list[bytes]] = []

        @consumer.on("T", batch=10)
        async def handle(messages: Sequence[ReceivedMessage]) -> None:
            if messages[0].reconsume_times == 0:
                raise ValueError("not yet")
            again.append([message.body for message in messages])

        async with running(consumer):
            await until(lambda: len(again) == 4 and offset_of(cluster) == 4)
        assert sorted(again) == [[b"%03d" % number] for number in range(4)]


async def test_failed_message_is_redelivered_to_the_handler_of_run() -> None:
    async with consuming(1, ordered=False) as (_, consumer):
        seen: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.reconsume_times)
            if len(seen) == 1:
                raise ValueError("not yet")
            consumer.stop()

        with anyio.fail_after(60):
            await consumer.run(handle)
        assert seen == [0, 1]


async def test_message_of_a_removed_handler_is_returned() -> None:
    async with FakeCluster.start(topics={"T": 1, "U": 1, RETRY: 1}) as cluster:
        to_be_retried(cluster, b"orphan", topic="U")
        consumer = consumer_of(cluster, ordered=False, max_reconsume_times=1)
        failing(consumer)
        async with running(consumer):
            await until(lambda: cluster.group.bodies(DEAD) == [b"orphan"])


async def test_run_stopped_while_returning_messages_keeps_each_once() -> None:
    async with consuming(20, ordered=False) as (_, consumer):
        handled: set[bytes] = set()

        async def fail_and_stop(message: ReceivedMessage) -> None:
            if message.body == b"010":
                consumer.stop()
            raise ValueError("not yet")

        async def note(message: ReceivedMessage) -> None:
            handled.add(message.body)
            if len(handled) == 20:
                consumer.stop()

        with anyio.fail_after(60):
            await consumer.run(fail_and_stop)
            await consumer.run(note)
        assert handled == {b"%03d" % number for number in range(20)}


async def test_ordered_consumer_retries_failed_messages_in_place() -> None:
    async with filled(2) as cluster:
        consumer = consumer_of(cluster)
        seen: list[Any] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if len(seen) < 3:
                raise ValueError("not yet")

        async with running(consumer):
            await until(lambda: len(seen) == 4)
            assert {queue.topic for queue in consumer.assignment} == {"T"}
        assert seen == [b"000", b"000", b"000", b"001"]
        assert cluster.leader.count(SEND_BACK) == 0


async def test_streams_also_deliver_retried_messages() -> None:
    async with FakeCluster.start(topics={"T": 1, RETRY: 1}) as cluster, consumer_of(cluster, ordered=False) as consumer:
        to_be_retried(cluster, b"again", topic="T")
        consumer.subscribe("T")
        [received] = await take(consumer, 1)
        assert (received.topic, received.record.topic, received.queue.topic) == ("T", RETRY, RETRY)
