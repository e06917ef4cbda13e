"""Messages that wait for a topic which is deleted, and created again or restored, before they are due."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import COMMITTED
from mq.protocol.messages.transaction_sets import SetMessage, TransactionSet
from tests.support.half_messages import end, send_half
from tests.support.running_broker import Client, RunningBroker, broker_client, properties, running
from tests.support.stored_messages import figure, stored, wait_stored
from tests.support.waiting_messages import WallClock, beats

DAY_MS = 24 * 3_600_000


async def ready(broker: RunningBroker) -> Client:
    client = await broker.connect()
    await client.wait_for(lambda info: int(info["raftmq.formatLevel"]) >= 8)
    await client.create_topic("T")
    return client


async def delete(client: Client, topic: str = "T", **given: str) -> None:
    assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic} | given)).code == 0


async def dropped(client: Client) -> int:
    return await figure(client, "delayedDropped") + await figure(client, "timersDropped")


@pytest.mark.parametrize("restorable", ["true", "false"])
async def test_delayed_messages_of_a_deleted_topic_are_not_delivered_after_recreation(
    tmp_path: Path, clock: WallClock, restorable: str
) -> None:
    async with running(tmp_path) as broker:
        client = await ready(broker)
        for waits in (properties(DELAY="3"), properties(TIMER_DELAY_SEC="10")):
            assert (await client.send(body=b"old", i=waits)).code == 0
        await delete(client, restorable=restorable)
        await client.create_topic("T")
        clock.now_ms -= 60_000  # positions decide, not times: this clock, or that of another leader, may be wrong
        for waits in (properties(DELAY="3"), properties(TIMER_DELAY_SEC="10")):
            assert (await client.send(body=b"new", i=waits)).code == 0
        clock.now_ms += 71_000
        assert [each.body for each in await wait_stored(client, 2)] == [b"new", b"new"]
        while await dropped(client) < 2:
            await beats(client)
        assert len(await stored(client)) == 2
    async with broker_client(tmp_path) as client:
        await beats(client)
        assert len(await stored(client)) == 2


async def test_restored_topic_gets_its_delayed_messages(broker: RunningBroker, clock: WallClock) -> None:
    client = await ready(broker)
    for waits in (properties(DELAY="3"), properties(TIMER_DELAY_SEC="20")):
        assert (await client.send(body=b"old", i=waits)).code == 0
    await delete(client, restorable="true")
    clock.now_ms += 10_000
    await beats(client)
    assert (await client.request(RequestCode.RESTORE_TOPIC, {"topic": "T"})).code == 0
    clock.now_ms += 10_000
    assert [each.body for each in await wait_stored(client, 2)] == [b"old", b"old"]
    assert await dropped(client) == 0


async def test_timer_that_waits_for_days_is_for_its_own_topic(broker: RunningBroker, clock: WallClock) -> None:
    """Each day it is copied to its slot, to a place behind the creation of the next topic."""
    client = await ready(broker)
    await client.create_topic("Kept")
    for topic in ("T", "Kept"):
        assert (await client.send(topic, i=properties(TIMER_DELAY_SEC=str(2 * 86_400)))).code == 0
    await delete(client)
    clock.now_ms += DAY_MS + 1000
    while await figure(client, "timersRolled") < 1 or await dropped(client) < 1:
        await beats(client)
    await client.create_topic("T")
    clock.now_ms += DAY_MS
    assert len(await wait_stored(client, 1, "Kept")) == 1
    assert await stored(client) == []
    assert (await figure(client, "timersRolled"), await dropped(client)) == (1, 1)


async def test_recreated_topic_refuses_transactions_of_the_deleted_topic(
    broker: RunningBroker, clock: WallClock
) -> None:
    client = await ready(broker)
    body = TransactionSet([SetMessage("T", 0, b"a", props.encode({"UNIQ_KEY": "U1"}))], []).encode()
    fields = {"producerGroup": "P", "transactionId": "0A0B", "bornTimestampMs": 1_700_000_000_000}
    half, staged = await send_half(client), await client.request(RequestCode.STAGE_TRANSACTION, fields, body)
    assert (half.code, staged.code) == (0, 0)
    await delete(client)
    await client.create_topic("T")
    ended = await end(client, half, COMMITTED)
    assert (ended.code, "no longer exists" in str(ended.remark)) == (ResponseCode.TOPIC_NOT_EXIST, True)
    ext = {
        "producerGroup": "P",
        "tranStateTableOffset": staged.ext["halfQueueOffset"],
        "commitLogOffset": staged.ext["halfPhysicalOffset"],
        "commitOrRollback": COMMITTED,
        "msgId": "0A0B",
    }
    ended = await client.request(RequestCode.END_TRANSACTION, ext)
    assert (ended.code, "no longer exists" in str(ended.remark)) == (ResponseCode.TOPIC_NOT_EXIST, True)
    assert await stored(client) == []
    again = await send_half(client)
    assert (await end(client, again, COMMITTED)).code == 0
    assert len(await wait_stored(client, 1)) == 1


async def test_recreated_group_receives_no_retries_of_the_deleted_group(
    broker: RunningBroker, clock: WallClock
) -> None:
    client = await ready(broker)
    sent = await client.send(body=b"fails")
    [failed] = await stored(client)
    assert sent.code == 0
    ext = {"group": "G", "offset": failed.physical_offset, "delayLevel": 0, "originTopic": "T"}
    assert (await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    await delete(client, "%RETRY%G")
    assert (await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
    clock.now_ms += 60_000
    assert len(await wait_stored(client, 1, "%RETRY%G")) == 1
    while await dropped(client) < 1:
        await beats(client)
    assert len(await stored(client, "%RETRY%G")) == 1


async def test_delayed_message_is_delivered_to_the_topic_that_it_created(client: Client, clock: WallClock) -> None:
    await client.wait_for(lambda info: int(info["raftmq.formatLevel"]) >= 8)
    for round_number in range(2):
        posted = [await client.send("Made", i=properties(DELAY="1")) for _ in range(3)]
        assert {each.code for each in posted} == {0}
        clock.now_ms += 1000
        while await client.offset(RequestCode.GET_MAX_OFFSET, "Made") < 3 * (round_number + 1):
            await beats(client)
        await delete(client, "Made")
    assert await dropped(client) == 0
