"""Numbered producers on real brokers, in virtual time: what is sent again is stored once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from mq.client import (
    Admin,
    DeadLetter,
    Message,
    NumberUsed,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendOutcomeUnknown,
    SendResult,
    TransactionProducer,
)
from mq.testing import Kit, SyncKit, open_kit
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME


@pytest.fixture
def options() -> dict[str, Any]:
    """Of the producer; a test gives others by `parametrize`."""
    return {}


@pytest.fixture
async def producer(kit: Kit, options: dict[str, Any]) -> AsyncIterator[Producer]:
    """It has sent one message, elsewhere."""
    async with Producer(kit.namesrv, **{"numbered": True, "retries": 4} | options) as producer:
        await producer.send(Message("Warm", b"up"))
        yield producer


def stored(kit: Kit | SyncKit, topic: str = "Orders") -> list[bytes]:
    return sorted(bytes(message.body) for message in kit.messages(topic))


@pytest.mark.parametrize("repeats", [1, 3])
async def test_message_sent_again_is_stored_once(kit: Kit, producer: Producer, repeats: int) -> None:
    kit.faults.outcome_unknown(repeats)
    result = await producer.send(Message("Orders", b"one"))
    assert (result.attempts, result.maybe_duplicated) == (1 + repeats, False)
    await kit.settle()
    [message] = kit.messages("Orders")
    assert message.message_id == result.message_id
    assert (message.queue, message.queue_offset) == (result.queue, result.queue_offset)
    assert message.offset_message_id == result.offset_message_id


@pytest.mark.parametrize("faults", [("lost", "outcome_unknown"), ("outcome_unknown", "lost"), ("duplicate",)])
async def test_numbered_message_is_stored_once_under_faults(
    kit: Kit, producer: Producer, faults: tuple[str, ...]
) -> None:
    for fault in faults:
        getattr(kit.faults, fault)()
    await producer.send(Message("Orders", b"one"))
    await kit.settle()
    assert stored(kit) == [b"one"]
    assert kit.faults.pending == 0


@pytest.mark.parametrize("options", [{"numbered": False}])
async def test_unnumbered_resend_is_stored_twice(kit: Kit, producer: Producer) -> None:
    kit.faults.outcome_unknown()
    assert (await producer.send(Message("Orders", b"one"))).maybe_duplicated
    await kit.settle()
    assert stored(kit) == [b"one", b"one"]


async def test_same_message_sent_twice_is_stored_twice(kit: Kit, producer: Producer) -> None:
    message = Message("Orders", b"one", keys=["k"])
    first, second = [await producer.send(message) for _ in range(2)]
    assert first.message_id != second.message_id
    assert stored(kit) == [b"one", b"one"]


async def test_batch_sent_again_is_stored_once(kit: Kit, producer: Producer) -> None:
    kit.faults.outcome_unknown(2)
    bodies = [b"%02d" % number for number in range(50)]
    results = await producer.send_batch([Message("Orders", body) for body in bodies])
    await kit.settle()
    messages = kit.messages("Orders")
    assert [message.body for message in messages] == bodies
    assert [message.message_id for message in messages] == [each.message_id for each in results]
    assert [message.queue_offset for message in messages] == [each.queue_offset for each in results]
    await producer.send(Message("Orders", b"next"))


@pytest.mark.parametrize("options", [{"linger": 0.01, "batch_bytes": 4096}])
async def test_automatic_batches_sent_again_are_stored_once(kit: Kit, producer: Producer) -> None:
    bodies = [b"%04d" % number for number in range(2000)]
    for _ in range(3):
        kit.faults.outcome_unknown()
        kit.faults.lost()
    outcomes = await producer.send_many([Message("Orders", body) for body in bodies])
    assert all(isinstance(each, SendResult) for each in outcomes)
    await kit.settle()
    assert stored(kit) == bodies
    assert kit.faults.pending == 0


async def test_delayed_message_sent_again_is_delivered_once(kit: Kit, producer: Producer) -> None:
    kit.faults.outcome_unknown(2)
    result = await producer.send(Message("Orders", b"late", delay=3600.0))
    assert result.recall_handle
    await kit.advance(hours=2)
    assert stored(kit) == [b"late"]


async def test_half_message_sent_again_is_committed_once() -> None:
    async def committed(message: ReceivedMessage) -> bool | None:
        return True

    async with (
        open_kit() as kit,
        TransactionProducer(kit.namesrv, "shop", check=committed, numbered=True) as producer,
    ):
        await producer.send(Message("Warm", b"up"))
        kit.faults.outcome_unknown(2)
        async with producer.transaction(Message("Orders", b"two apples")) as transaction:
            pass
        assert transaction.confirmed
        await kit.advance(hours=1)  # a second half message would be committed by the check
        assert stored(kit) == [b"two apples"]


@pytest.mark.parametrize("replicas", [3])
@pytest.mark.parametrize("options", [{"timeout": 120.0}])
async def test_thousand_messages_in_flight_survive_the_leader_once(kit: Kit, producer: Producer) -> None:
    bodies = [b"%05d" % number for number in range(1500)]

    async def lose_leaders() -> None:
        for _ in range(2):
            await trio.sleep(0.002)
            lost = await kit.lose_leader()
            await trio.sleep(0.5)
            await kit.restore(lost)
            await kit.wait_ready()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose_leaders)
        outcomes = await producer.send_many([Message("Orders", body) for body in bodies])
    assert all(isinstance(each, SendResult) for each in outcomes)
    await kit.settle()
    assert stored(kit) == bodies


async def test_sends_wait_for_a_message_without_outcome_before_it_is_forgotten(kit: Kit, producer: Producer) -> None:
    """If more passed it, the broker would refuse to store or to recognize it."""
    kit.faults.outcome_unknown()
    outcomes = await producer.send_many([Message("Orders", b"%05d" % number) for number in range(2200)])
    assert all(isinstance(each, SendResult) for each in outcomes)
    await kit.settle()
    assert stored(kit) == [b"%05d" % number for number in range(2200)]


@pytest.mark.parametrize("options", [{"numbered": "billing", "first_number": 0}])
async def test_producers_sharing_an_id_lose_no_message(kit: Kit, producer: Producer) -> None:
    async with Producer(kit.namesrv, numbered="billing", first_number=2) as second:
        for number in range(5):
            await producer.send(Message("Orders", b"first %d" % number))
        for number in range(2, 6):
            with pytest.raises(NumberUsed, match="Another process uses this producer id") as caught:
                await second.send(Message("Orders", b"second %d" % number))
            assert caught.value.stored == "no"
        await second.send(Message("Orders", b"second 6"))
        with pytest.raises(NumberUsed):
            await producer.send(Message("Orders", b"first 6"))
        await second.send(Message("Orders", b"second 7"))
        with pytest.raises(NumberUsed, match="is in topic Orders"):
            await producer.send(Message("Warm", b"first 7"))
        assert stored(kit) == [*(b"first %d" % number for number in range(5)), b"second 6", b"second 7"]


@pytest.mark.parametrize("options", [{"numbered": "billing", "first_number": 100}])
async def test_batches_that_share_numbers_have_an_unknown_outcome(kit: Kit, producer: Producer) -> None:
    async with Producer(kit.namesrv, numbered="billing", first_number=104) as second:
        await producer.send_batch([Message("Orders", b"first")] * 5)
        with pytest.raises(SendOutcomeUnknown, match=r"2 of .* were stored before") as caught:
            await second.send_batch([Message("Orders", b"second")] * 4)
        assert isinstance(caught.value.__cause__, NumberUsed)
        assert stored(kit) == [b"first"] * 5 + [b"second"] * 2


@pytest.mark.parametrize("options", [{"numbered": "billing", "first_number": 10_000}])
async def test_numbers_below_all_that_are_remembered_are_refused(kit: Kit, producer: Producer) -> None:
    """As after a restart with a clock that has gone back."""
    await producer.send_many([Message("Orders", b"x") for _ in range(1100)])
    async with Producer(kit.namesrv, numbered="billing", first_number=5000) as second:
        with pytest.raises(NumberUsed, match=r"SEQUENCE_FORGOTTEN.*first_number above all"):
            await second.send(Message("Orders", b"y"))
    async with Producer(kit.namesrv, numbered="billing") as third:
        await third.send(Message("Orders", b"z"))
    assert stored(kit).count(b"y") == 0
    assert stored(kit).count(b"z") == 1


async def test_sequence_numbers_continue_after_a_restart() -> None:
    async with open_kit() as kit:
        for turn in range(3):
            async with Producer(kit.namesrv, numbered="billing") as producer:
                outcomes = await producer.send_many([Message("Orders", b"%d" % turn) for _ in range(50)])
                assert all(isinstance(each, SendResult) for each in outcomes)
        assert len(kit.messages("Orders")) == 150


async def test_cancelled_send_leaves_the_next_ones_alone(kit: Kit, producer: Producer) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await producer.send(Message("Orders", b"cancelled"))
    await producer.send(Message("Orders", b"next"))
    assert stored(kit)[-1] == b"next"


async def test_cancelling_a_send_in_flight_does_not_affect_other_sends(kit: Kit, producer: Producer) -> None:
    kit.faults.outcome_unknown(2)
    with trio.move_on_after(0):
        await producer.send(Message("Orders", b"cancelled"))
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(producer.send, Message("Orders", b"%d" % number))
    await kit.settle()
    bodies = stored(kit)
    assert [bodies.count(b"%d" % number) for number in range(20)] == [1] * 20
    assert bodies.count(b"cancelled") <= 1


@pytest.mark.parametrize("options", [{"numbered": "billing"}])
async def test_consumer_can_forward_the_properties_of_a_numbered_message(kit: Kit, producer: Producer) -> None:
    """With the numbers, the broker would take the message for a repeat, and not store it."""
    await producer.send(Message("Orders", b"one", properties={"colour": "red"}))
    [message] = kit.messages("Orders")
    assert message.properties["RAFTMQ_PRODUCER"] == "billing"
    assert message.user_properties == {"colour": "red"}
    async with Producer(kit.namesrv) as forwarding:
        await forwarding.send(Message("Orders", message.body, properties=message.user_properties))
    assert stored(kit) == [b"one", b"one"]


@pytest.mark.parametrize("is_batch", [False, True])
async def test_dead_letter_of_a_numbered_message_is_requeued_to_its_topic(
    kit: Kit, producer: Producer, *, is_batch: bool
) -> None:
    consumer = PushConsumer(kit.namesrv, group="readers", consume_from="first")

    @consumer.on("Orders", on_error={LookupError: DeadLetter()})
    async def fail(message: ReceivedMessage) -> None:
        raise LookupError("no such fruit")

    async with consumer, Admin(kit.namesrv) as admin, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        if is_batch:
            await producer.send_batch([Message("Orders", b"one")] * 2)
        else:
            await producer.send(Message("Orders", b"one"))
        await kit.advance_until(lambda: kit.dead_letters("readers"))
        consumer.stop()
        before = len(stored(kit))
        await admin.requeue_dead_letter("readers", kit.dead_letters("readers")[0], to_topic=True)
        await kit.settle()
        assert len(stored(kit)) == before + 1
