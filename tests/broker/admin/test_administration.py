"""The SDK's administration against a real name server and a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.client import Admin, BrokerError, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage, TopicNotFound
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import NameRefused
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.relayed import ConsumeResult
from tests.support.running_broker import RunningBroker, limited, running
from tests.support.waiting import until
from tests.unit.namesrv.serving import name_server

GROUP = "broker-a"


@asynccontextmanager
async def administrated(directory: Path) -> AsyncIterator[tuple[RunningBroker, Admin, str]]:
    async with name_server() as server:
        namesrv = f"{server.address[0]}:{server.address[1]}"
        limits = limited(upkeep={"statistics_seconds_min": 0.0})
        async with running(directory, namesrv=namesrv, limits=limits) as broker, Admin(namesrv) as admin:
            yield broker, admin, namesrv


async def test_topic_from_creation_to_deletion(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (_, admin, namesrv):
        await admin.create_topic("T", 2, perm=6, order=True, message_type="FIFO")
        await admin.create_topic("T", 2, perm=6, order=True)  # leaves the type as it is
        with pytest.raises(ValueError, match="message_type"):
            await admin.create_topic("T", 2, message_type="fifo")
        config = (await admin.topic_config("T"))[GROUP]
        assert config.attributes == {"message.type": "FIFO"}
        assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) == (2, 2, 6, True)
        async with Producer(namesrv) as producer:
            await producer.send_many(Message("T", b"x") for _ in range(5))
        ends = await admin.topic_stats("T")
        assert sorted(ends) == [MessageQueue("T", GROUP, 0), MessageQueue("T", GROUP, 1)]
        assert sum(each.max_offset - each.min_offset for each in ends.values()) == 5
        assert all(bool(each.last_update_ms) is (each.max_offset > 0) for each in ends.values())
        identity = (await admin.topic_identities("T"))[GROUP]
        await admin.delete_topic("T")
        with pytest.raises(TopicNotFound):
            await admin.topic_config("T")
        await admin.create_topic("T", 2)
        assert identity not in ("", (await admin.topic_identities("T"))[GROUP])


async def test_deleted_topic_is_removed_from_uninformed_name_servers(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (broker, admin, _):
        await admin.create_topic("T")
        client = await broker.connect()
        assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0

        while "T" in await admin.topics():
            await client.info()
        with pytest.raises(TopicNotFound):
            await admin.route("T")


async def test_stats_count_stored_messages(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (_, admin, namesrv):
        await admin.create_topic("T", 1)
        assert await admin.figure("TOPIC_PUT_NUMS", "T") == {}
        async with Producer(namesrv) as producer:
            await producer.send_many(Message("T", b"x") for _ in range(5))
        assert (await admin.figure("TOPIC_PUT_NUMS", "T"))[GROUP].stats_minute.sum == 5


async def test_consumer_group_from_creation_to_deletion(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (broker, admin, _):
        await admin.create_topic("T", 1)
        config = SubscriptionGroupConfig(group_name="G", retry_max_times=3)
        await admin.put_consumer_group(config)
        assert await admin.consumer_groups() == {"G": {GROUP: config}}
        assert await admin.group_progress("G") == {}
        client = await broker.connect()
        await client.send("T", e=0)
        where = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, where)
        stored_ms = (await client.pull("T")).records[0].store_timestamp_ms
        queue = MessageQueue("T", GROUP, 0)
        assert await admin.group_progress("G") == {
            queue: GroupProgress(end=QueueOffset(1), offset=QueueOffset(1), last_ms=stored_ms, pulled=QueueOffset(1))
        }
        await admin.create_topic("%RETRY%G", 1)
        await admin.delete_consumer_group("G", topics=True)
        assert await admin.consumer_groups() == {}
        assert await admin.group_offset("G", queue) is None
        assert "%RETRY%G" not in await admin.topics()


async def test_deleting_a_group_deletes_retry_topics_of_its_pops(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (_, admin, _):
        for group in ("G", "a", "a_b"):
            await admin.put_consumer_group(SubscriptionGroupConfig(group_name=group))
        for topic in ("T", "c", "b_c", "%RETRY%G_T", "%RETRY%other_T", "%RETRY%a_T", "%RETRY%a_b_c"):
            await admin.create_topic(topic, 1)
        await admin.delete_consumer_group("G")
        assert "%RETRY%G_T" in await admin.topics()
        await admin.delete_consumer_group("G", topics=True)
        assert "%RETRY%G_T" not in await admin.topics()
        # That of topic b_c has the name of the one that group a_b has for topic c.
        await admin.delete_consumer_group("a", topics=True)
        assert {"%RETRY%a_b_c", "%RETRY%other_T"} == {
            t for t in await admin.topics() if t.startswith("%RETRY%") and "_" in t
        }
        await admin.delete_consumer_group("a_b", topics=True)
        assert "%RETRY%a_b_c" not in await admin.topics()


async def test_operator_has_a_consumer_handle_one_message(tmp_path: Path) -> None:
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if handled.count(message.body) > 2:
            raise LookupError("seen twice")

    async with administrated(tmp_path) as (broker, admin, namesrv), Producer(namesrv) as producer:
        await admin.create_topic("T", 1)
        result = await producer.send(Message("T", b"hello"))
        consumer = PushConsumer(namesrv, "G", consume_from="first")
        consumer.subscribe("T")
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await until(lambda: handled)
            client = await broker.connect()
            ext = {"consumerGroup": "G", "clientId": consumer.client_id, "msgId": result.offset_message_id}
            answers = [await client.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext) for _ in range(2)]
            consumer.stop()
        outcomes = [ConsumeResult.decode(answer.body) for answer in answers]
        assert handled == [b"hello"] * 3
        assert [(each.consume_result, each.remark, each.order) for each in outcomes] == [
            ("CR_SUCCESS", "", True),
            ("CR_THROW_EXCEPTION", "LookupError('seen twice')", True),
        ]


async def test_refusals_are_errors(tmp_path: Path) -> None:
    async with administrated(tmp_path) as (_, admin, _):
        for name in ("../x", "", "x" * 300):
            with pytest.raises(NameRefused):
                await admin.put_consumer_group(SubscriptionGroupConfig(group_name=name))
            with pytest.raises(NameRefused):
                await admin.delete_consumer_group(name)
        with pytest.raises(BrokerError, match="system") as caught:
            await admin.delete_topic("TBW102")
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
