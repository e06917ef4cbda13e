"""What comes later with the SDK, and what does not: a name server and a broker, real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.client import BrokerError, Message, NotRecalled, Producer, PushConsumer, ReceivedMessage
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.delay import DELAY_LEVELS_MS
from mq.protocol.names import SCHEDULE_TOPIC
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.stored_messages import stored, wait_stored
from tests.support.waiting import until
from tests.support.waiting_messages import WallClock


async def test_copy_is_delayed_redelivered_and_dead_lettered_like_a_returned_message(
    tmp_path: Path, clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise BrokerError(1, "look message by offset failed", "here")

    monkeypatch.setattr("mq.client.consume.send_back._ask_to_take", refuse)
    seen: list[ReceivedMessage] = []
    comes, came = trio.open_memory_channel[None](9)
    with trio.fail_after(60):
        async with (
            cluster_and_broker(tmp_path) as (namesrv, broker),
            Producer(namesrv) as producer,
            trio.open_nursery() as nursery,
        ):
            consumer = PushConsumer(namesrv, "G", consume_from="first", ordered=False, max_reconsume_times=2)

            @consumer.on("T")
            async def fail(message: ReceivedMessage) -> None:
                seen.append(message)
                comes.send_nowait(None)
                raise ValueError("not yet")

            client = await broker.connect()

            async def has_group() -> bool:
                answer = await client.request(RequestCode.GET_MAX_OFFSET, {"topic": "%RETRY%G", "queueId": 0})
                return answer.code == ResponseCode.SUCCESS

            body = b"so much " * 1000
            async with consumer, comes, came:
                nursery.start_soon(consumer.run)
                await until(has_group)  # before that, no broker takes a copy for it
                sent = await producer.send(Message("T", body, tags="x", keys=["k"], properties={"own": "kept"}, flag=3))
                await came.receive()
                for times in range(2):
                    level = 3 + times
                    await wait_stored(client, 1, SCHEDULE_TOPIC, level - 1)
                    assert len(seen) == times + 1
                    clock.now_ms += DELAY_LEVELS_MS[level - 1]
                    await came.receive()
                [dead] = await wait_stored(client, 1, "%DLQ%G")
                consumer.stop()
            assert len(await stored(client, "%RETRY%G")) == 2
    for times, message in enumerate(seen):
        assert (message.body, message.topic, message.reconsume_times, message.flag) == (body, "T", times, 3)
        assert (message.message_id, message.tags, message.keys) == (sent.message_id, "x", ("k",))
        assert message.user_properties == {"own": "kept"}
        assert message.origin_message_id == (sent.offset_message_id if times else None)
    assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (3, "T")
    assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.offset_message_id
    assert "DELAY" not in dead.properties


async def test_late_recall_raises_not_recalled(tmp_path: Path, clock: WallClock) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, broker), Producer(namesrv) as producer:
        sent = [await producer.send(Message("T", b"x", deliver_at=clock.now_ms + 60_000)) for _ in range(2)]
        assert await producer.recall(sent[0].recall_handle) == sent[0].message_id
        with pytest.raises(NotRecalled, match="recalled before") as refused:
            await producer.recall(sent[0].recall_handle)
        assert (refused.value.code, refused.value.stored) == (604, "no")
        clock.now_ms += 61_000
        await wait_stored(await broker.connect(), 1)
        with pytest.raises(NotRecalled, match="too late: the message was due 1000 ms ago"):
            await producer.recall(sent[1].recall_handle)
