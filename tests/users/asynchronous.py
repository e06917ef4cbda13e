"""A program on asyncio or trio: what each call takes and returns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import assert_type

from raftmq import (
    Admin,
    BrokerError,
    ClientError,
    ClusterInfo,
    Credentials,
    Delivery,
    FlowLimits,
    Message,
    MessageQueue,
    MessageTrace,
    PopConsumer,
    PoppedMessage,
    Producer,
    PullConsumer,
    PullSettings,
    PushConsumer,
    QueueEnds,
    ReceivedMessage,
    RemotingSettings,
    SendOutcomeUnknown,
    SendResult,
    SendStatus,
    SetTransaction,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRoute,
    Transaction,
    TransactionProducer,
    sql,
)

SERVERS = ["127.0.0.1:9876", "127.0.0.2:9876"]


async def produce() -> None:
    remoting = RemotingSettings(credentials=Credentials("key", "secret"))
    async with Producer(SERVERS, group="shop", linger=0.005, compress="zstd", retries=3, remoting=remoting) as producer:
        message = Message("Orders", b"two apples", tags="new", keys=["4711"], properties={"region": "eu"}, delay=1.5)
        result = await producer.send(message, timeout=3.0)
        assert_type(result, SendResult)
        assert_type(result.status, SendStatus)
        assert_type(result.queue, MessageQueue)
        assert_type(result.queue_offset, int)
        assert_type(await producer.send(message, queue=result.queue), SendResult)
        assert_type(await (await producer.submit(message)), SendResult)
        producer.send_nowait(message, sent)
        await producer.send_oneway(message)
        assert_type(await producer.send_many([message, message]), list[SendResult | ClientError])
        assert_type(await producer.request(message, timeout=1.0), ReceivedMessage)
        assert_type(await producer.recall(result.recall_handle), str)
        assert_type(await producer.queues("Orders"), list[MessageQueue])
        assert_type(producer.in_flight, int)
        await producer.flush()
        await producer.send_batch([message])
    opened = Producer("127.0.0.1:9876")
    await opened.open()
    await opened.aclose()


def sent(outcome: SendResult | ClientError) -> None:
    match outcome:
        case SendResult():
            print(outcome.message_id)
        case SendOutcomeUnknown():
            print(outcome.message_id, outcome.stored)
        case BrokerError():
            print(outcome.code)
        case _:
            print(outcome)


async def consume() -> None:
    limits = FlowLimits(count_max=100)
    async with PushConsumer(
        SERVERS, "readers", consume_from="first", ordered=False, pull=PullSettings(limits=limits)
    ) as consumer:

        @consumer.on("Orders", "new || paid")
        async def order(message: ReceivedMessage) -> None:
            assert_type(message.body, bytes)
            assert_type(message.keys, tuple[str, ...])
            assert_type(message.tags, str | None)
            assert_type(message.properties, Mapping[str, str])
            assert_type(message.user_properties, Mapping[str, str])
            offset: int = message.queue_offset
            assert_type(message.attempt, int)
            await consumer.dead_letter(message, f"unreadable at {offset}")

        @consumer.on("Bills", sql("amount > 5"), batch=32)
        async def bills(messages: list[ReceivedMessage]) -> None:
            print(len(messages))

        print(order, bills)
        await consumer.run()
        await consumer.commit()
        assert_type(await consumer.wait_assigned(), frozenset[MessageQueue])
        assert_type(consumer.positions, Mapping[MessageQueue, int])
        consumer.pause(*consumer.assignment)
        consumer.resume()
        consumer.stop()


async def stream() -> None:
    async with PushConsumer("127.0.0.1:9876", group="readers", consume_from=dt.datetime.now(tz=dt.UTC)) as consumer:
        consumer.subscribe("Orders", sql("region = 'eu'"))
        async for message in consumer:
            assert_type(message, ReceivedMessage)
            await consumer.reply(message, b"done")
        async for delivery in consumer.deliveries():
            assert_type(delivery, Delivery)
            assert_type(delivery.message, ReceivedMessage)
            delivery.ack()
            delivery.nack(30.0)
            with delivery:
                print(delivery.finished)


async def pull() -> None:
    async with PullConsumer("127.0.0.1:9876", "reports") as consumer:
        queues = await consumer.queues("Orders")
        assert_type(queues, list[MessageQueue])
        await consumer.assign(queues)
        await consumer.seek(queues[0], "first")
        await consumer.seek(queues[0], dt.datetime.now(tz=dt.UTC))
        for message in await consumer.poll(100, timeout=1.0):
            assert_type(message, ReceivedMessage)
        await consumer.commit({queues[0]: 5})
        assert_type(await consumer.committed(queues[0]), int | None)
        assert_type(consumer.position(queues[0]), int)


async def pop() -> None:
    async with PopConsumer("127.0.0.1:9876", "workers", "Orders", "new", invisible=30.0) as consumer:
        async for message in consumer:
            assert_type(message, PoppedMessage)
            assert_type(message.body, bytes)
            await consumer.ack(message)
            await consumer.nack(message, delay=5.0)


async def transact() -> None:
    async def check(message: ReceivedMessage) -> bool | None:
        return message.keys == ("4711",) or None

    async with TransactionProducer("127.0.0.1:9876", group="bank", check=check, timeout=10.0) as producer:
        async with producer.transaction(Message("Orders", b"two apples")) as transaction:
            assert_type(transaction, Transaction)
            assert_type(transaction.message_id, str)
            transaction.rollback()
            transaction.leave_open()


async def transform() -> None:
    def check_set(transaction_id: str) -> bool | None:
        return transaction_id == "known" or None

    pushed = PushConsumer(SERVERS, group="pricing")
    async with (
        TransactionProducer(SERVERS, "pricing", check_set=check_set) as producer,
        PullConsumer(SERVERS, group="pricing") as consumer,
    ):
        async with producer.transaction(timeout=5.0) as transaction:
            assert_type(transaction, SetTransaction)
            messages = await consumer.poll()
            assert_type(await transaction.send(Message("Prices", b"2")), str)
            await transaction.commit_offsets(consumer)
            await transaction.commit_offsets(pushed, messages[0])
            await transaction.commit_offsets(pushed, messages)
            await transaction.prepare()
            transaction.rollback()
        assert_type(transaction.id, str)
        assert_type(transaction.is_committed, bool)


async def administer() -> None:
    async with Admin(SERVERS) as admin:
        assert_type(await admin.create_topic("Orders", queues=8), TopicRoute)
        assert_type(await admin.topics(), list[str])
        assert_type(await admin.cluster_info(), ClusterInfo)
        assert_type(await admin.topic_config("Orders"), dict[str, TopicConfig])
        assert_type(await admin.topic_stats("Orders"), dict[MessageQueue, QueueEnds])
        assert_type(await admin.message_by_id("id"), ReceivedMessage | None)
        assert_type(await admin.messages_by_key("Orders", "4711"), list[ReceivedMessage])
        assert_type(await admin.consumer_groups(), dict[str, dict[str, SubscriptionGroupConfig]])
        assert_type(await admin.reset_group("readers", "Orders", "first"), dict[MessageQueue, int])
        assert_type(await admin.trace("id"), MessageTrace)
        await admin.delete_topic("Orders")
