"""Typed bodies against a real broker: pops, dead letters, requests with replies, and check-backs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import (
    Admin,
    BodyNotDecoded,
    ClientEvent,
    JsonCodec,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    Skip,
    StopConsumer,
    TextCodec,
    TransactionProducer,
)
from mq.protocol import properties as props
from tests.support.name_server_and_broker import cluster, cluster_and_broker
from tests.support.waiting import until


@dataclass
class Order:
    number: int


CODEC = JsonCodec(Order)


async def fill(namesrv: str, *bodies: bytes) -> None:
    async with Producer(namesrv) as producer:
        for body in bodies:
            await producer.send(Message("T", body))


async def has_dead_letters(admin: Admin) -> bool:
    return "%DLQ%G" in await admin.topics()


async def dead_letters(namesrv: str, count: int) -> list[ReceivedMessage]:
    async with Admin(namesrv) as admin:
        await until(lambda: has_dead_letters(admin))
    async with PullConsumer(namesrv, "undertakers", consume_from="first") as reader:
        await reader.assign(await reader.queues("%DLQ%G"))
        found: list[ReceivedMessage] = []
        while len(found) < count:
            found += await reader.poll()
        return found


@pytest.mark.parametrize("ordered", [True, False])
async def test_popped_body_that_cannot_be_decoded_is_a_dead_letter(tmp_path: Path, ordered: bool) -> None:
    events: list[ClientEvent] = []
    async with cluster(tmp_path) as namesrv:
        with trio.fail_after(60):
            await fill(namesrv, b"bad", b'{"number":1}', b"bad", b'{"number":3}', b"bad")
            async with PopConsumer(
                namesrv, "G", "T", consume_from="first", ordered=ordered, codec=CODEC, on_event=events.append
            ) as consumer:
                got = []
                with trio.move_on_after(60) as scope:
                    async for message in consumer:
                        got.append(message.body)
                        await consumer.ack(message)
                        if len(got) == 2:
                            scope.deadline = trio.current_time() + 0.5  # the last one is behind them
            assert sorted(each.number for each in got) == [1, 3]
            found = await dead_letters(namesrv, 3)
        assert [each.body for each in found] == [b"bad"] * 3
        assert all("JsonCodec(Order): DecodeError" in each.properties[props.FAILURE] for each in found)
        assert len([event for event in events if event.kind == "undecodable"]) == 3
        # Acknowledged: nothing comes again.
        with trio.move_on_after(0.3):
            async with PopConsumer(namesrv, "G", "T", ordered=ordered) as consumer:
                pytest.fail(f"{await anext(consumer)} came again")


async def test_pop_consumer_follows_the_policies(namesrv: str) -> None:
    with trio.fail_after(60):
        await fill(namesrv, b"bad")
        async with PopConsumer(
            namesrv,
            "G",
            "T",
            consume_from="first",
            invisible=0.2,
            codec=CODEC,
            on_error={BodyNotDecoded: StopConsumer},
        ) as consumer:
            with pytest.raises(BodyNotDecoded) as raised:
                await anext(consumer)
            assert raised.value.message.raw_body == b"bad"
        # Not acknowledged: it comes again.
        events: list[ClientEvent] = []
        async with PopConsumer(
            namesrv,
            "G",
            "T",
            codec=CODEC,
            on_error={BodyNotDecoded: RetryLater(0.05)},
            on_event=events.append,
        ) as consumer:
            with trio.move_on_after(60) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(anext, consumer)
                    await until(lambda: [event.kind for event in events].count("undecodable") >= 2)
                    scope.cancel()
        async with PopConsumer(namesrv, "G", "T", codec=CODEC, on_error={BodyNotDecoded: Skip}) as consumer:
            with trio.move_on_after(1):
                pytest.fail(f"got {await anext(consumer)}")
    async with Admin(namesrv) as admin:
        assert not await has_dead_letters(admin)


@pytest.mark.parametrize("ordered", [True, False])
async def test_dead_letter_names_its_reason_and_can_be_requeued(tmp_path: Path, ordered: bool) -> None:
    async with cluster(tmp_path) as namesrv:
        with trio.fail_after(60):
            await fill(namesrv, b'{"number":"x"}', b'{"number":1}')
            consumer = PushConsumer(namesrv, "G", consume_from="first", ordered=ordered, codec=CODEC)
            got: list[Order] = []

            @consumer.on("T")
            async def bill(message: ReceivedMessage[Order]) -> None:
                got.append(message.body)

            async with consumer, trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run)
                [letter] = await dead_letters(namesrv, 1)
                await until(lambda: got == [Order(1)])
                consumer.stop()
            assert letter.body == b'{"number":"x"}'
            assert letter.properties[props.FAILURE].startswith(
                "BodyNotDecoded: cannot decode the body by JsonCodec(Order): "
                "ValidationError: Expected `int`, got `str` - at `$.number`"
            )


async def test_request_and_reply_bodies_may_have_different_types(namesrv: str) -> None:
    consumer = PushConsumer(namesrv, "G", consume_from="first", codec=CODEC)

    @consumer.on("T")
    async def answer(message: ReceivedMessage[Order]) -> None:
        match message.body.number:
            case 1:
                await consumer.reply(message, Order(2))
            case _:
                await consumer.reply(message, "two", codec=TextCodec())

    async with Producer(namesrv, codec=CODEC) as producer, consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        with trio.fail_after(60):
            await consumer.wait_assigned()
            assert (await producer.request(Message("T", Order(1)))).body == Order(2)
            assert (await producer.request(Message("T", Order(2)), reply_codec=TextCodec())).body == "two"
            with pytest.raises(BodyNotDecoded) as raised:
                await producer.request(Message("T", Order(2)))
            assert raised.value.message.raw_body == b"two"
        consumer.stop()


async def test_check_back_gets_the_value(tmp_path: Path) -> None:
    asked: list[Any] = []

    async def check(message: ReceivedMessage[Order]) -> bool:
        asked.append(message.body)
        return True

    fast = {"transaction_timeout_seconds": 0.2, "transaction_check_seconds": 0.2}
    async with cluster_and_broker(tmp_path, **fast) as (namesrv, _):
        async with TransactionProducer(namesrv, group="bank", check=check, codec=CODEC) as producer:
            with trio.fail_after(60):
                async with producer.transaction(Message("T", Order(7))) as transaction:
                    assert transaction.message.body == Order(7)
                    transaction.leave_open()
                async with PullConsumer(namesrv, "G", consume_from="first", codec=CODEC) as reader:
                    await reader.assign(await reader.queues("T"))
                    [message] = await reader.poll()
                    assert message.body == Order(7)
        assert asked == [Order(7)]
