"""A program with typed bodies: what codecs make of handlers, streams and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from raftmq import (
    BodyNotDecoded,
    BytesCodec,
    DeadLetter,
    Delivery,
    JsonCodec,
    Message,
    MsgpackCodec,
    PopConsumer,
    PoppedMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    Skip,
    TextCodec,
    TransactionProducer,
)
from raftmq.sync import (
    SyncDelivery,
    SyncPopConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
)

SERVER = "127.0.0.1:9876"


@dataclass
class Order:
    number: int


class Cents:
    """A codec of one's own."""

    def encode(self, value: int) -> bytes:
        return b"%d" % value

    def decode(self, body: bytes) -> int:
        return int(body)


async def produce() -> None:
    async with Producer(SERVER, codec=JsonCodec(Order)) as producer:
        assert_type(producer, Producer[Order])
        assert_type(await producer.send(Message("Orders", Order(1))), SendResult)
        await (await producer.submit(Message("Orders", Order(2))))
        producer.send_nowait(Message("Orders", Order(3)), print)
        await producer.send_oneway(Message("Orders", Order(4)))
        await producer.send_many(Message("Orders", Order(each)) for each in range(3))
        await producer.send_batch([Message("Orders", Order(5))])
        reply = await producer.request(Message("Orders", Order(6)), reply_codec=TextCodec())
        assert_type(reply, ReceivedMessage[str])
        assert_type(await producer.request(Message("Orders", Order(6))), ReceivedMessage[Order])
        await producer.send(Message("Orders", b"an order"))  # type: ignore[arg-type]  # pyright: ignore
    assert_type(Producer(SERVER), Producer[bytes])
    assert_type(Producer(SERVER, codec=JsonCodec()), Producer[Any])
    assert_type(Producer(SERVER, codec=Cents()), Producer[int])
    assert_type(Producer(SERVER, codec=MsgpackCodec(list[Order])), Producer[list[Order]])
    both: JsonCodec[Order | str] = JsonCodec(Order | str)
    assert_type(Producer(SERVER, codec=both), Producer[Order | str])


async def consume() -> None:
    consumer = PushConsumer(
        SERVER, "readers", codec=JsonCodec(Order), on_error={BodyNotDecoded: Skip, ValueError: DeadLetter}
    )
    assert_type(consumer, PushConsumer[Order])

    @consumer.on("Orders")
    async def one(message: ReceivedMessage[Order]) -> None:
        assert_type(message.body, Order)
        assert_type(message.raw_body, bytes)
        await consumer.reply(message, Order(message.body.number + 1))
        await consumer.reply(message, "done", codec=TextCodec())
        await consumer.dead_letter(message, "no")

    @consumer.on("Many", batch=32)
    async def many(messages: Sequence[ReceivedMessage[Order]]) -> None:
        assert_type(messages[0].body, Order)

    @consumer.on("Texts", codec=TextCodec())
    async def text(message: ReceivedMessage[str]) -> None:
        assert_type(message.body, str)

    @consumer.on("Prices", codec=Cents(), batch=8)
    async def prices(messages: list[ReceivedMessage[int]]) -> None:
        print(sum(each.body for each in messages))

    @consumer.on("Bytes", codec=BytesCodec())
    async def raw(message: ReceivedMessage) -> None:
        assert_type(message.body, bytes)

    @consumer.on("Orders")  # type: ignore[arg-type]  # pyright: ignore
    async def wrong(message: ReceivedMessage[str]) -> None:
        print(message)

    print(one, many, text, prices, raw, wrong)

    async def rest(message: ReceivedMessage[Order]) -> None:
        print(message.body.number)

    async with consumer:
        await consumer.run(rest)
        async for message in consumer:
            assert_type(message, ReceivedMessage[Order])
        async for delivery in consumer.deliveries():
            assert_type(delivery, Delivery[Order])
            with delivery as delivered:
                assert_type(delivered.body, Order)


async def pull_and_pop() -> None:
    async with PullConsumer(SERVER, "reports", codec=JsonCodec(Order)) as puller:
        assert_type(await puller.poll(), list[ReceivedMessage[Order]])
        async for message in puller:
            assert_type(message.body, Order)
        async for message in await puller.read_to_end():
            assert_type(message.body, Order)
    async with PopConsumer(
        SERVER, "workers", "Orders", codec=JsonCodec(Order), on_error={BodyNotDecoded: Skip}
    ) as pops:
        async for popped in pops:
            assert_type(popped, PoppedMessage[Order])
            assert_type(popped.body, Order)
            await pops.ack(popped)


async def transact() -> None:
    async def check(message: ReceivedMessage[Order]) -> bool | None:
        return message.body.number > 5

    async with TransactionProducer(SERVER, group="bank", check=check, codec=JsonCodec(Order)) as producer:
        async with producer.transaction(Message("Orders", Order(1))) as transaction:
            print(transaction.message_id)


def threaded() -> None:
    with SyncProducer(SERVER, codec=JsonCodec(Order)) as producer:
        assert_type(producer, SyncProducer[Order])
        assert_type(producer.send(Message("Orders", Order(1))), SendResult)
        assert_type(producer.request(Message("Orders", Order(1)), reply_codec=Cents()), ReceivedMessage[int])
        producer.submit(Message("Orders", Order(1))).result()
        producer.send_many([Message("Orders", Order(1))])
        producer.send("an order")  # type: ignore[arg-type]  # pyright: ignore
    with SyncPushConsumer(SERVER, "readers", codec=JsonCodec(Order), ordered=False) as consumer:

        @consumer.on("Orders")
        def one(message: ReceivedMessage[Order]) -> None:
            assert_type(message.body, Order)
            consumer.reply(message, Order(1))
            consumer.reply(message, 5, codec=Cents())

        @consumer.on("Texts", codec=TextCodec(), batch=5)
        def texts(messages: list[ReceivedMessage[str]]) -> None:
            print([each.body.upper() for each in messages])

        print(one, texts)
        assert_type(consumer.receive(timeout=1.0), ReceivedMessage[Order] | None)
        assert_type(consumer.deliveries(), Iterator[SyncDelivery[Order]])
        for message in consumer:
            assert_type(message.body, Order)
    with SyncPullConsumer(SERVER, "reports", codec=JsonCodec(Order)) as puller:
        assert_type(puller.poll(), list[ReceivedMessage[Order]])
    with SyncPopConsumer(SERVER, "workers", "Orders", codec=JsonCodec(Order)) as pops:
        for popped in pops:
            assert_type(popped, PoppedMessage[Order])
            pops.ack(popped)

    def check(message: ReceivedMessage[Order]) -> bool | None:
        return message.body.number > 5

    with SyncTransactionProducer(SERVER, group="bank", check=check, codec=JsonCodec(Order)) as transactions:
        with transactions.transaction(Message("Orders", Order(1))) as transaction:
            transaction.rollback()
