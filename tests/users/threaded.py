"""A program without an event loop: what each call takes and returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import assert_type

from raftmq import (
    ClientError,
    Message,
    MessageQueue,
    MessageTrace,
    PoppedMessage,
    QueueEnds,
    ReceivedMessage,
    SendResult,
    TopicRoute,
    sql,
)
from raftmq.sync import (
    SyncAdmin,
    SyncDelivery,
    SyncPopConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncSetTransaction,
    SyncTransactionProducer,
)

SERVER = "127.0.0.1:9876"


def produce() -> None:
    with SyncProducer(SERVER, group="shop", timeout=10.0, linger=0.01) as producer:
        message = Message("Orders", b"two apples", tags="new")
        assert_type(producer.send(message, timeout=2.0), SendResult)
        assert_type(producer.submit(message), Future[SendResult])
        assert_type(producer.submit(message).result(), SendResult)
        assert_type(producer.send_many([message]), list[SendResult | ClientError])
        assert_type(producer.request(message), ReceivedMessage)
        assert_type(producer.recall("handle"), str)
        assert_type(producer.queues("Orders"), list[MessageQueue])
        producer.send_oneway(message)
        producer.flush()


def push() -> None:
    with SyncPushConsumer(SERVER, group="readers", consume_from="first", ordered=True) as consumer:
        consumer.subscribe("Orders", sql("a > 5"))
        assert_type(consumer.receive(timeout=1.0), ReceivedMessage | None)
        for message in consumer:
            assert_type(message, ReceivedMessage)
        deliveries = consumer.deliveries()
        assert_type(deliveries, Iterator[SyncDelivery])
        for delivery in deliveries:
            assert_type(delivery.message, ReceivedMessage)
            delivery.ack()
            delivery.nack(5.0)
        assert_type(consumer.wait_assigned(), frozenset[MessageQueue])
        assert_type(consumer.positions, Mapping[MessageQueue, int])

        def handle(message: ReceivedMessage) -> None:
            print(message.body)

        consumer.run(handle)


def pull() -> None:
    with SyncPullConsumer(SERVER, "reports") as consumer:
        queues = consumer.queues("Orders")
        assert_type(queues, list[MessageQueue])
        consumer.assign(queues)
        consumer.seek(queues[0], "last")
        assert_type(consumer.poll(10, timeout=1.0), list[ReceivedMessage])
        consumer.commit()
        assert_type(consumer.committed(queues[0]), int | None)


def pop() -> None:
    with SyncPopConsumer(SERVER, "workers", "Orders", invisible=30.0) as consumer:
        for message in consumer:
            assert_type(message, PoppedMessage)
            consumer.ack(message)
            consumer.nack(message)


def transact() -> None:
    def check(message: ReceivedMessage) -> bool | None:
        return bool(message.keys)

    with SyncTransactionProducer(SERVER, group="bank", check=check) as producer:
        with producer.transaction(Message("Orders", b"two apples")) as transaction:
            transaction.rollback()


def transform() -> None:
    def check_set(transaction_id: str) -> bool | None:
        return transaction_id == "known" or None

    with (
        SyncTransactionProducer(SERVER, "pricing", check_set=check_set) as producer,
        SyncPullConsumer(SERVER, group="pricing") as consumer,
    ):
        with producer.transaction() as transaction:
            assert_type(transaction, SyncSetTransaction)
            assert_type(consumer.poll(), list[ReceivedMessage])
            assert_type(transaction.send(Message("Prices", b"2")), str)
            transaction.commit_offsets(consumer)
            transaction.prepare()
        assert_type(transaction.is_committed, bool)


def administer() -> None:
    with SyncAdmin(SERVER) as admin:
        assert_type(admin.create_topic("Orders", queues=4), TopicRoute)
        assert_type(admin.topics(), list[str])
        assert_type(admin.topic_stats("Orders"), dict[MessageQueue, QueueEnds])
        assert_type(admin.trace("id"), MessageTrace)
