"""The faults that a test switches on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mq.client import Message, Producer, PushConsumer, SendOutcomeUnknown, SendRejected
from mq.protocol.codes import ResponseCode
from mq.testing import Kit
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME


@pytest.fixture
async def producer(kit: Kit) -> AsyncIterator[Producer]:
    async with Producer(kit.namesrv, retry_unknown=False) as producer:
        yield producer


@asynccontextmanager
async def collecting(kit: Kit, topic: str) -> AsyncIterator[list[str]]:
    ids: list[str] = []
    consumer = PushConsumer(kit.namesrv, group="readers", consume_from="first")

    @consumer.on(topic)
    async def note(message: object) -> None:
        ids.append(message.message_id)  # type: ignore[attr-defined]

    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        yield ids
        consumer.stop()


async def test_unknown_outcome_of_a_stored_message(kit: Kit, producer: Producer) -> None:
    kit.faults.outcome_unknown()
    with pytest.raises(SendOutcomeUnknown) as caught:
        await producer.send(Message("Orders", b"one"))
    assert caught.value.stored == "unknown"
    await kit.settle()
    [message] = kit.messages("Orders")
    assert message.message_id == caught.value.message_id
    assert (kit.faults.played, kit.faults.pending) == (1, 0)


async def test_dropped_send_has_an_unknown_outcome(kit: Kit, producer: Producer) -> None:
    kit.faults.lost()
    with pytest.raises(SendOutcomeUnknown):
        await producer.send(Message("Orders", b"one"))
    await kit.settle()
    assert kit.messages("Orders") == []


async def test_retry_after_an_unknown_outcome_stores_twice(kit: Kit) -> None:
    kit.faults.outcome_unknown()
    async with Producer(kit.namesrv) as retrying:
        result = await retrying.send(Message("Orders", b"one"))
    assert result.maybe_duplicated
    kit.assert_stored("Orders", b"one", b"one")


async def test_duplicate_is_delivered_twice(kit: Kit, producer: Producer) -> None:
    kit.faults.duplicate()
    result = await producer.send(Message("Orders", b"one"))
    async with collecting(kit, "Orders") as ids:
        await kit.advance_until(lambda: len(ids) == 2)
    assert ids == [result.message_id] * 2
    await producer.send(Message("Orders", b"two"))
    kit.assert_stored("Orders", b"one", b"one", b"two")


async def test_kit_refuses_a_send_with_the_chosen_code(kit: Kit, producer: Producer) -> None:
    kit.faults.refuse(ResponseCode.NO_PERMISSION, "closed for today")
    with pytest.raises(SendRejected, match="closed for today") as caught:
        await producer.send(Message("Orders", b"one"))
    assert caught.value.code == ResponseCode.NO_PERMISSION
    assert kit.messages("Orders") == []
    with pytest.raises(ValueError, match="choose another one"):
        kit.faults.refuse(ResponseCode.SUCCESS)


async def test_kit_delays_answers_of_a_slow_broker(kit: Kit, producer: Producer) -> None:
    await producer.send(Message("Orders", b"one"))
    began = trio.current_time()
    with kit.faults.slow(2.0):
        await producer.send(Message("Orders", b"two"))
    assert 1.999 < trio.current_time() - began < 2.5
    with kit.faults.slow(20.0), pytest.raises(SendOutcomeUnknown):
        await producer.send(Message("Orders", b"three"))


async def test_reset_connections_are_reopened(kit: Kit, producer: Producer) -> None:
    async with collecting(kit, "Orders") as ids:
        await producer.send(Message("Orders", b"one"))
        await kit.advance_until(lambda: len(ids) == 1)
        kit.break_connections()
        await kit.settle()
        await producer.send(Message("Orders", b"two"))
        await kit.advance_until(lambda: len(ids) == 2)


async def test_faults_that_have_not_happened_can_be_taken_back(kit: Kit, producer: Producer) -> None:
    kit.faults.lost(3)
    kit.faults.clear()
    await producer.send(Message("Orders", b"one"))
    assert kit.faults.played == 0


async def test_single_replica_kit_refuses_to_lose_its_leader(kit: Kit) -> None:
    with pytest.raises(ValueError, match="replicas=3"):
        await kit.lose_leader()
