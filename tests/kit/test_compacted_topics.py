"""Compacted topics as consumers of every kind see them, after their old messages were carried; in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mq.client import Admin, Message, PopConsumer, Producer, PullConsumer, ReceivedMessage, tombstone
from mq.testing import Kit, open_kit
from tests.support.proxies import open_proxy
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

OLD_HOURS = 0.1
COMPACTED_SECONDS = 2 * OLD_HOURS * 3600 + 60
"""Until old messages are carried, and their originals gone."""


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    async with open_kit(retention_hours=OLD_HOURS) as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic("Prices", queues=2, compacted=True)
        yield kit


async def put(producer: Producer, key: str, value: str) -> None:
    await producer.send(Message("Prices", value.encode(), keys=[key], sharding_key=key))


async def some_values(producer: Producer) -> dict[str, bytes]:
    """Three values of each of ten keys, of which two are deleted again; what is left."""
    for turn in range(3):
        for number in range(10):
            await put(producer, f"k{number}", f"{number}.{turn}")
    for key in ("k3", "k4"):
        await producer.send(tombstone("Prices", key))
    return {f"k{number}": b"%d.2" % number for number in range(10) if number not in (3, 4)}


async def read(kit: Kit) -> list[ReceivedMessage]:
    async with PullConsumer(kit.namesrv, "reading", consume_from="first") as consumer:
        await consumer.assign(await consumer.queues("Prices"))
        return [message async for message in await consumer.read_to_end()]


def table(messages: list[ReceivedMessage]) -> dict[str, bytes]:
    """The last value of each key, as a program builds it."""
    found: dict[str, bytes] = {}
    for message in messages:
        [key] = message.keys
        if message.body:
            found[key] = bytes(message.body)
        else:
            found.pop(key, None)
    return found


async def test_popped_messages_of_a_compacted_topic_are_its_newest_values(kit: Kit, producer: Producer) -> None:
    left = await some_values(producer)
    await trio.sleep(COMPACTED_SECONDS)
    stored = await read(kit)
    assert {message.is_carried for message in stored} == {True}
    assert len({key for message in stored for key in message.keys}) == 10, "eight values and two tombstones"
    got: list[ReceivedMessage] = []
    async with PopConsumer(kit.namesrv, "popping", "Prices", consume_from="first", invisible=60.0) as consumer:
        async for message in consumer:
            await consumer.ack(message)
            got.append(message)
            if len(got) == len(stored):
                break
    assert table(got) == left == table(await read(kit))
    assert {key for message in got if not message.body for key in message.keys} == {"k3", "k4"}


async def test_compaction_keeps_popped_messages_until_acknowledged(kit: Kit, producer: Producer) -> None:
    """What a consumer holds stays until its time is over, though a copy of it is stored already."""
    await put(producer, "k", "held")
    async with PopConsumer(
        kit.namesrv, "popping", "Prices", consume_from="first", invisible=1800.0, ahead=0
    ) as consumer:
        held = await anext(consumer)
        await trio.sleep(COMPACTED_SECONDS)
        original, *copies = await read(kit)
        assert (original.queue_offset, original.is_carried) == (held.queue_offset, False)
        assert copies
        await consumer.ack(held)
        await trio.sleep(60)  # in virtual time: the leader looks at what may go
        assert {(message.body, message.is_carried) for message in await read(kit)} == {(b"held", True)}


async def test_grpc_clients_get_values_and_tombstones(kit: Kit, producer: Producer) -> None:
    async with open_proxy(kit) as proxy:
        await proxy.receive("billing", "Prices")  # a new group begins at the end
        left = await some_values(producer)
        await trio.sleep(COMPACTED_SECONDS)
        last: dict[str, bytes] = {}
        while messages := (await proxy.receive("billing", "Prices"))[1]:
            await proxy.acknowledge("billing", *messages)
            for message in messages:
                [key] = message.system_properties.keys
                last[key] = message.body
        assert {key: body for key, body in last.items() if body} == left
        assert sorted(key for key, body in last.items() if not body) == ["k3", "k4"]
