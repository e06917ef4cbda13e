"""Deleted topics are restored: with clients, restarts, snapshots and retention in between."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import Admin, BrokerError, Message, Producer, PushConsumer, TopicNotFound
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.running_broker import Client, RunningBroker, broker_client, properties, running
from tests.support.waiting import until


async def delete(client: Client, topic: str = "T", **given: Any) -> int:
    return (
        await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic, "restorable": "true"} | given)
    ).code


async def restore(client: Client, topic: str = "T") -> tuple[int, str]:
    answer = await client.request(RequestCode.RESTORE_TOPIC, {"topic": topic})
    return answer.code, answer.remark or ""


async def deleted(client: Client) -> list[dict[str, Any]]:
    answer = await client.request(RequestCode.LIST_DELETED_TOPICS)
    assert answer.code == 0, answer
    topics: list[dict[str, Any]] = json.loads(answer.body)["topics"]
    return topics


async def filled(client: Client, count: int = 5) -> None:
    await client.create_topic("T", 1)
    await client.heartbeat("c", "G")
    for number in range(count):
        assert (await client.send(body=b"%d" % number, e=0)).code == 0
    ext = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 2}
    assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def bodies(client: Client, begin: int = 0) -> list[bytes]:
    answer = await client.pull(offset=begin)
    return [record.body for record in answer.records] if answer.code == 0 else []


async def test_restored_topic_has_its_messages_and_offsets(broker: RunningBroker, client: Client) -> None:
    await filled(client)
    assert await delete(client, operator="ann@desk") == 0
    assert (await client.pull()).code == ResponseCode.TOPIC_NOT_EXIST
    [row] = await deleted(client)
    assert (row["topic"], row["messages"], row["groups"]) == ("T", 5, ["G"])
    assert row["by"].startswith("ann@desk from 127.0.0.1:")
    assert row["until_ms"] - row["deleted_ms"] == broker.settings.retention_hours * 3_600_000
    assert (await restore(client))[0] == 0
    assert await bodies(client) == [b"0", b"1", b"2", b"3", b"4"]
    assert await client.committed() == 2
    assert await deleted(client) == []
    assert (await client.send(body=b"5", e=0)).code == 0
    assert await bodies(client) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("checkpointed", [True, False])
async def test_restore_after_a_restart(tmp_path: Path, checkpointed: bool) -> None:
    given = {"checkpoint_seconds": 0.05} if checkpointed else {}
    async with broker_client(tmp_path, **given) as client:
        await filled(client)
        assert await delete(client) == 0
        numbers = itertools.count()
        while checkpointed and not (tmp_path / "checkpoint.previous").exists():
            await client.create_topic(f"U{next(numbers)}", 1)  # without a change there is no checkpoint
            await trio.sleep(0.02)
    async with broker_client(tmp_path) as client:
        assert (await restore(client))[0] == 0
        assert await bodies(client) == [b"0", b"1", b"2", b"3", b"4"]
    async with broker_client(tmp_path) as client:  # and the restore itself is applied again
        assert await bodies(client) == [b"0", b"1", b"2", b"3", b"4"]
        assert await client.committed() == 2


async def test_recreated_topic_cannot_be_replaced_by_a_restore(tmp_path: Path) -> None:
    async with broker_client(tmp_path) as client:
        await filled(client)
        assert await delete(client) == 0
        assert await delete(client) == 0  # twice does not hurt
        await client.create_topic("T", 1)
        code, remark = await restore(client)
        assert code == ResponseCode.ILLEGAL_OPERATION
        assert "created again" in remark
        assert (await client.send(body=b"new", e=0)).code == 0
        assert await bodies(client, 5) == [b"new"]
        assert (await client.pull(offset=0)).code == ResponseCode.PULL_OFFSET_MOVED
        assert await client.committed() == 5
        assert await delete(client) == 0
        assert (await restore(client))[0] == 0
        assert await bodies(client, 5) == [b"new"]  # what was before the second creation stays gone
    async with running(tmp_path) as broker:
        assert await bodies(await broker.connect(), 5) == [b"new"]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_message_creates_a_topic_that_was_deleted_for_good(tmp_path: Path, is_deleted: bool) -> None:
    async with broker_client(tmp_path) as client:
        await filled(client)
        if is_deleted:
            assert await delete(client) == 0
        assert await delete(client, restorable="false") == 0
        assert await deleted(client) == []
        assert (await restore(client))[0] == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.send(body=b"first", e=0)).code == 0
        assert await bodies(client, 5) == [b"first"]
    async with running(tmp_path) as broker:
        assert await bodies(await broker.connect(), 5) == [b"first"]


async def test_message_does_not_create_a_restorable_topic_again(client: Client) -> None:
    await filled(client)
    assert await delete(client) == 0
    answer = await client.send(body=b"late", e=0)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "`raftmq topic restore`" in (answer.remark or "")
    assert (await restore(client))[0] == 0
    assert (await client.send(body=b"late", e=0)).code == 0


async def test_names_that_cannot_be_restored(client: Client) -> None:
    assert (await restore(client, "never"))[0] == ResponseCode.TOPIC_NOT_EXIST
    assert (await restore(client, "no/name"))[0] == ResponseCode.INVALID_PARAMETER
    await client.create_topic("L", 1, attributes="+message.type=LITE,+lite.topic.expiration=-1")
    assert await delete(client, "L") == 0
    assert (await restore(client, "L"))[0] == ResponseCode.TOPIC_NOT_EXIST
    assert await delete(client, "never") == 0
    assert await deleted(client) == []


async def test_delayed_message_survives_deletion_and_restore_of_its_topic(client: Client) -> None:
    await filled(client, 2)
    assert (await client.send(body=b"later", e=0, i=properties(DELAY="1"))).code == 0
    assert await delete(client) == 0

    async def is_due() -> bool:
        return bool((await deleted(client))[0]["messages"] == 3)

    await until(is_due, seconds=15)
    assert (await restore(client))[0] == 0
    assert await bodies(client) == [b"0", b"1", b"later"]


async def test_deleted_topic_without_messages_expires_at_the_end_of_its_time(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, retention_hours=0.00001) as client:
        assert await delete(client) == 0

        async def is_forgotten() -> bool:
            return not await deleted(client)

        await until(is_forgotten)
        assert (await restore(client))[0] == ResponseCode.TOPIC_NOT_EXIST


async def test_member_continues_after_a_restore_by_the_sdk(tmp_path: Path) -> None:
    handled: list[bytes] = []
    with trio.fail_after(60):
        async with cluster_and_broker(tmp_path) as (namesrv, _), Producer(namesrv) as producer, Admin(namesrv) as admin:
            await admin.create_topic("T", 1)
            for number in range(3):
                await producer.send(Message("T", b"%d" % number))
            await admin.delete_topic("T", operator="ann", restorable=True)
            with pytest.raises(TopicNotFound):
                await admin.restore_topic("never")
            info = (await admin.deleted_topics())["T"]["broker-a"]
            assert (info.messages, info.queues, info.along_with) == (3, 1, "")
            assert info.by.startswith("ann from ")
            assert await admin.restore_topic("T") == ["broker-a"]
            with pytest.raises(BrokerError, match="the topic T exists"):
                await admin.restore_topic("T")
            consumer = PushConsumer(namesrv, "G", consume_from="first")

            @consumer.on("T")
            async def handle(message: Any) -> None:
                handled.append(message.body)

            async with consumer, trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run)
                await producer.send(Message("T", b"3"))
                await until(lambda: len(handled) >= 4)
                nursery.cancel_scope.cancel()
    assert sorted(handled) == [b"0", b"1", b"2", b"3"]
