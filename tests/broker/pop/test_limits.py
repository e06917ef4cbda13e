"""Pops at the limits: of what records hold, of what an entry holds, and of a millisecond."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode
from tests.support.popping import ack, again, now_ms, pop, popped
from tests.support.running_broker import Client, broker_client, limited, properties

FOUND, NOT_FOUND, FULL, TIMEOUT = 0, 19, 209, 210


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker accepts what earlier releases accepted."""
    monkeypatch.setattr(props, "SENT_PROPERTIES_BYTES_MAX", props.PROPERTIES_BYTES_MAX)


@pytest.mark.parametrize("room", [0, 160, 400])
async def test_message_without_room_for_a_receipt_is_redelivered(client: Client, room: int, older: None) -> None:
    await client.create_topic("T")
    value = "v" * (props.PROPERTIES_BYTES_MAX - 104 - len(properties(n="", KEYS="k")) - room)
    assert (await client.send(body=b"large", i=properties(n=value, KEYS="k"))).code == FOUND
    (message,) = await popped(client, invisibleTime=1)
    assert message.message.properties["n"] == value
    for times, invisible_ms in ((1, 1), (2, 60_000)):
        (message,) = await again(client, invisibleTime=invisible_ms)
        assert (message.body, message.message.reconsume_times) == (b"large", times)
        assert message.receipt.mark == "1"
        assert message.message.properties["KEYS"] == "k"
        assert ("n" in message.message.properties) != (props.OMITTED in message.message.properties)
    assert await ack(client, message) == FOUND
    assert await client.alive()


async def test_longest_message_is_redelivered_with_all_its_properties(client: Client) -> None:
    await client.create_topic("T")
    value = "v" * (props.SENT_PROPERTIES_BYTES_MAX - 150)
    assert (await client.send(body=b"large", i=properties(n=value))).code == FOUND
    (message,) = await popped(client, invisibleTime=1)
    for times, invisible_ms in ((1, 1), (2, 60_000)):
        (message,) = await again(client, invisibleTime=invisible_ms)
        assert (message.message.properties["n"], message.message.reconsume_times) == (value, times)
        assert message.message.properties["POP_CK"] == message.receipt.encode()


async def test_large_message_naming_another_group_is_redelivered(client: Client, older: None) -> None:
    await client.create_topic("T")
    value = "v" * (props.PROPERTIES_BYTES_MAX - 160)
    assert (await client.send(body=b"large", i=properties(n=value, UNIQ_KEY="u", ORIGIN_GROUP="H"))).code == FOUND
    (message,) = await popped(client, invisibleTime=1)
    (message,) = await again(client)
    assert (message.body, message.message.reconsume_times) == (b"large", 1)


async def test_pops_from_the_end_begin_in_thousands_of_queues(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1024, segment_bytes=128 * 1024, message_bytes_max=16 * 1024) as client:
        answer = await pop(client, initMode=1, pollTime=1500, bornTime=now_ms())
        assert answer.code == TIMEOUT
        for queue_id in (0, 511, 1023):
            await client.send(body=b"%d" % queue_id, e=queue_id)
        found = [each.body for _ in range(3) for each in await popped(client, initMode=1, maxMsgNums=1)]
        assert sorted(found) == [b"0", b"1023", b"511"]


async def test_visibility_change_in_the_millisecond_of_the_pop_affects_one_message(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("T")
    for number in range(3):
        await client.send(body=b"%d" % number)
    at_ms = now_ms() * 1_000_000
    with monkeypatch.context() as standing:
        standing.setattr("time.time_ns", lambda: at_ms)
        given = await popped(client)
        answer = await client.request(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, given[0].ack_ext() | {"invisibleTime": 0}
        )
    assert answer.code == FOUND
    await client.wait_for(lambda info: int(info["raftmq.popRevived"]) >= 1)
    assert [each.body for each in await again(client)] == [b"0"]
    assert (await client.info())["raftmq.popRevived"] == "1"
    assert [await ack(client, each) for each in given[1:]] == [FOUND, FOUND]


async def test_group_that_acknowledges_nothing_leaves_room_for_others(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, limits=limited(pop={"checkpoints_max": 4})) as client:
        for number in range(4):
            await client.send(body=b"%d" % number)
        taken = [await popped(client, maxMsgNums=1) for _ in range(2)]
        assert [message.body for [message] in taken] == [b"0", b"1"]
        assert (await pop(client, maxMsgNums=1)).code == FULL
        assert [message.body for message in await popped(client, maxMsgNums=1, consumerGroup="H")] == [b"0"]
        assert await ack(client, taken[0][0]) == FOUND
        assert [message.body for message in await popped(client, maxMsgNums=1)] == [b"2"]
